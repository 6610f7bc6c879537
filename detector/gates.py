"""Gates set by hand: an expert's weight for every picture, or one weight for all and no experts left."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from detector.errors import ModelError
from detector.model import OmniAID
from moe_core.experts import LowRankExperts


def parse_gates(text: str, names: Sequence[str]) -> tuple[float, ...]:
    """The gates in a list such as `0.2,0.8,0,0,0,1`.

    Args:
        text: one finite number per expert, separated by commas.
        names: of the experts, in order.

    Raises:
        ModelError: a part is no finite number, or there are more or fewer than experts.
    """
    gates = []
    for part in text.split(","):
        try:
            gates.append(float(part))
        except ValueError as error:
            raise ModelError(f"gate {part.strip()!r} is no number; write one for each expert") from error
    return check_gates(gates, names)


def check_gates(gates: Sequence[float], names: Sequence[str]) -> tuple[float, ...]:
    """The gates, if there is one finite number per expert.

    Raises:
        ModelError: a number is not finite, or there are more or fewer than `names`.
    """
    if len(gates) != len(names):
        raise ModelError(f"{len(gates)} gates are given; {len(names)} are needed: {', '.join(names)}")
    wrong = next((gate for gate in gates if not math.isfinite(gate)), None)
    if wrong is not None:
        raise ModelError(f"gate {wrong} is not finite; every expert's weight must be a number")
    return tuple(gates)


def score_with_gates(model: OmniAID, pixels: Tensor, gates: Tensor) -> Tensor:
    """Logits (B, 2) of a model whose router is not asked.

    Args:
        model: the model.
        pixels: (B, 3, S, S) uint8 views.
        gates: (B, E), the weight of every expert for every view. With a router that reads block `tap` of
            the main path, only the artifact expert's counts up to there, as in the model itself.
    """
    trunk = model.trunk
    return model.head(trunk.finish(trunk.shared(pixels), gates))


class PlainViT(nn.Module):
    """A Vision Transformer and its head, with the experts' part inside its dense weights.

    Attributes:
        trunk: a trunk without experts.
        head: the model's head.
        gates: (E,) buffer, what the experts were folded in with.
    """

    gates: Tensor

    def __init__(self, trunk: nn.Module, head: nn.Module, gates: Tensor) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head
        self.register_buffer("gates", gates)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits (B, 2) of views (B, 3, S, S) uint8."""
        return self.head(self.trunk(pixels))


@torch.no_grad()
def fold_gates(model: OmniAID, gates: Sequence[float]) -> PlainViT:
    """The plain ViT that computes what `model` does with the same gates for every picture.

    Args:
        model: left as it is.
        gates: one per expert.

    Raises:
        ModelError: there are not as many finite gates as experts.
    """
    values = torch.tensor(check_gates(gates, model.config.expert_names))
    trunk = copy.deepcopy(model.trunk)
    for number, block in enumerate(trunk.blocks, 1):
        fixed = values * trunk.known if number <= trunk.router_tap else values
        for name, layer in list(block.named_modules()):
            if isinstance(layer, LowRankExperts):
                block.set_submodule(name, _dense(layer, fixed))
    return PlainViT(trunk, copy.deepcopy(model.head), values).eval()


def _dense(layer: LowRankExperts, gates: Tensor) -> nn.Linear:
    weight = layer.fold(gates)
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias=layer.bias is not None)
    dense.weight.copy_(weight)
    if layer.bias is not None:
        dense.bias.copy_(layer.bias)
    return dense.requires_grad_(False)
