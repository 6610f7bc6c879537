"""OmniAID: a trunk with experts, the router that weighs them, and the head that decides."""

from typing import Any, Literal, NamedTuple, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from detector.backbones import load_backbone
from detector.card import ARTIFACT
from detector.errors import ModelError
from detector.vit import ExpertConfig, Readout, SharedTokens, Trunk, TrunkConfig
from detector.vit.trunk import unit_variance
from moe_core.experts import LowRankExperts
from moe_core.routing import Routing, top_k

DOMAINS = ("human", "animal", "object", "scene", "anime")
# Field of a recipe written before the router had a section of its own -> its name there.
FORMER_ROUTER_FIELDS = {"router_hidden": "hidden", "router_top_k": "top_k"}


class RouterConfig(BaseModel):
    """How the gates of the semantic experts are decided.

    Attributes:
        mode: what the router reads.
            `two-pass`: the features of the frozen backbone, from a pass of its own (the paper).
            `early`: the class token right before the first block with experts. Nothing is run twice;
            experts sit only in the blocks after it, and it is exactly the frozen backbone's.
            `main`: the class token of block `tap` on the main path: up to there the pass goes on with
            W_main and the one expert whose gate is known without a router, the artifact expert;
            the semantic experts join after `tap`. Nothing is run twice, experts may sit in every
            block, and the path is fixed while the router trains, because experts no longer move then.
        top_k: how many semantic experts a picture goes to.
        hidden: width of the router's hidden layer.
        temperature: T in softmax(logits / T) over the chosen experts.
        tap: the block, counted from 1, that `early` or `main` reads. `early` may leave it out when
            `experts.blocks` says where experts begin, and decides where they begin when that is left out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["two-pass", "early", "main"] = "two-pass"
    top_k: int = Field(default=2, ge=1)
    hidden: int = Field(default=256, ge=1)
    temperature: float = Field(default=1.0, gt=0)
    tap: int | None = Field(default=None, ge=1)


class ModelConfig(BaseModel):
    """Everything that decides the model's shape; stored in every checkpoint.

    Attributes:
        backbone: a name of `detector.backbones.BACKBONES`.
        depth: how many of the backbone's blocks are used; None for all.
        image_px: side of the input; None for the backbone's own. Positions are interpolated.
        features: what the head reads: the class tokens of the blocks in `taps`, or `final`, the
            class token after the final norm, as in the paper.
        taps: blocks, counted from 1; not used with `features: final`.
        mean_taps: blocks, counted from 1, of which the head also reads the mean of the patch tokens.
        artifact_gate: the artifact expert's gate; 1 in the paper, 0 leaves that expert out.
        patch_mean: whether the head also reads the mean of the last block's patch tokens, after the
            final norm where `features` is `final`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str = "clip-vit-b16"
    depth: int | None = Field(default=8, ge=1)
    image_px: int | None = Field(default=None, ge=1)
    features: Literal["taps", "final"] = "taps"
    taps: tuple[int, ...] = (4, 6, 8)
    mean_taps: tuple[int, ...] = ()
    patch_mean: bool = False
    experts: ExpertConfig = ExpertConfig()
    domains: tuple[str, ...] = DOMAINS
    router: RouterConfig = RouterConfig()
    artifact_gate: float = Field(default=1.0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _accept_former_fields(cls, values: Any) -> Any:
        former = FORMER_ROUTER_FIELDS.keys() & values.keys() if isinstance(values, dict) else set()
        if not former:
            return values
        if "router" in values:
            raise ValueError(f"{min(former)} and router are both given; {min(former)} belongs into router")
        kept = {name: value for name, value in values.items() if name not in former}
        return kept | {"router": {FORMER_ROUTER_FIELDS[name]: values[name] for name in former}}

    @model_validator(mode="after")
    def _router_reads_what_there_is(self) -> Self:
        router, blocks = self.router, self.experts.blocks
        if router.top_k > len(self.domains):
            raise ValueError(
                f"router.top_k is {router.top_k}; there are {len(self.domains)} semantic experts"
            )
        if router.mode == "two-pass" and router.tap is not None:
            raise ValueError("router.tap is for the modes early and main; two-pass reads the features")
        if router.mode == "main" and router.tap is None:
            raise ValueError("router.tap is missing; mode main needs the block to read")
        if router.mode == "early":
            self._check_early(router.tap, blocks)
        return self

    def _check_early(self, tap: int | None, blocks: tuple[int, ...] | None) -> None:
        if tap is None and blocks is None:
            raise ValueError("router.tap is missing; mode early needs it or experts.blocks")
        if blocks and tap is not None and tap != min(blocks) - 1:
            raise ValueError(
                f"router.tap is {tap}; mode early reads block {min(blocks) - 1}, right before the first of "
                f"experts.blocks"
            )
        if blocks and min(blocks) == 1:
            raise ValueError("experts.blocks begins with 1; mode early needs a block before the first")

    @property
    def expert_names(self) -> tuple[str, ...]:
        """Names of the gates, in order: the semantic domains, then the artifact expert."""
        return (*self.domains, ARTIFACT)

    @property
    def readout(self) -> Readout:
        """What of the trunk's tokens the head reads."""
        final = self.features == "final"
        return Readout(() if final else self.taps, final, self.patch_mean, self.mean_taps)

    def placed_experts(self, depth: int) -> ExpertConfig:
        """The experts with their number, and with the blocks that the router's mode leaves them."""
        changes: dict[str, Any] = {"num_experts": len(self.expert_names)}
        if self.router.mode == "early" and self.experts.blocks is None and self.router.tap is not None:
            changes["blocks"] = tuple(range(self.router.tap + 1, depth + 1))
        return self.experts.model_copy(update=changes)


class Output(NamedTuple):
    """One forward pass.

    Attributes:
        logits: (B, 2), [real, AI].
        gates: (B, E), the semantic gates (sum 1) and the artifact gate (`artifact_gate`, 1 in the paper).
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

    The artifact expert's gate is the same for every picture; the router weighs the others by what
    `config.router` says.

    Source: OmniAID (arXiv 2511.08423) and its released implementation; `features: final`, experts in all
    blocks and the two-pass router are the paper's.
    Differs: the head may read the class tokens of several middle blocks instead of ln_post(CLS) of the
    last, because the signal is stronger there (measured); the router then reads the same tokens of the
    frozen backbone; blocks before the first with experts are computed once for both passes; the router
    may read the one pass instead of a frozen one.
    """

    def __init__(self, config: ModelConfig, trunk: Trunk) -> None:
        super().__init__()
        self.config, self.trunk = config, trunk
        self.two_pass = config.router.mode == "two-pass"
        read = trunk.feature_width if self.two_pass else trunk.config.width
        self.router = Router(read, config.router.hidden, len(config.domains))
        self.head = Head(trunk.feature_width)

    def read_router(self, shared: SharedTokens) -> tuple[SharedTokens, Tensor]:
        """How far the pass comes without the router, and what the router reads: (B, F_router).

        The router's gradient never reaches what it reads.
        """
        if self.two_pass:
            with torch.no_grad():
                return shared, self.trunk.finish(shared, None)
        led = self.trunk.lead(shared, self.config.artifact_gate)
        return led, unit_variance(led.tokens[:, 0]).detach()

    def route(self, shared: SharedTokens) -> tuple[Tensor, Routing, Tensor]:
        """Router logits (B, E-1), routing, and all gates (B, E) for pictures already in `shared`."""
        return self.route_features(self.read_router(shared)[1])

    def route_features(self, read: Tensor) -> tuple[Tensor, Routing, Tensor]:
        """As `route`, from what the router reads (B, F_router): two-pass, the frozen backbone's features."""
        logits, router = self.router(read), self.config.router
        # A single chosen expert has weight 1 whatever its score: its router learns from its own losses.
        scores = logits.detach() if router.top_k == 1 else logits
        routing = top_k(scores, router.top_k, temperature=router.temperature)
        always = logits.new_full((logits.shape[0], 1), self.config.artifact_gate)
        gates = torch.cat([routing.dense(), always], dim=-1)
        return logits, routing, gates

    def forward(self, pixels: Tensor) -> Output:
        """One pass over views (B, 3, S, S) uint8."""
        led, read = self.read_router(self.trunk.shared(pixels))
        router_logits, routing, gates = self.route_features(read)
        return Output(self.head(self.trunk.finish(led, gates)), gates, router_logits, routing)

    def forward_patches(self, pixels: Tensor) -> tuple[Output, Tensor]:
        """As `forward`, and the head's logits of every patch, row by row: (B, P, 2).

        A patch's token stands where the head reads the class token; see `Trunk.finish_with_patches`.
        """
        led, read = self.read_router(self.trunk.shared(pixels, patches=True))
        router_logits, routing, gates = self.route_features(read)
        features, patches = self.trunk.finish_with_patches(led, gates)
        return Output(self.head(features), gates, router_logits, routing), self.head(patches)

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
        ModelError: the backbone's weights cannot be read, or it lacks what `config` names.
    """
    whole, weights = backbone or load_backbone(config.backbone)
    depth = config.depth or whole.depth
    if depth > whole.depth:
        raise ModelError(f"depth is {depth}; backbone {config.backbone} has {whole.depth} blocks")
    shape = whole.model_copy(update={"depth": depth, "image_px": config.image_px or whole.image_px})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trunk = Trunk(
            shape,
            weights,
            config.placed_experts(depth),
            config.readout,
            seed=seed,
            router_tap=(config.router.tap or 0) if config.router.mode == "main" else 0,
        )
        return OmniAID(config, trunk)
