"""ExpertWeaver as a method of the catalogue: loss at equal active neurons, beside other cuts."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from moe_core.catalogue import Paper, method
from moe_core.methods.expertweaver.weaving import Weave, Woven, weave
from moe_core.partition import nearest_divisor
from moe_core.report import Claim, Report, Table, provenance
from moe_core.toys.models import token_losses
from moe_core.toys.subjects import Subject
from moe_core.transformers.calibration import GluProfile, glu_profiles
from moe_core.transformers.conversion import convert, dense_weights
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

PAPER = Paper(
    "ExpertWeaver: Unlocking the Inherent MoE in Dense LLMs with GLU Activation Patterns", "2602.15521"
)


class Settings(BaseModel):
    """The paper's values; experts and active are 64 and 48 there, on blocks of 14,000 neurons and more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, description="of the text, the clustering and the tokens kept")
    model: str = Field(default="toy", description="toy, smollm2 or a folder with a dense model")
    size: Literal["full", "smoke"] = Field(default="full", description="of the toy")
    toys: Path | None = Field(default=None, description="folder where trained toys are kept")
    calib: Path | None = Field(default=None, description="calibration text; without it the corpus's own")
    experts: int = Field(default=64, ge=2, description="shared and routed; the nearest divisor is taken")
    active: int = Field(default=48, ge=2, description="experts per token, shared ones included")
    tau: float = Field(default=0.6, ge=0, description="variation above which a neuron is specialised")
    alpha: tuple[float, float] = Field(
        default=(0.2, 0.7), description="least and most share of shared neurons"
    )
    tau_quantile: float | None = Field(
        default=None, ge=0, le=1, description="quantile that tau is taken from"
    )
    layer_adaptive: bool = Field(default=True, description="give each layer its own share of shared neurons")
    profile: Literal["sample", "token"] = Field(default="sample", description="features to cluster by")
    normalise: bool = Field(default=False, description="z-score each neuron's features")
    shared_score: Literal["gate", "contribution"] = Field(
        default="gate", description="what makes neurons shared"
    )
    mode: Literal["prune", "downcycle"] = Field(default="prune", description="what the conversion is for")
    shared: int = Field(default=2, ge=0, description="shared experts of every layer, for downcycling")
    steps: int = Field(default=0, ge=0, description="of continued training, for downcycling")
    rate: float = Field(default=4e-4, gt=0, description="peak learning rate of continued training")
    balance: float = Field(default=0.01, ge=0, description="weight of the balance loss in training")
    calibration: int = Field(default=240, ge=2, description="calibration sequences, each a sample")
    tokens: int = Field(default=1024, ge=1, description="tokens kept for features by token")
    sequences: int = Field(default=96, ge=1, description="of held-out text")
    length: int = Field(default=96, ge=2, description="tokens of each")
    compared: bool = Field(default=True, description="measure the other cuts too")
    save: Path | None = Field(default=None, description="folder for the converted model")


SMOKE = Settings(
    size="smoke", experts=16, active=8, calibration=16, tokens=128, sequences=16, length=32, alpha=(0.0, 0.5)
)
BENCH = Settings(experts=16, active=8)
REAL = Settings(model="smollm2", calibration=64, sequences=16, tokens=512)


@method(
    "expertweaver",
    summary="Cut a dense model into experts by how its neurons act, without training",
    paper=PAPER,
    family="llm",
    smoke=SMOKE,
    bench=BENCH,
    real=REAL,
)
def run(config: Settings) -> Report:
    """What cutting a dense model costs in loss at equal active neurons, the paper's way and other ways."""
    start = time.perf_counter()
    tried, held_out, whole, ids = begin("dense", config)
    profiles = glu_profiles(tried.model, ids, keep=config.tokens, seed=config.seed)
    woven = weave(dense_weights(tried.model), profiles, how(config, tried.model))
    outcomes = _outcomes(tried.model, profiles, woven, config, held_out)
    notes = _notes(config, tried.model, woven)
    tuned = _finish(tried, woven, config, held_out)
    return Report(
        method="expertweaver",
        metrics=_metrics(outcomes, whole, woven) | tuned,
        tables={
            "cuts": costs(outcomes, whole, "cut"),
            "layers": Table(columns=LAYER_COLUMNS, rows=woven.layers),
            "paired": paired(outcomes, whole, "dense"),
        },
        claims=_claims(outcomes, whole, woven),
        artifacts={"model": str(config.save)} if config.save else {},
        timings_s={"all": time.perf_counter() - start},
        notes=notes,
        provenance=provenance(config),
    )


LAYER_COLUMNS = ("layer", "specialised share", "alpha", "shared experts", "clamped to active - 1")


def how(config: Settings, model: Any) -> Weave:
    """The settings of the cut; the number of experts is made a divisor of the block's width."""
    same = (
        *("active", "tau", "alpha", "tau_quantile", "layer_adaptive"),
        *("profile", "normalise", "shared_score", "seed"),
    )
    width = find_dense(model)[0].width
    down = config.mode == "downcycle"
    return Weave(
        experts=nearest_divisor(width, config.experts),
        act=model.config.hidden_act,
        shared=config.shared if down else None,
        combine="softmax" if down else "unit",
        **{name: getattr(config, name) for name in same},
    )


def _outcomes(
    model: Any, profiles: tuple[GluProfile, ...], woven: Woven, config: Settings, held_out: Tensor
) -> Outcomes:
    outcomes = {"expertweaver": attempt_cuts(model, woven.cuts, held_out)}
    if not config.compared:
        return outcomes
    setting = how(config, model)
    outcomes |= training_free(model, profiles, setting.experts, setting.active, held_out, seed=setting.seed)
    for name, change in EXTENSIONS.items():
        other = weave(dense_weights(model), profiles, replace(setting, **change))
        outcomes[name] = attempt_cuts(model, other.cuts, held_out)
    return outcomes


# Settings that the paper does not have; small blocks are not specialised enough for its tau.
EXTENSIONS: dict[str, dict[str, Any]] = {
    "expertweaver, z-scored": {"normalise": True},
    "expertweaver, shared by contribution": {
        "layer_adaptive": False,
        "alpha": (0.25, 0.25),
        "shared_score": "contribution",
        "normalise": True,
    },
    "expertweaver, median tau": {"tau_quantile": 0.5, "alpha": (0.0, 0.5), "normalise": True},
}


def _finish(tried: Subject, woven: Woven, config: Settings, held_out: Tensor) -> dict[str, float]:
    """Convert for good where the model is to be trained or saved; metrics of the training."""
    training = config.mode == "downcycle" and config.steps > 0
    if not training and config.save is None:
        return {}
    convert(tried.model, woven.cuts)
    metrics = {}
    if training:
        continue_training(
            tried.model,
            lambda step: tried.text("train", 8, config.length, config.seed + 1000 + step),
            steps=config.steps,
            rate=config.rate,
            balance=config.balance,
        )
        metrics["tuned_nats"] = float(token_losses(tried.model, held_out).mean())
    if config.save is not None:
        save(tried.model, config.save)
        if tried.tokenizer is not None:
            tried.tokenizer.save_pretrained(config.save)
    return metrics


def _metrics(outcomes: Outcomes, whole: Tensor, woven: Woven) -> dict[str, float]:
    own = outcomes["expertweaver"]
    return {
        "dense_nats": float(whole.mean()),
        "expertweaver_nats": float(own.losses.mean()),
        "active_share": active_share(own),
        "tau": woven.tau,
        "mean_shared_experts": float(torch.tensor([float(layer[3]) for layer in woven.layers]).mean()),
    }


def _claims(outcomes: Outcomes, whole: Tensor, woven: Woven) -> tuple[Claim, ...]:
    extra = added(outcomes, whole)
    rivals = [name for name in ("random split", "static pruning", "MoEfication", "CMoE") if name in extra]
    text = "With the paper's settings it loses less than {} at equal active neurons."
    claims = [less(text.format(name), extra["expertweaver"], extra[name]) for name in rivals]
    if rivals:
        claims.append(_best(extra))
    return (_specialised(woven), *claims)


def _specialised(woven: Woven) -> Claim:
    shares = [layer[1] for layer in woven.layers]
    return Claim(
        statement="Dense blocks hold neurons that are specialised by the paper's measure.",
        holds=max(shares) > 0.05,
        evidence=f"At tau {woven.tau:.3f} a share of {min(shares):.3f} to {max(shares):.3f} of a layer.",
    )


def _best(extra: dict[str, float]) -> Claim:
    """The claim on the best variant, which was picked on the text it is measured on."""
    best = min((name for name in extra if name.startswith("expertweaver")), key=lambda name: extra[name])
    other = min(extra["random split"], extra["static pruning"])
    text = "The best of its variants loses less than a random split and than static pruning."
    claim = less(text, extra[best], other)
    return claim.model_copy(update={"evidence": f"Picked on this text: {best}. {claim.evidence}"})


def _notes(config: Settings, model: Any, woven: Woven) -> tuple[str, ...]:
    notes = ["Rows `expertweaver, ...` are extensions that the paper does not have."]
    experts = nearest_divisor(find_dense(model)[0].width, config.experts)
    if experts != config.experts:
        notes.append(
            f"{config.experts} experts do not divide the block; {experts}, the nearest divisor, were cut."
        )
    clamped = sum(layer[4] for layer in woven.layers)
    if clamped:
        notes.append(
            f"In {clamped} of {len(woven.layers)} layers all active experts were to be shared; one is routed."
        )
    return tuple(notes)
