"""Learning a split and its router: layer by layer on cached inputs, or all layers by the model's outputs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from moe_core.methods.dot_moe.splitting import MaskedGlu
from moe_core.transformers.tuning import cosine


@dataclass(frozen=True)
class Schedule:
    """How a split is trained.

    Attributes:
        steps: of the optimiser.
        affinity_rate: learning rate of the affinities; 0 trains the router alone.
        router_rate: learning rate of the router.
        balance, z: weights of the penalties.
        warm: share of steps over which the temperature falls from 1 to its last value.
        temperature: last value.
        settle_every: steps between roundings.
        seed: of the batches.
        rows: tokens of a batch, layer by layer.
    """

    steps: int
    affinity_rate: float = 2e-2
    router_rate: float = 3e-3
    balance: float = 0.01
    z: float = 1e-4
    warm: float = 0.2
    temperature: float = 0.1
    settle_every: int = 10
    seed: int = 0
    rows: int = 256


class Progress(NamedTuple):
    """Held-out relative error of a layer after a number of steps, and neurons moved since the start."""

    step: int
    error: float
    moved: int


def fit_layer(split: MaskedGlu, inputs: Tensor, held_out: Tensor, how: Schedule) -> tuple[Progress, ...]:
    """Errors along the way; the split is trained in place to give the dense block's outputs.

    Args:
        split: of one block.
        inputs: (R, D) of the block, to learn from.
        held_out: (R', D), to measure on.
        how: schedule.

    Source: DOT-MoE. Differs: one layer at a time by squared error, which a CPU can do; see `fit_model`.
    """
    start = split.labels
    optimizer, scheduler = _optimizer([split], how)
    generator = torch.Generator().manual_seed(how.seed)
    log = [Progress(0, relative_error(split, held_out), 0)]
    for step in range(how.steps):
        _anneal([split], step, how)
        rows = inputs[torch.randint(len(inputs), (how.rows,), generator=generator)]
        target = F.linear(split.hidden(rows), split.glu.down, split.glu.down_bias)
        error = (split(rows) - target).square().mean() / target.square().mean()
        assert split.penalties is not None
        loss = error + how.balance * split.penalties.balance + how.z * split.penalties.z
        _step(optimizer, scheduler, loss)
        last = step + 1 == how.steps
        if last or (step + 1) % max(1, how.steps // 5) == 0:
            _settle([split], how)
            moved = int((split.labels != start).sum())
            log.append(Progress(step + 1, relative_error(split, held_out), moved))
    return tuple(log)


def fit_model(
    model: Any, splits: Mapping[int, MaskedGlu], batch: Callable[[int], Tensor], how: Schedule
) -> tuple[float, ...]:
    """Loss of each step; all splits are trained together so that the model's outputs stay as they were.

    Args:
        model: dense; its weights stay as they are and it is its own teacher.
        splits: by decoder layer.
        batch: step -> (B, L) int64 tokens.
        how: schedule.

    Source: DOT-MoE, equation 15: 2 KL + CE + 1e-3 z + 1e-2 balance, with those of `how` for the last two.
    """
    optimizer, scheduler = _optimizer(list(splits.values()), how)
    losses = []
    with _frozen(model):
        for step in range(how.steps):
            _anneal(list(splits.values()), step, how)
            loss = _model_loss(model, splits, batch(step), how)
            _step(optimizer, scheduler, loss)
            losses.append(float(loss))
    _settle(list(splits.values()), how)
    return tuple(losses)


def _model_loss(model: Any, splits: Mapping[int, MaskedGlu], ids: Tensor, how: Schedule) -> Tensor:
    with torch.no_grad():
        teacher = model(input_ids=ids, use_cache=False).logits
    with replaced(model, splits):
        student = model(input_ids=ids, use_cache=False).logits
    loss = distillation(teacher, student, ids)
    for split in splits.values():
        assert split.penalties is not None
        loss = loss + (how.balance * split.penalties.balance + how.z * split.penalties.z) / len(splits)
    return loss


@contextmanager
def _frozen(model: Any) -> Iterator[None]:
    """No gradients for the model's own weights inside."""
    before = [(weight, weight.requires_grad) for weight in model.parameters()]
    try:
        model.requires_grad_(False)
        yield
    finally:
        for weight, flag in before:
            weight.requires_grad_(flag)


def distillation(teacher: Tensor, student: Tensor, ids: Tensor) -> Tensor:
    """2 KL(teacher || student) + cross-entropy of the next token; logits (B, L, V), ids (B, L)."""
    log_student = student.float().log_softmax(dim=-1)
    divergence = F.kl_div(log_student, teacher.float().log_softmax(dim=-1), log_target=True, reduction="none")
    entropy = F.nll_loss(log_student[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return 2 * divergence.sum(dim=-1).mean() + entropy


@torch.no_grad()
def relative_error(split: MaskedGlu, inputs: Tensor) -> float:
    """Squared error of the split's outputs in units of the dense block's own."""
    target = F.linear(split.hidden(inputs), split.glu.down, split.glu.down_bias)
    return float((split(inputs) - target).square().mean() / target.square().mean())


@contextmanager
def replaced(model: Any, splits: Mapping[int, MaskedGlu]) -> Iterator[None]:
    """Put the splits where the dense blocks are, for a forward pass."""
    layers = model.model.layers
    before = {layer: layers[layer].mlp for layer in splits}
    try:
        for layer, split in splits.items():
            layers[layer].mlp = split
        yield
    finally:
        for layer, block in before.items():
            layers[layer].mlp = block


def _optimizer(splits: list[MaskedGlu], how: Schedule) -> tuple[Any, Any]:
    for split in splits:
        split.affinity.requires_grad_(how.affinity_rate > 0)
    groups = [
        {"params": [split.router for split in splits], "lr": how.router_rate},
        {"params": [split.affinity for split in splits], "lr": how.affinity_rate, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=1e-4)
    warm = max(1, int(how.warm * how.steps))
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, how.steps, warm))


def _anneal(splits: list[MaskedGlu], step: int, how: Schedule) -> None:
    """Lower the temperature, and round anew every few steps because rounding costs more than a step."""
    warm = max(1, int(how.warm * how.steps))
    done = min(1.0, step / warm)
    for split in splits:
        split.temperature = 1.0 - (1.0 - how.temperature) * done
    if step % how.settle_every == 0:
        _settle(splits, how)


def _settle(splits: list[MaskedGlu], how: Schedule) -> None:
    if how.affinity_rate > 0:
        for split in splits:
            split.settle()


def _step(optimizer: Any, scheduler: Any, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1.0)
    optimizer.step()
    scheduler.step()
