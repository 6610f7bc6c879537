"""The graphs a model can be exported as: each a module whose arguments and outputs have names."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from detector.exporting.errors import ExportError
from detector.gates import fold_gates, score_with_gates
from detector.model import OmniAID

PIXELS, GATES = "pixels", "gates"


def _probability(logits: Tensor) -> Tensor:
    return logits.softmax(dim=-1)[..., 1]


class Scored(nn.Module):
    """What scoring needs."""

    def __init__(self, model: OmniAID) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probability (B,), logits (B, 2) and gates (B, E)."""
        output = self.model(pixels)
        return _probability(output.logits), output.logits, output.gates


class Explained(nn.Module):
    """As `Scored`, and the head's logits of every patch."""

    def __init__(self, model: OmniAID) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Probability (B,), logits (B, 2), gates (B, E) and patch logits (B, P, 2)."""
        output, patches = self.model.forward_patches(pixels)
        return _probability(output.logits), output.logits, output.gates, patches


class Routed(nn.Module):
    """The router alone: only the blocks it reads are in the graph."""

    def __init__(self, model: OmniAID) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Router logits (B, E - 1) and gates (B, E)."""
        logits, _, gates = self.model.route(self.model.trunk.shared(pixels))
        return logits, gates


class Gated(nn.Module):
    """No router: the gates are an input."""

    def __init__(self, model: OmniAID) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, gates: Tensor) -> tuple[Tensor, ...]:
        """Probability (B,) and logits (B, 2)."""
        logits = score_with_gates(self.model, pixels, gates)
        return _probability(logits), logits


class Folded(nn.Module):
    """A plain ViT that still tells the gates it was made with, so that it can stand in for `Scored`."""

    def __init__(self, model: OmniAID, gates: Sequence[float]) -> None:
        super().__init__()
        self.plain = fold_gates(model, gates)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Probability (B,), logits (B, 2) and the fixed gates (B, E)."""
        logits = self.plain(pixels)
        return _probability(logits), logits, self.plain.gates.expand(pixels.shape[0], -1)


class Graph(NamedTuple):
    """One kind of graph.

    Attributes:
        view: its module, made from a model and, for `folded`, gates.
        inputs: names in the order of the module's arguments.
        outputs: names in the order of what the module returns.
        scores: whether it can score pictures alone: `pixels` in, `logits` out.
    """

    view: Callable[[OmniAID, Sequence[float]], nn.Module]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scores: bool = True


GRAPHS: dict[str, Graph] = {
    "score": Graph(lambda model, gates: Scored(model), (PIXELS,), ("probability", "logits", GATES)),
    "patches": Graph(
        lambda model, gates: Explained(model), (PIXELS,), ("probability", "logits", GATES, "patch_logits")
    ),
    "router": Graph(lambda model, gates: Routed(model), (PIXELS,), ("router_logits", GATES), scores=False),
    "gates": Graph(
        lambda model, gates: Gated(model), (PIXELS, GATES), ("probability", "logits"), scores=False
    ),
    "folded": Graph(lambda model, gates: Folded(model, gates), (PIXELS,), ("probability", "logits", GATES)),
}


class View(NamedTuple):
    """A model as one graph, ready to be written.

    Attributes:
        graph: which kind.
        module: in evaluation mode.
        size_px: side of its input.
        experts: E.
    """

    graph: Graph
    module: nn.Module
    size_px: int
    experts: int

    def example(self, batch: int, seed: int) -> tuple[Tensor, ...]:
        """Seeded random arguments: pixels (B, 3, S, S) uint8 and, where they are an input, gates in 0..1."""
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randint(
            0, 256, (batch, 3, self.size_px, self.size_px), dtype=torch.uint8, generator=generator
        )
        gates = torch.rand(batch, self.experts, generator=generator)
        return (pixels, gates)[: len(self.graph.inputs)]


def view_model(model: OmniAID, name: str = "score", gates: Sequence[float] | None = None) -> View:
    """The model as the graph called `name`.

    Args:
        model: weights on the CPU.
        name: of GRAPHS.
        gates: one per expert; for `folded`, and for no other.

    Raises:
        ExportError: the graph does not exist, or gates are missing or not wanted.
        ModelError: there are not as many finite gates as experts.
    """
    if name not in GRAPHS:
        raise ExportError(f"graph {name!r} does not exist; choose one of: {', '.join(GRAPHS)}")
    if (name == "folded") != (gates is not None):
        what = "needs the gates to fold in" if name == "folded" else "takes no gates; only folded does"
        raise ExportError(f"graph {name} {what}")
    graph = GRAPHS[name]
    module = graph.view(model.eval(), gates or ()).eval()
    return View(graph, module, model.trunk.config.image_px, len(model.config.expert_names))
