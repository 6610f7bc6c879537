"""OmniAID: a trunk with experts, the router that weighs them, and the head that decides."""

from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from detector.backbone import load_backbone
from detector.card import ARTIFACT
from detector.vit import ExpertConfig, SharedTokens, Trunk, TrunkConfig
from moe_core.experts import LowRankExperts
from moe_core.routing import Routing, top_k

DOMAINS = ("human", "animal", "object", "scene", "anime")


class ModelConfig(BaseModel):
    """Everything that decides the model's shape; stored in every checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str = "clip-vit-b16"
    depth: int = 8
    taps: tuple[int, ...] = (4, 6, 8)
    experts: ExpertConfig = ExpertConfig()
    domains: tuple[str, ...] = DOMAINS
    router_hidden: int = 256
    router_top_k: int = 2

    @property
    def expert_names(self) -> tuple[str, ...]:
        """Names of the gates, in order: the semantic domains, then the artifact expert."""
        return (*self.domains, ARTIFACT)


class Output(NamedTuple):
    """One forward pass.

    Attributes:
        logits: (B, 2), [real, AI].
        gates: (B, E), the semantic gates (sum 1) and the artifact gate (always 1).
        router_logits: (B, E - 1).
        routing: the router's decision over the semantic experts.
    """

    logits: Tensor
    gates: Tensor
    router_logits: Tensor
    routing: Routing


class Router(nn.Module):
    """Linear - ReLU - Linear from frozen features to one score per semantic expert."""

    def __init__(self, features: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, experts))

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) -> (B, E_semantic)."""
        return self.network(features)


class Head(nn.Module):
    """Linear(F, 2) on standardised features, so that a linear probe can be its initial state."""

    center: Tensor
    scale: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 2)
        self.register_buffer("center", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))

    def forward(self, features: Tensor) -> Tensor:
        """(B, F) -> (B, 2)."""
        return self.linear((features - self.center) / self.scale)

    @torch.no_grad()
    def load_probe(self, center: Tensor, scale: Tensor, weight: Tensor, bias: float) -> None:
        """Become the binary probe sigmoid(weight . (x - center) / scale + bias)."""
        self.center.copy_(center)
        self.scale.copy_(scale)
        self.linear.weight.copy_(torch.stack([-weight / 2, weight / 2]))
        self.linear.bias.copy_(torch.tensor([-bias / 2, bias / 2]))


class OmniAID(nn.Module):
    """Experts on a frozen Vision Transformer, gated per picture.

    The router sees the frozen backbone's features; the artifact expert always has gate 1.

    Source: OmniAID (arXiv 2511.08423) and its released implementation.
    Differs: the head reads the class tokens of several middle blocks instead of ln_post(CLS) of the
    last, because the signal is stronger there (measured); the router reads the same tokens of the
    frozen backbone; blocks before the first with experts are computed once for both passes.
    """

    def __init__(self, config: ModelConfig, trunk: Trunk) -> None:
        super().__init__()
        features = len(config.taps) * trunk.config.width
        self.config, self.trunk = config, trunk
        self.router = Router(features, config.router_hidden, len(config.domains))
        self.head = Head(features)

    def route(self, shared: SharedTokens) -> tuple[Tensor, Routing, Tensor]:
        """Router logits (B, E-1), routing, and all gates (B, E) for pictures already in `shared`."""
        with torch.no_grad():
            frozen = self.trunk.finish(shared, None)
        return self.route_features(frozen)

    def route_features(self, frozen: Tensor) -> tuple[Tensor, Routing, Tensor]:
        """As `route`, from the frozen backbone's features (B, F)."""
        logits = self.router(frozen)
        routing = top_k(logits, self.config.router_top_k)
        gates = torch.cat([routing.dense(), logits.new_ones(logits.shape[0], 1)], dim=-1)
        return logits, routing, gates

    def forward(self, pixels: Tensor) -> Output:
        """One pass over views (B, 3, S, S) uint8."""
        shared = self.trunk.shared(pixels)
        router_logits, routing, gates = self.route(shared)
        return Output(self.head(self.trunk.finish(shared, gates)), gates, router_logits, routing)

    def expert_layers(self) -> list[LowRankExperts]:
        """Every layer with experts, in forward order."""
        return self.trunk.expert_layers()

    def trainable_state(self) -> dict[str, Tensor]:
        """What training changes: experts, router and head; the frozen backbone is left out."""
        frozen = {name for name, _ in self.trunk.named_buffers()} | {
            name
            for name, parameter in self.trunk.named_parameters()
            if name.split(".")[-1] not in ("u", "s", "v")
        }
        return {k: v for k, v in self.state_dict().items() if k.removeprefix("trunk.") not in frozen}


def build_model(
    config: ModelConfig, *, seed: int = 0, backbone: tuple[TrunkConfig, dict[str, Tensor]] | None = None
) -> OmniAID:
    """An untrained model: experts at their initial state, router and head drawn from `seed`.

    Args:
        config: shapes.
        seed: of the router's and head's first weights (and of LoRA's A).
        backbone: trunk shapes and weights; loaded by `config.backbone` when None.

    Raises:
        ModelError: the backbone's weights cannot be read.
    """
    trunk_config, weights = backbone or load_backbone(config.backbone)
    trunk_config = trunk_config.model_copy(update={"depth": config.depth})
    experts = config.experts.model_copy(update={"num_experts": len(config.expert_names)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OmniAID(config, Trunk(trunk_config, weights, experts, config.taps, seed))
