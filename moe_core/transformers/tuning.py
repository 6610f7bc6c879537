"""Short training of a converted model: next-token loss and a balance loss on every router."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from moe_core.losses import balance_loss
from moe_core.routing import Routing
from moe_core.transformers.find import find_moe


def cosine(step: int, steps: int, warm: int) -> float:
    """Factor on the learning rate at a step: linear over `warm` steps, then half a cosine down to 0."""
    if step < warm:
        return (step + 1) / warm
    done = torch.tensor((step - warm) / max(1, steps - warm))
    return float(0.5 * (1 + torch.cos(torch.pi * done)))


def continue_training(
    model: Any, batch: Callable[[int], Tensor], *, steps: int, rate: float, balance: float, warm: float = 0.02
) -> tuple[float, ...]:
    """Training loss of each step; all weights of the model change in place.

    Args:
        model: with routed blocks.
        batch: step -> (B, L) int64 tokens.
        steps: of AdamW with a cosine schedule.
        rate: peak learning rate.
        balance: weight of E * sum f P, averaged over routers.
        warm: share of steps over which the rate rises.

    Source: ExpertWeaver (arXiv 2602.15521), downcycling: L_NTP + lambda N sum f_i P_i.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: cosine(step, steps, max(1, int(warm * steps)))
    )
    losses = []
    model.train()
    for step in range(steps):
        ids = batch(step)
        seen: list[Tensor] = []
        with ExitStack() as stack:
            for block in find_moe(model):
                stack.callback(block.router.register_forward_hook(_collector(seen)).remove)
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        losses.append(float(loss))
        total = loss + balance * _mean(seen)
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    model.eval()
    return tuple(losses)


def _collector(seen: list[Tensor]) -> Callable[..., None]:
    def collect(module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> None:
        scores, weights, experts = output
        seen.append(balance_loss(scores, Routing(experts, weights, scores.shape[-1])))

    return collect


def _mean(values: Sequence[Tensor]) -> Tensor | float:
    return torch.stack(list(values)).mean() if values else 0.0
