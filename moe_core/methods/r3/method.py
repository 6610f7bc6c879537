"""R3 as a method of the catalogue: the gap between a rollout engine and training, with and without replay."""

import time
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from moe_core.catalogue import Paper, method
from moe_core.methods.r3.divergence import Divergence, disagreement, divergence, full_divergence, sampled_logp
from moe_core.methods.r3.replay import record, replay
from moe_core.methods.r3.trace import Trace
from moe_core.report import Claim, Report, Table, provenance
from moe_core.toys.subjects import subject
from moe_core.transformers.find import find_moe

PAPER = Paper(
    "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers", "2510.11370"
)
# The paper's 2 is beyond what models of this size reach.
THRESHOLDS = (1.1, 1.5, 2.0)


class Settings(BaseModel):
    """The gap is one of arithmetic: bfloat16, or weights rounded to eight bits, against float32."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, description="of prompts and sampling")
    model: str = Field(default="toy", description="toy, smollm2 (made into a mixture) or a folder")
    size: Literal["full", "smoke"] = Field(default="full", description="of the toy")
    toys: Path | None = Field(default=None, description="folder where trained toys are kept")
    engine: Literal["bf16", "int8"] = Field(default="bf16", description="arithmetic of the rollout")
    sequences: int = Field(default=64, ge=1, description="rollouts")
    prompt: int = Field(default=32, ge=1, description="tokens of a prompt")
    answer: int = Field(default=64, ge=1, description="tokens sampled after it")
    trace: Path | None = Field(default=None, description="file for the recorded routing")


SMOKE = Settings(size="smoke", sequences=8, prompt=8, answer=16)
REAL = Settings(model="smollm2", engine="int8", sequences=4, prompt=32, answer=24)


class Gap(NamedTuple):
    """One way to route in training, held against the rollout.

    Attributes:
        kl: (N,) nats per token of each text, over the whole vocabulary.
        sampled: from the sampled tokens alone.
    """

    kl: Tensor
    sampled: Divergence


@method(
    "r3",
    summary="Replay the routing of a rollout in training, with gradients through the router",
    paper=PAPER,
    family="llm",
    smoke=SMOKE,
    real=REAL,
)
def run(config: Settings) -> Report:
    """What replaying takes off the gap between a low-precision rollout and float32 training."""
    start = time.perf_counter()
    tried = subject("moe", config.model, config.size, config.toys)
    prompts = tried.text("train", config.sequences, config.prompt, config.seed)
    texts, rollout, trace = _roll_out(_engine(tried.model, config.engine), prompts, config)
    with record(tried.model) as watched:
        natural = _answers(tried.model, texts, config)
    with replay(tried.model, trace):
        replayed = _answers(tried.model, texts, config)
    gaps = {
        name: Gap(
            full_divergence(rollout, logits).mean(dim=1),
            divergence(
                sampled_logp(rollout, texts[:, config.prompt :]),
                sampled_logp(logits, texts[:, config.prompt :]),
                THRESHOLDS,
            ),
        )
        for name, logits in (("r3", replayed), ("natural", natural))
    }
    if config.trace is not None:
        trace.save(config.trace)
    moved = disagreement(trace.experts, watched.trace.experts[:, : trace.experts.shape[1]])
    exact = _same_engine_difference(tried.model, texts)
    gradient = _router_gradient(tried.model, texts, trace)
    return Report(
        method="r3",
        metrics=_metrics(gaps, moved) | {"same_engine_difference": exact, "router_gradient": gradient},
        tables={"layers": _layers(tried.model, moved), "paired": _paired(gaps)},
        claims=_claims(gaps, exact, gradient),
        artifacts={"trace": str(config.trace)} if config.trace else {},
        timings_s={"all": time.perf_counter() - start},
        notes=(
            f"Rollout in {config.engine}, training in float32, {config.sequences} texts of {config.prompt} + "
            f"{config.answer} tokens.",
            "The table `paired` holds KL(rollout || training) of each text in nats per sampled token.",
            "One pass, no training run: nothing here says whether replay prevents a collapse.",
        ),
        provenance=provenance(config),
    )


def _engine(model: Any, kind: str) -> Any:
    """A copy of the model as a rollout engine would hold it."""
    copy = deepcopy(model)
    return copy.to(torch.bfloat16) if kind == "bf16" else _rounded(copy)


@torch.no_grad()
def _rounded(model: Any) -> Any:
    """The model with each row of each matrix on a grid of 255 values."""
    for weight in model.parameters():
        if weight.ndim >= 2:
            step = weight.abs().amax(dim=-1, keepdim=True).clamp_min(1e-12) / 127
            weight.copy_((weight / step).round() * step)
    return model


@torch.no_grad()
def _roll_out(engine: Any, prompts: Tensor, config: Settings) -> tuple[Tensor, Tensor, Trace]:
    """Texts (N, P + A), logits (N, A, V) of the sampled tokens, and the routing."""
    with record(engine) as recorder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        made = engine.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.0,
            min_new_tokens=config.answer,
            max_new_tokens=config.answer,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    return made.sequences, torch.stack(made.logits, dim=1).float(), recorder.trace


@torch.no_grad()
def _answers(model: Any, texts: Tensor, config: Settings) -> Tensor:
    """Logits (N, A, V) that the model gives to the sampled tokens."""
    return model(input_ids=texts).logits[:, config.prompt - 1 : -1]


@torch.no_grad()
def _same_engine_difference(model: Any, texts: Tensor) -> float:
    """Largest difference of logits between a pass and its own replay; 0 when replay changes nothing else."""
    with record(model) as recorder:
        own = model(input_ids=texts).logits
    with replay(model, recorder.trace):
        again = model(input_ids=texts).logits
    return float((own - again).abs().max())


def _router_gradient(model: Any, texts: Tensor, trace: Trace) -> float:
    """Norm of the routers' gradient of the likelihood under replay."""
    routers = [block.router.weight for block in find_moe(model)]
    with replay(model, trace), torch.enable_grad():
        loss = model(input_ids=texts, labels=texts).loss
        gradients = torch.autograd.grad(loss, routers)
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


def _metrics(gaps: dict[str, Gap], moved: Tensor) -> dict[str, float]:
    found = {
        "moved_share": float(moved.double().mean()),
        "moved_tokens_share": float(moved.any(dim=2).double().mean()),
    }
    for name, gap in gaps.items():
        found[f"{name}_kl_nats"] = float(gap.kl.mean())
        found[f"{name}_largest_ratio"] = gap.sampled.largest
        found |= {f"{name}_beyond_{tau}_share": share for tau, share in gap.sampled.extreme.items()}
    return found


def _layers(model: Any, moved: Tensor) -> Table:
    shares = moved.double().mean(dim=(0, 1)).tolist()
    rows = tuple((block.layer, share) for block, share in zip(find_moe(model), shares, strict=True))
    return Table(columns=("layer", "share of tokens routed elsewhere"), rows=rows)


def _paired(gaps: dict[str, Gap]) -> Table:
    values = [gap.kl.tolist() for gap in gaps.values()]
    rows = tuple((index, *row) for index, row in enumerate(zip(*values, strict=True)))
    return Table(columns=("sequence", *gaps), rows=rows)


def _claims(gaps: dict[str, Gap], exact: float, gradient: float) -> tuple[Claim, ...]:
    own, natural = (float(gaps[name].kl.mean()) for name in ("r3", "natural"))
    low, high = (gaps[name].sampled.extreme[THRESHOLDS[0]] for name in ("r3", "natural"))
    return (
        Claim(
            statement="Replay brings training closer to the rollout.",
            holds=own < natural,
            evidence=f"KL {own:.3g} against {natural:.3g} nats per token.",
        ),
        Claim(
            statement="Replay leaves fewer tokens with an extreme probability ratio.",
            holds=low < high if high else None,
            evidence=f"{low:.3%} against {high:.3%} of tokens beyond a ratio of {THRESHOLDS[0]}.",
        ),
        Claim(
            statement="Replay on the same engine changes nothing, and the router still learns.",
            holds=exact == 0 and gradient > 0,
            evidence=f"Logits differ by {exact:g} at most; the routers' gradient has norm {gradient:.3g}.",
        ),
    )
