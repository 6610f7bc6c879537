"""Trying changes of a model out on held-out text, and telling of them side by side."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from moe_core.glu import GluWeights
from moe_core.ledger import Ledger
from moe_core.report import Claim, Table
from moe_core.toys.models import Kind, token_losses
from moe_core.toys.subjects import Subject, subject
from moe_core.transformers.calibration import GluProfile
from moe_core.transformers.conversion import (
    Converted,
    Cut,
    cmoe_cut,
    convert,
    dense_weights,
    magnitude_neurons,
    moefication_cut,
    prune,
    random_cut,
)
from moe_core.transformers.find import check_finite
from moe_core.transformers.storage import trial
from moe_core.transformers.texts import calibration_text


class Outcome(NamedTuple):
    """Held-out losses (N,) of one change, and ledgers of the blocks before and after it."""

    losses: Tensor
    before: Ledger
    after: Ledger


Outcomes = dict[str, Outcome]


class Begun(NamedTuple):
    """What every method that changes a model starts from.

    Attributes:
        tried: the model and its text.
        held_out: (N, L) int64 tokens.
        whole: (N,) losses of the unchanged model on them.
        ids: (C, L) int64 calibration tokens.
    """

    tried: Subject
    held_out: Tensor
    whole: Tensor
    ids: Tensor


def begin(kind: Kind, config: Any) -> Begun:
    """The model that a method's settings name, its text, and what it loses before it is changed.

    Args:
        kind: of the toy.
        config: settings with model, size, toys, sequences, length, calibration, calib and seed.

    Raises:
        ConfigError: the model has weights that are not finite, or the calibration text is too short.
    """
    tried = subject(kind, config.model, config.size, config.toys)
    check_finite(tried.model)
    held_out = tried.text("test", config.sequences, config.length, config.seed + 1)
    whole = token_losses(tried.model, held_out)
    ids = calibration_text(
        tried.tokenizer, config.calib, tried.text, config.calibration, config.length, config.seed
    )
    return Begun(tried, held_out, whole, ids)


def attempt(model: Any, change: Callable[[Any], Any], held_out: Tensor) -> Outcome:
    """What a change does; the model is as before afterwards.

    Args:
        model: to be changed in place.
        change: takes the model; its result has the ledgers `before` and `after`.
        held_out: (N, L) int64 tokens.
    """
    with trial(model):
        done = change(model)
        return Outcome(token_losses(model, held_out), done.before, done.after)


def attempt_cuts(model: Any, cuts: Mapping[int, Cut], held_out: Tensor) -> Outcome:
    """What cutting the dense blocks into experts does."""
    return attempt(model, lambda changed: convert(changed, cuts), held_out)


def training_free(
    model: Any, profiles: tuple[GluProfile, ...], experts: int, active: int, held_out: Tensor, *, seed: int
) -> Outcomes:
    """The cuts that need no training and static pruning, with as many neurons per token."""
    weights, act = dense_weights(model), model.config.hidden_act
    seen = {profile.layer: profile for profile in profiles}
    makers: dict[str, Callable[[int, GluWeights], Cut]] = {
        "random split": lambda at, glu: random_cut(glu, experts, active, seed=seed),
        "MoEfication": lambda at, glu: moefication_cut(glu, experts, active, seed=seed),
        "CMoE": lambda at, glu: cmoe_cut(glu, seen[at], experts, active, act=act, seed=seed),
    }
    outcomes = {
        name: attempt_cuts(model, {at: make(at, glu) for at, glu in weights.items()}, held_out)
        for name, make in makers.items()
    }
    kept = {at: magnitude_neurons(glu, seen[at], active / experts) for at, glu in weights.items()}

    def narrow(changed: Any) -> Converted:
        return prune(changed, kept)

    return outcomes | {"static pruning": attempt(model, narrow, held_out)}


def added(outcomes: Outcomes, whole: Tensor) -> dict[str, float]:
    """Mean nats per token that each change adds to the losses `whole` (N,) of the unchanged model."""
    return {name: float(got.losses.mean() - whole.mean()) for name, got in outcomes.items()}


def costs(outcomes: Outcomes, whole: Tensor, title: str) -> Table:
    """Stored and active shares beside the added loss, a row for each change."""
    extra = added(outcomes, whole)
    rows = tuple((name, stored_share(got), active_share(got), extra[name]) for name, got in outcomes.items())
    return Table(columns=(title, "stored share", "active share", "added nats per token"), rows=rows)


def paired(outcomes: Outcomes, whole: Tensor, title: str) -> Table:
    """Nats per token of each sequence, a column for each change and one for the unchanged model."""
    columns = [*(got.losses for got in outcomes.values()), whole]
    rows = tuple((index, *map(float, values)) for index, values in enumerate(zip(*columns, strict=True)))
    return Table(columns=("sequence", *outcomes, title), rows=rows)


def stored_share(got: Outcome) -> float:
    """Numbers stored, indices charged, in units of those before."""
    return got.after.charged / got.before.charged


def active_share(got: Outcome) -> float:
    """Numbers one token is multiplied with, in units of those before."""
    return got.after.active / got.before.active


def less(statement: str, own: float, other: float) -> Claim:
    """The claim that one change adds less loss than another."""
    evidence = f"Added nats per token: {own:.4f} against {other:.4f}."
    return Claim(statement=statement, holds=own < other, evidence=evidence)
