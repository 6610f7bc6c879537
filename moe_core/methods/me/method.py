"""ME as a method of the catalogue: the same distribution as the conventional ensemble at fewer forwards."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from moe_core.catalogue import Paper, method
from moe_core.errors import ConfigError
from moe_core.methods.me.ensemble import Ensemble
from moe_core.methods.me.generation import Mode
from moe_core.methods.me.member import Member
from moe_core.report import Claim, Report, Table, provenance
from moe_core.timing import core_seconds, one_core
from moe_core.toys.subjects import Subject, subject

PAPER = Paper("Rethinking LLM Ensembling from the Perspective of Mixture Models", "2605.00419")
# A correct sampler is called wrong once in a thousand runs.
LEVEL = 1e-3
LEAST_EXPECTED = 5.0


class Settings(BaseModel):
    """Two members of one vocabulary; the paper weighs its members by accuracy, here they are given."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=42, description="of prompts and sampling")
    model: Literal["toy", "smollm2"] = Field(
        default="toy", description="two dense toys, or SmolLM2 and the mixture made of it"
    )
    size: Literal["full", "smoke"] = Field(default="full", description="of the toys")
    toys: Path | None = Field(default=None, description="folder where trained toys are kept")
    members: tuple[str, str] | None = Field(
        default=None, description="folders of two models of one vocabulary, instead"
    )
    weights: tuple[float, float] = Field(default=(0.6, 0.4), description="of the two members")
    prompt: str | None = Field(default=None, description="text that members with tokenizers continue")
    draws: int = Field(default=32768, ge=100, description="next tokens drawn for the comparison")
    tokens: int = Field(default=150, ge=1, description="tokens written for cost and speed")
    repeats: int = Field(default=5, ge=1, description="texts that are timed")
    sequences: int = Field(default=64, ge=1, description="of held-out text")
    length: int = Field(default=96, ge=2, description="tokens of each")
    save: Path | None = Field(default=None, description="folder for the ensemble")


SMOKE = Settings(size="smoke", draws=4096, tokens=40, repeats=3, sequences=8, length=32)
REAL = Settings(model="smollm2", draws=256, tokens=16, repeats=2, sequences=4, length=96)
BATCH = 2048
PROMPT = 8


class Fit(NamedTuple):
    """Drawn tokens against a distribution.

    Attributes:
        statistic: chi-square.
        freedom: degrees of freedom after merging rare tokens.
        p: chance of a statistic as large if the tokens follow the distribution.
    """

    statistic: float
    freedom: int
    p: float


@method(
    "me",
    summary="Ensemble language models by running one of them per token",
    paper=PAPER,
    family="llm",
    smoke=SMOKE,
    real=REAL,
)
def run(config: Settings) -> Report:
    """Whether one member per token draws from the mixture of all, and what that costs and saves."""
    start = time.perf_counter()
    subjects = _subjects(config)
    ensemble = Ensemble([each.model for each in subjects], config.weights)
    mixture, alone = _one_step(ensemble, subjects[0], config)
    costs, timings = _costs(ensemble, subjects[0], config)
    losses = _losses(ensemble, subjects[0].text("test", config.sequences, config.length, config.seed))
    difference = _lazy_difference(ensemble.models[0], subjects[0].text("test", 1, 24, config.seed))
    if config.save is not None:
        ensemble.save(config.save)
    text = _continued(subjects, config)
    ratio = timings["equal_conventional"] / timings["equal_me"]
    speeds = {"speedup_equal": ratio, "speedup": timings["conventional"] / timings["me"]}
    return Report(
        method="me",
        metrics=_metrics(mixture, alone, costs, losses) | {"lazy_difference": difference},
        tables={"cost": _cost_table(costs), "paired": _paired(losses)} | text,
        claims=(_same_distribution(mixture, alone), _fewer_forwards(costs, config), _faster(ratio)),
        artifacts={"ensemble": str(config.save)} if config.save else {},
        timings_s={"all": time.perf_counter() - start} | timings,
        speeds=speeds,
        notes=(
            "The table `paired` holds nats per token; the conventional ensemble's are those of `me`, whose "
            "distribution it is.",
            "Equality is in distribution, not token by token.",
            "Speeds are of one core, in CPU seconds: other load on the machine does not count.",
        ),
        provenance=provenance(config),
    )


def _subjects(config: Settings) -> tuple[Subject, Subject]:
    if config.members is not None:
        first, second = (subject("dense", folder) for folder in config.members)
        return first, second
    if config.model == "smollm2":
        return subject("dense", "smollm2"), subject("moe", "smollm2")
    return (
        subject("dense", "toy", config.size, config.toys),
        subject("dense-small", "toy", config.size, config.toys),
    )


def _continued(subjects: tuple[Subject, Subject], config: Settings) -> dict[str, Table]:
    """The prompt and what the ensemble writes after it, each member reading in its own tokens."""
    if config.prompt is None:
        return {}
    tokenizers = [each.tokenizer for each in subjects]
    if None in tokenizers:
        raise ConfigError("a prompt needs members with tokenizers; the toys have none")
    ensemble = Ensemble([each.model for each in subjects], config.weights, tokenizers)
    text = ensemble.write(config.prompt, config.tokens, mode="component", generator=_generator(config.seed))
    return {"text": Table(columns=("prompt", "continuation"), rows=((config.prompt, text),))}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _one_step(ensemble: Ensemble, tried: Subject, config: Settings) -> tuple[Fit, Fit]:
    """Fits of drawn tokens to the mixture and, as a control that must fail, to the first member alone."""
    prompt = tried.text("test", 1, PROMPT, config.seed)
    generator, counts = _generator(config.seed), np.zeros(ensemble.models[0].config.vocab_size)
    for size in _parts(config.draws, BATCH):
        written = ensemble.generate(prompt.expand(size, -1), 1, generator=generator, stop_tokens=())
        np.add.at(counts, [tokens[0] for tokens in written.tokens], 1)
    alone = Ensemble(ensemble.models[:1], [1.0])
    return tuple(fit(counts, each.next_dist(prompt)[0].double().numpy()) for each in (ensemble, alone))  # type: ignore[return-value]


def fit(counts: np.ndarray, probabilities: np.ndarray) -> Fit:
    """Pearson's test, tokens expected fewer than five times counted together.

    Args:
        counts: (V,) how often each token was drawn.
        probabilities: (V,) that sum to one.
    """
    from scipy.stats import chi2

    expected = probabilities / probabilities.sum() * counts.sum()
    order = np.argsort(-expected)
    common = order[expected[order] >= LEAST_EXPECTED]
    rare = order[len(common) :]
    seen, due = list(counts[common]), list(expected[common])
    if len(rare) and expected[rare].sum() >= LEAST_EXPECTED:
        seen, due = [*seen, counts[rare].sum()], [*due, expected[rare].sum()]
    elif len(rare) and due:
        seen[-1], due[-1] = seen[-1] + counts[rare].sum(), due[-1] + expected[rare].sum()
    statistic = float(np.square(np.subtract(seen, due)).dot(1 / np.asarray(due)))
    freedom = max(1, len(seen) - 1)
    return Fit(statistic, freedom, float(chi2.sf(statistic, freedom)))


def _parts(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]


Costs = dict[str, list[int]]


def _costs(ensemble: Ensemble, tried: Subject, config: Settings) -> tuple[Costs, dict[str, float]]:
    """Forwards per member of one text, and median seconds of one core, also of two equal members."""
    prompt = tried.text("test", 1, PROMPT, config.seed)
    twins = Ensemble([ensemble.models[0], ensemble.models[0]], [0.5, 0.5])
    ways: dict[str, tuple[Ensemble, Mode]] = {
        "me": (ensemble, "exact"),
        "conventional": (ensemble, "conventional"),
        "equal_me": (twins, "exact"),
        "equal_conventional": (twins, "conventional"),
    }
    costs: Costs = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    # In turn, so that a slow spell of the machine hits each way alike.
    with one_core():
        for repeat in range(config.repeats):
            for name, (each, mode) in ways.items():
                start, generator = core_seconds(), _generator(config.seed + repeat)
                each.generate(prompt, config.tokens, mode=mode, generator=generator, stop_tokens=())
                seconds[name].append(core_seconds() - start)
                costs.setdefault(name, each.stats.forwards)
    return costs, {name: float(np.median(values)) for name, values in seconds.items()}


@torch.no_grad()
def _losses(ensemble: Ensemble, ids: Tensor) -> dict[str, Tensor]:
    """Nats per token (N,) float64 of the mixture and of each member."""
    parts: list[list[Tensor]] = []
    for batch in ids.split(8):
        scores = [model(input_ids=batch).logits[:, :-1].double().log_softmax(-1) for model in ensemble.models]
        said = torch.stack([each.gather(-1, batch[:, 1:, None]).squeeze(-1) for each in scores])
        weights = ensemble.weights.double().log()[:, None, None]
        parts.append([-(said + weights).logsumexp(0).mean(1), *(-said).mean(2)])
    names = ("me", *(f"member {index}" for index in range(len(ensemble.models))))
    return {name: torch.cat([part[index] for part in parts]) for index, name in enumerate(names)}


def _lazy_difference(model: Any, ids: Tensor) -> float:
    """Largest difference of logits between reading in uneven pieces and reading at once."""
    member, tokens, largest, place = Member(model, 1), ids[0].tolist(), 0.0, 0
    for size in (1, 4, 2, 7, 1, 9):
        member.append(0, tokens[place : place + size])
        place += size
        with torch.no_grad():
            whole = model(input_ids=ids[:, :place]).logits[0, -1]
        largest = max(largest, float((member.logits([0])[0] - whole).abs().max()))
    return largest


def _metrics(mixture: Fit, alone: Fit, costs: Costs, losses: dict[str, Tensor]) -> dict[str, float]:
    found = {
        "chi2": mixture.statistic,
        "chi2_freedom": float(mixture.freedom),
        "p": mixture.p,
        "control_chi2": alone.statistic,
        "control_p": alone.p,
        "forwards": float(sum(costs["me"])),
        "conventional_forwards": float(sum(costs["conventional"])),
    }
    for name, values in losses.items():
        key, nats = name.replace(" ", "_"), float(values.mean())
        found |= {f"{key}_nats": nats, f"{key}_perplexity": math.exp(nats)}
    return found


def _cost_table(costs: Costs) -> Table:
    rows = tuple(
        (name, int(first), int(second), int(first + second)) for name, (first, second) in costs.items()
    )
    return Table(columns=("way", "forwards of member 0", "of member 1", "in all"), rows=rows)


def _paired(losses: dict[str, Tensor]) -> Table:
    columns: Sequence[list[float]] = [values.tolist() for values in losses.values()]
    rows = tuple((index, *row) for index, row in enumerate(zip(*columns, strict=True)))
    return Table(columns=("sequence", *losses), rows=rows)


def _same_distribution(mixture: Fit, alone: Fit) -> Claim:
    return Claim(
        statement="Running one member per token draws from the conventional ensemble's distribution.",
        # A control that passes too would mean that the test sees nothing.
        holds=mixture.p >= LEVEL if alone.p < LEVEL else None,
        evidence=(
            f"Chi-square {mixture.statistic:.1f} at {mixture.freedom} degrees of freedom, "
            f"p = {mixture.p:.3g}; against the first member alone p = {alone.p:.3g}."
        ),
    )


def _fewer_forwards(costs: Costs, config: Settings) -> Claim:
    return Claim(
        statement="It runs one forward pass per token.",
        holds=sum(costs["me"]) == config.tokens and sum(costs["conventional"]) == 2 * config.tokens,
        evidence=f"{sum(costs['me'])} against {sum(costs['conventional'])} for {config.tokens} tokens.",
    )


def _faster(ratio: float) -> Claim:
    return Claim(
        statement="With two equal members it is at least 1.6 times as fast.",
        holds=ratio >= 1.6,
        evidence=f"{ratio:.2f} times.",
        timed=True,
    )
