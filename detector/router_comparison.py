"""Whether a router that needs no pass of its own decides like one that does, and what it saves."""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from detector.errors import ModelError
from detector.model import OmniAID, Output
from moe_core.routing import Routing
from moe_core.statistics import routing_agreement


@dataclass(frozen=True)
class RouterComparison:
    """Two models on the same pictures; usually the same experts with a two-pass and a single-pass router.

    Attributes:
        pictures: how many views were compared.
        same_first: share with the same best semantic expert.
        same_chosen: share with the same set of chosen semantic experts.
        moved_weight: mean share of semantic gate weight that sits on another expert.
        probability_difference: mean absolute difference of the uncalibrated probability of AI.
        reference_s, candidate_s: processor seconds per picture, median over batches; wall seconds on
            an accelerator.
    """

    pictures: int
    same_first: float
    same_chosen: float
    moved_weight: float
    probability_difference: float
    reference_s: float
    candidate_s: float

    @property
    def speed(self) -> float:
        """How many times faster the candidate is."""
        return self.reference_s / self.candidate_s


@torch.no_grad()
def compare_routers(reference: OmniAID, candidate: OmniAID, batches: Iterable[Tensor]) -> RouterComparison:
    """How far `candidate` routes like `reference`, and their speed, taking turns on every batch.

    Args:
        reference: usually with the two-pass router; it is put into evaluation mode, like the other.
        candidate: usually with a single-pass router, over the same domains.
        batches: views (B, 3, S, S) uint8, at least one; the first is run once more to warm up.

    Raises:
        ModelError: the models have other domains, or there is no batch.
    """
    if reference.config.domains != candidate.config.domains:
        raise ModelError(
            f"routers over {', '.join(reference.config.domains)} and {', '.join(candidate.config.domains)} "
            "cannot be compared"
        )
    models = (reference.eval(), candidate.eval())
    outputs: tuple[list[Output], list[Output]] = ([], [])
    seconds: tuple[list[float], list[float]] = ([], [])
    for number, pixels in enumerate(batches):
        for place, model in enumerate(models):
            if number == 0:
                model(pixels)
            output, spent = _timed(model, pixels)
            outputs[place].append(output)
            seconds[place].append(spent / len(pixels))
    if not outputs[0]:
        raise ModelError("no batch was given; two routers are compared on pictures")
    agreement = routing_agreement(*(_joined(each) for each in outputs))
    one, other = (torch.cat([o.logits.softmax(dim=-1)[:, 1] for o in each]) for each in outputs)
    return RouterComparison(
        pictures=len(one),
        same_first=agreement.first,
        same_chosen=agreement.chosen,
        moved_weight=agreement.moved,
        probability_difference=float((one - other).abs().mean()),
        reference_s=statistics.median(seconds[0]),
        candidate_s=statistics.median(seconds[1]),
    )


def _timed(model: OmniAID, pixels: Tensor) -> tuple[Output, float]:
    """Output and seconds: of the processor on a CPU, where other load would stretch the clock's."""
    on_gpu = pixels.is_cuda
    clock = time.perf_counter if on_gpu else time.process_time
    if on_gpu:
        torch.cuda.synchronize()
    begin = clock()
    output = model(pixels)
    if on_gpu:
        torch.cuda.synchronize()
    return output, clock() - begin


def _joined(outputs: list[Output]) -> Routing:
    routings = [output.routing for output in outputs]
    experts, weights = (torch.cat([getattr(r, part) for r in routings]) for part in ("experts", "weights"))
    return Routing(experts, weights, routings[0].num_experts)
