"""DOT-MoE as a method of the catalogue: loss when split and router are learned together, apart, or not."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from moe_core.catalogue import Paper, method
from moe_core.methods.dot_moe.splitting import MaskedGlu
from moe_core.methods.dot_moe.training import Progress, Schedule, fit_layer, fit_model
from moe_core.partition import check_divides, nearest_divisor
from moe_core.report import Claim, Report, Table, provenance
from moe_core.toys.models import token_losses
from moe_core.toys.subjects import Subject
from moe_core.transformers.calibration import GluProfile, glu_profiles
from moe_core.transformers.conversion import Cut, convert, dense_weights, moefication_cut, random_cut
from moe_core.transformers.find import find_dense
from moe_core.transformers.storage import save
from moe_core.transformers.trials import (
    Outcomes,
    active_share,
    added,
    attempt_cuts,
    begin,
    costs,
    less,
    paired,
    training_free,
)
from moe_core.transformers.tuning import continue_training

PAPER = Paper("DOT-MoE: Differentiable Optimal Transport for Dense-to-MoE Conversion", "2606.01666")


class Settings(BaseModel):
    """Neurons per expert and the share that is active are the paper's for Qwen2.5-7B at half the block.

    The paper trains all layers on the model's outputs for 3,500 steps of 131,072 tokens; the default here is
    a layer at a time on its own outputs, which a CPU can do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, description="of the text, the first split, the noise and the batches")
    model: str = Field(default="toy", description="toy, smollm2 or a folder with a dense model")
    size: Literal["full", "smoke"] = Field(default="full", description="of the toy")
    toys: Path | None = Field(default=None, description="folder where trained toys are kept")
    calib: Path | None = Field(default=None, description="calibration text; without it the corpus's own")
    expert_size: int = Field(default=128, ge=1, description="neurons of one expert; the nearest fit is taken")
    experts: int | None = Field(default=None, ge=2, description="number of experts, instead of their size")
    active: float = Field(default=0.5, gt=0, le=1, description="share of experts that each token uses")
    objective: Literal["layer", "kl"] = Field(
        default="layer", description="each layer's outputs, or the model's"
    )
    init: Literal["kmeans", "random"] = Field(default="kmeans", description="first split")
    steps: int = Field(default=250, ge=1, description="of training, for each layer or for the model")
    affinity_rate: float = Field(default=2e-2, ge=0, description="learning rate of affinities")
    router_rate: float = Field(default=3e-3, gt=0, description="learning rate of routers")
    balance: float = Field(default=0.01, ge=0, description="weight of the balance loss")
    z: float = Field(default=1e-4, ge=0, description="weight of the router's z-loss")
    temperature: float = Field(default=0.1, gt=0, description="last temperature of the transport")
    settle_every: int = Field(default=10, ge=1, description="steps between roundings")
    finetune_steps: int = Field(default=0, ge=0, description="of training all weights after the conversion")
    calibration: int = Field(default=128, ge=2, description="calibration sequences")
    tokens: int = Field(default=8192, ge=64, description="tokens whose block inputs are learned from")
    sequences: int = Field(default=96, ge=1, description="of held-out text")
    length: int = Field(default=96, ge=2, description="tokens of each")
    compared: bool = Field(default=True, description="measure the other splits too")
    save: Path | None = Field(default=None, description="folder for the converted model")


SMOKE = Settings(
    size="smoke",
    experts=8,
    steps=20,
    affinity_rate=0.2,
    settle_every=5,
    calibration=16,
    tokens=256,
    sequences=16,
    length=32,
)
BENCH = Settings(experts=16)
REAL = Settings(model="smollm2", steps=60, calibration=16, sequences=16, tokens=1024)


class Learned(NamedTuple):
    """Cuts by layer, and what was logged per layer."""

    cuts: dict[int, Cut]
    progress: dict[int, tuple[Progress, ...]]


@method(
    "dot-moe",
    summary="Cut a dense model into experts by learning split and router together",
    paper=PAPER,
    family="llm",
    smoke=SMOKE,
    bench=BENCH,
    real=REAL,
)
def run(config: Settings) -> Report:
    """What cutting a dense model costs in loss when split and router are learned, and when they are not."""
    start = time.perf_counter()
    tried, held_out, whole, ids = begin("dense", config)
    profiles = glu_profiles(tried.model, ids, keep=config.tokens, seed=config.seed)
    learned = learn(tried, profiles, config, _schedule(config), config.init)
    outcomes = _outcomes(tried, profiles, learned, config, held_out)
    notes = _notes(config, tried.model)
    tuned = _finish(tried, learned.cuts, config, held_out)
    return Report(
        method="dot-moe",
        metrics=_metrics(outcomes, whole) | tuned,
        tables={
            "splits": costs(outcomes, whole, "split"),
            "progress": _progress(learned),
            "paired": paired(outcomes, whole, "dense"),
        },
        claims=_claims(outcomes, whole),
        artifacts={"model": str(config.save)} if config.save else {},
        timings_s={"all": time.perf_counter() - start},
        notes=notes,
        provenance=provenance(config),
    )


def learn(
    tried: Subject, profiles: tuple[GluProfile, ...], config: Settings, how: Schedule, init: str
) -> Learned:
    """Cuts of all layers after training, from a first split by k-means or at random."""
    experts, active = _numbers(config, tried.model)
    weights = dense_weights(tried.model)
    splits = {}
    for layer, glu in weights.items():
        first = FIRST[init](glu, experts, active, seed=config.seed)
        labels = _labels(first)
        splits[layer] = MaskedGlu(
            glu, labels, first.router, active, tried.model.config.hidden_act, seed=config.seed
        )
    if config.objective == "kl":
        fit_model(
            tried.model,
            splits,
            lambda step: tried.text("train", 8, config.length, config.seed + 2000 + step),
            how,
        )
        return Learned({layer: split.cut() for layer, split in splits.items()}, {})
    progress = {}
    for profile in profiles:
        cut = max(1, len(profile.inputs) // 8)
        held_out, inputs = profile.inputs[:cut], profile.inputs[cut:]
        progress[profile.layer] = fit_layer(splits[profile.layer], inputs, held_out, how)
    return Learned({layer: split.cut() for layer, split in splits.items()}, progress)


FIRST: dict[str, Callable[..., Cut]] = {"kmeans": moefication_cut, "random": random_cut}


def _schedule(config: Settings) -> Schedule:
    same = (
        *("steps", "affinity_rate", "router_rate", "balance", "z"),
        *("temperature", "settle_every", "seed"),
    )
    return Schedule(**{name: getattr(config, name) for name in same})


def _numbers(config: Settings, model: Any) -> tuple[int, int]:
    """Experts and active ones."""
    width = find_dense(model)[0].width
    experts = config.experts or max(2, nearest_divisor(width, max(2, round(width / config.expert_size))))
    check_divides(width, experts)
    return experts, max(1, int(config.active * experts + 0.5))


def _labels(cut: Cut) -> Tensor:
    labels = cut.routed.new_empty(cut.routed.numel())
    for expert, neurons in enumerate(cut.routed):
        labels[neurons] = expert
    return labels


def _outcomes(
    tried: Subject, profiles: tuple[GluProfile, ...], learned: Learned, config: Settings, held_out: Tensor
) -> Outcomes:
    model = tried.model
    outcomes = {"dot-moe": attempt_cuts(model, learned.cuts, held_out)}
    if not config.compared:
        return outcomes
    how = _schedule(config)
    for init in FIRST:
        alone = learn(tried, profiles, config, replace(how, affinity_rate=0.0), init)
        outcomes[f"router only, {init}"] = attempt_cuts(model, alone.cuts, held_out)
    (other,) = set(FIRST) - {config.init}
    outcomes[f"dot-moe, {other}"] = attempt_cuts(
        model, learn(tried, profiles, config, how, other).cuts, held_out
    )
    experts, active = _numbers(config, model)
    return outcomes | training_free(model, profiles, experts, active, held_out, seed=config.seed)


def _finish(tried: Subject, cuts: dict[int, Cut], config: Settings, held_out: Tensor) -> dict[str, float]:
    """Convert for good where the model is to be trained or saved; metrics of the training."""
    if not config.finetune_steps and config.save is None:
        return {}
    convert(tried.model, cuts)
    metrics = {}
    if config.finetune_steps:
        continue_training(
            tried.model,
            lambda step: tried.text("train", 8, config.length, config.seed + 1000 + step),
            steps=config.finetune_steps,
            rate=5e-4,
            balance=config.balance,
            warm=0.2,
        )
        metrics["tuned_nats"] = float(token_losses(tried.model, held_out).mean())
    if config.save is not None:
        save(tried.model, config.save)
        if tried.tokenizer is not None:
            tried.tokenizer.save_pretrained(config.save)
    return metrics


def _metrics(outcomes: Outcomes, whole: Tensor) -> dict[str, float]:
    own = outcomes["dot-moe"]
    return {
        "dense_nats": float(whole.mean()),
        "dot_nats": float(own.losses.mean()),
        "active_share": active_share(own),
    }


def _progress(learned: Learned) -> Table:
    rows = tuple((layer, *entry) for layer, log in learned.progress.items() for entry in log)
    return Table(columns=("layer", "step", "held-out relative error", "neurons moved"), rows=rows)


RIVALS = {
    "router only, kmeans": "Learning the split too loses less than learning the router on a k-means split.",
    "router only, random": "It loses less than learning the router on a random split.",
    "random split": "It loses less than a random split with centroid routers.",
    "MoEfication": "It loses less than MoEfication's k-means split with centroid routers.",
    "CMoE": "It loses less than CMoE's training-free split.",
    "static pruning": "It loses less than pruning to as many neurons for every token.",
}


def _claims(outcomes: Outcomes, whole: Tensor) -> tuple[Claim, ...]:
    extra = added(outcomes, whole)
    own = extra["dot-moe"]
    claims = tuple(less(text, own, extra[name]) for name, text in RIVALS.items() if name in extra)
    text = "Neurons chosen per token cost less than a tenth of a nat."
    return claims or (Claim(statement=text, holds=own < 0.1, evidence=f"Added: {own:.4f}."),)


def _notes(config: Settings, model: Any) -> tuple[str, ...]:
    experts, active = _numbers(config, model)
    tokens = config.calibration * config.length
    return (
        f"{active} of {experts} experts are active; all weights of the model but the routers stay frozen.",
        f"Learned splits saw {tokens} calibration tokens; random split and MoEfication saw none.",
        "Layer by layer the objective is each block's squared output error, not the paper's divergence.",
    )
