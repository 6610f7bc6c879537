"""OEA as a method of the catalogue: loss against experts read, and time against experts read."""

import math
import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from moe_core.catalogue import Paper, method
from moe_core.methods.oea.latency import Latency, measure
from moe_core.methods.oea.rerouting import Rerouting, remember, simulate
from moe_core.report import Claim, Report, Table, provenance
from moe_core.toys.subjects import Subject, subject
from moe_core.transformers.find import find_moe
from moe_core.transformers.storage import save

PAPER = Paper(
    "Opportunistic Expert Activation: Batch-Aware Expert Routing for Faster Decode Without Retraining",
    "2511.02237",
)
MODES = ("vanilla", "pruned", "oea")


class Settings(BaseModel):
    """Where the paper's k0 is 3 of 8 active experts, the toy's is 2 of 4."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, description="of the text and the timed layer")
    model: str = Field(default="toy", description="toy, smollm2 (made into a mixture) or a folder")
    size: Literal["full", "smoke"] = Field(default="full", description="of the toy")
    toys: Path | None = Field(default=None, description="folder where trained toys are kept")
    k0: int = Field(default=2, ge=1, description="experts that a token brings in itself, for the comparison")
    batch: int = Field(default=16, ge=1, description="sequences that decode side by side")
    sequences: int = Field(default=96, ge=1, description="of held-out text, a multiple of the batch")
    length: int = Field(default=96, ge=2, description="tokens of each")
    layer: tuple[int, int, int] = Field(default=(32, 512, 1024), description="timed layer: experts, D, H")
    repeats: int = Field(default=15, ge=1, description="timings of each number of experts")
    save: Path | None = Field(default=None, description="folder for the model with rerouting switched on")


SMOKE = Settings(size="smoke", batch=8, sequences=16, length=32, layer=(32, 128, 512), repeats=5)
REAL = Settings(model="smollm2", k0=1, batch=8, sequences=8, length=96, repeats=5)


@method(
    "oea",
    summary="Reroute decode tokens to experts that the batch has loaded anyway",
    paper=PAPER,
    family="llm",
    smoke=SMOKE,
    real=REAL,
)
def run(config: Settings) -> Report:
    """What rerouting costs in loss and saves in experts read, against cutting to k0, at every k0."""
    start = time.perf_counter()
    tried = subject("moe", config.model, config.size, config.toys)
    losses, experts = _compare(tried, config)
    line = _latency(config)
    if config.save is not None:
        remember(tried.model, Rerouting(k0=config.k0))
        save(tried.model, config.save)
    return Report(
        method="oea",
        metrics=_metrics(losses, experts, config.k0),
        tables={"sweep": _sweep(losses, experts), "paired": _paired(losses, config.k0)},
        claims=(_less_loss(losses, config.k0), _fewer_experts(experts), _linear(line)),
        artifacts={"model": str(config.save)} if config.save else {},
        timings_s={"all": time.perf_counter() - start} | _times(line),
        speeds={"latency_r2": line.r2, "latency_slope_s": line.slope, "latency_fixed_s": line.fixed},
        notes=(
            f"Batches of {config.batch} tokens at one position decode side by side; T counts the experts "
            "they read per layer.",
            "The table `paired` holds nats per token of each sequence.",
            "The timed layer runs on one core, in CPU seconds: other load on the machine does not count.",
        ),
        provenance=provenance(config),
    )


Losses = dict[tuple[str, int], Tensor]
Experts = dict[tuple[str, int], float]


def _compare(tried: Subject, config: Settings) -> tuple[Losses, Experts]:
    """Losses (N,) and T by (mode, k0); "vanilla" only at k0 = K."""
    ids = tried.text("test", config.sequences, config.length, config.seed)
    active = find_moe(tried.model)[0].active
    cells = [("vanilla", active), *((mode, k0) for k0 in range(1, active) for mode in MODES[1:])]
    found = {
        (mode, k0): simulate(tried.model, ids, k0, config.batch, mode)  # type: ignore[arg-type]
        for mode, k0 in cells
    }
    # A k0 that the model does not have is refused here, by name, and not by a missing cell.
    simulate(tried.model, ids[: config.batch, :2], config.k0, config.batch)
    return {cell: value[0] for cell, value in found.items()}, {
        cell: value[1] for cell, value in found.items()
    }


def _latency(config: Settings) -> Latency:
    experts, width, hidden = config.layer
    return measure(
        experts=experts,
        width=width,
        hidden=hidden,
        batch=16,
        active=4,
        repeats=config.repeats,
        seed=config.seed,
    )


def _metrics(losses: Losses, experts: Experts, k0: int) -> dict[str, float]:
    whole = max(key[1] for key in losses)
    cells = {"vanilla": ("vanilla", whole)} | {
        mode: (mode, k0) if k0 < whole else ("vanilla", whole) for mode in MODES[1:]
    }
    values = {f"{mode}_nats": float(losses[cell].mean()) for mode, cell in cells.items()}
    perplexities = {
        f"{name.removesuffix('_nats')}_perplexity": math.exp(value) for name, value in values.items()
    }
    return values | perplexities | {f"{mode}_experts": experts[cell] for mode, cell in cells.items()}


def _sweep(losses: Losses, experts: Experts) -> Table:
    rows = tuple((mode, k0, experts[mode, k0], float(losses[mode, k0].mean())) for mode, k0 in losses)
    return Table(columns=("routing", "k0", "experts read per layer", "nats per token"), rows=rows)


def _paired(losses: Losses, k0: int) -> Table:
    whole = max(key[1] for key in losses)
    natural = losses["vanilla", whole]
    columns = (losses.get(("oea", k0), natural), losses.get(("pruned", k0), natural), natural)
    rows = tuple((index, *map(float, values)) for index, values in enumerate(zip(*columns, strict=True)))
    return Table(columns=("sequence", "oea", "pruned", "vanilla"), rows=rows)


def _less_loss(losses: Losses, k0: int) -> Claim:
    own, cut = (
        {key[1]: float(value.mean()) for key, value in losses.items() if key[0] == mode}
        for mode in ("oea", "pruned")
    )
    parts = [f"k0 = {step}: {own[step]:.4f} against {cut[step]:.4f}" for step in own]
    return Claim(
        statement="Rerouting loses less than cutting to the same k0, which reads as many experts.",
        holds=all(own[step] < cut[step] for step in own) if own else None,
        evidence=f"Nats per token at {', '.join(parts)}." if parts else "The model has one active expert.",
    )


def _fewer_experts(experts: Experts) -> Claim:
    counts = [value for (mode, _), value in experts.items() if mode == "oea"]
    (whole,) = (value for (mode, _), value in experts.items() if mode == "vanilla")
    return Claim(
        statement="A smaller k0 reads fewer experts.",
        holds=all(a <= b for a, b in zip(counts, [*counts[1:], whole], strict=True)),
        evidence=f"{', '.join(f'{value:.2f}' for value in counts)} for k0 = 1, 2, ..; {whole:.2f} without.",
    )


def _linear(line: Latency) -> Claim:
    return Claim(
        statement="The time of a decode step is linear in the experts read.",
        holds=line.r2 >= 0.9,
        evidence=f"R2 = {line.r2:.3f}, {line.slope * 1e3:.3f} ms per expert.",
        timed=True,
    )


def _times(line: Latency) -> dict[str, float]:
    return {f"layer_at_{count}": value for count, value in zip(line.active, line.seconds, strict=True)}
