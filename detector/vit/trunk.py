"""A Vision Transformer trunk whose projections carry low-rank experts."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from detector.errors import ModelError
from detector.vit.embeddings import Embeddings, frozen_norm
from detector.vit.layers import Block
from detector.vit.shapes import ExpertConfig, TrunkConfig
from detector.vit.weights import block_weights
from moe_core.experts import LowRankExperts


class Readout(NamedTuple):
    """What of the tokens becomes the features.

    Attributes:
        taps: blocks, counted from 1, whose class token is read, each scaled to mean 0 and variance 1.
        final: read the class token after the final norm instead, as the paper does; `taps` is empty.
        patch_mean: add the mean of the last block's patch tokens, normalised in the same way.
        mean_taps: blocks, counted from 1, of which the mean of the patch tokens, each scaled to mean 0 and
            variance 1, is read.
    """

    taps: tuple[int, ...]
    final: bool = False
    patch_mean: bool = False
    mean_taps: tuple[int, ...] = ()


class SharedTokens(NamedTuple):
    """How far one pass has come; at first what the frozen first blocks give, whatever the gates.

    Attributes:
        tokens: (B, T, D) input of the first block still to run.
        tapped: (B, N * D) what was read of the blocks passed so far, block after block: the unit-variance
            class token of a tap, then the mean of a mean tap's unit-variance patch tokens.
        patches: (B, P, N * D) unit-variance patch tokens in the same places, where they were asked for.
        done: how many blocks have run; None for all before the first with experts.
    """

    tokens: Tensor
    tapped: Tensor
    patches: Tensor | None = None
    done: int | None = None


class Trunk(nn.Module):
    """The first blocks of an image tower, giving features of chosen blocks."""

    mean: Tensor
    std: Tensor
    known: Tensor

    def __init__(
        self,
        config: TrunkConfig,
        weights: dict[str, Tensor],
        experts: ExpertConfig,
        readout: Readout,
        *,
        seed: int = 0,
        router_tap: int = 0,
    ) -> None:
        """Trunk with `weights` under the internal names (see `detector.vit.weights`).

        Args:
            config: structure; `config.depth` blocks are built.
            weights: weights of the image tower; more blocks than `depth` may be there.
            experts: what to put on the projections.
            readout: what becomes the features.
            seed: of LoRA initialisation; SVD experts need none.
            router_tap: up to this block only the last expert's gate counts, because the router, which
                reads there, has not decided on the others yet; 0 when all gates are known before.

        Raises:
            ModelError: `experts` or `readout` names blocks, or a norm, that the trunk does not have, or
                no block that is read is left to the experts.
        """
        super().__init__()
        self.last_block = (
            config.depth
            if readout.final or readout.patch_mean
            else max(readout.taps + readout.mean_taps, default=0)
        )
        _check(config, experts, readout, self.last_block, router_tap)
        self.config, self.readout, self.router_tap = config, readout, router_tap
        self.checkpointing = False
        self.embeddings = Embeddings(config, weights)
        self.blocks = nn.ModuleList(
            Block(block_weights(weights, index), config, experts, index + 1, seed * config.depth + index)
            for index in range(config.depth)
        )
        self.final_norm = frozen_norm(config, weights, "post_layernorm") if readout.final else None
        self.first_expert_block = next(n for n in range(1, config.depth + 1) if experts.has(n))
        self.register_buffer("mean", torch.tensor(config.mean).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(config.std).view(1, 3, 1, 1) * 255)
        known = torch.arange(experts.num_experts) == experts.num_experts - 1
        self.register_buffer("known", known.float(), persistent=False)

    @property
    def taps(self) -> tuple[int, ...]:
        """Blocks, counted from 1, whose class token is a feature; empty when the final one is."""
        return self.readout.taps

    @property
    def feature_width(self) -> int:
        """F, the number of features."""
        reads = len(self.taps) + len(self.readout.mean_taps) + self.readout.final + self.readout.patch_mean
        return reads * self.config.width

    @property
    def shared_width(self) -> int:
        """How many of the features come from taps before the first block with experts."""
        read = (*self.taps, *self.readout.mean_taps)
        return sum(tap < self.first_expert_block for tap in read) * self.config.width

    def token_count(self, size_px: int) -> int:
        """T, the tokens of an input with sides of `size_px`."""
        return (size_px // self.config.patch_px) ** 2 + self.config.prefix

    def expert_layers(self) -> list[LowRankExperts]:
        """Every layer with experts, in forward order."""
        return [module for module in self.modules() if isinstance(module, LowRankExperts)]

    def shared(self, pixels: Tensor, *, patches: bool = False) -> SharedTokens:
        """The frozen part before the first block with experts.

        Args:
            pixels: (B, 3, S, S) uint8 (or float in 0..255).
            patches: keep the patch tokens of the taps too, for `finish_with_patches`.
        """
        x = self.embeddings((pixels.float() - self.mean) / self.std)
        tapped = x.new_zeros(x.shape[0], 0, dtype=torch.float32)
        kept = x.new_zeros(x.shape[0], x.shape[1] - self.config.prefix, 0) if patches else None
        return self._run(SharedTokens(x, tapped, kept, 0), self.first_expert_block - 1, None)

    def lead(self, shared: SharedTokens, gate: float = 1.0) -> SharedTokens:
        """The pass as far as it goes without the router: up to `router_tap`, with the last expert alone.

        Args:
            shared: what `shared` gave.
            gate: of the last expert.
        """
        gates = (self.known * gate).expand(shared.tokens.shape[0], -1)
        return self._run(shared, max(self.router_tap, self._done(shared)), gates)

    def finish(self, shared: SharedTokens, gates: Tensor | None) -> Tensor:
        """Features (B, F): what the taps read or the final class token, then the last patches' mean.

        Args:
            shared: what `shared` or `lead` gave.
            gates: (B, E), or None for the frozen backbone without experts.
        """
        return self._features(self._run(shared._replace(patches=None), self.last_block, gates))

    def finish_with_patches(self, shared: SharedTokens, gates: Tensor | None) -> tuple[Tensor, Tensor]:
        """Features (B, F) as `finish` gives them, and the like for every patch: (B, P, F).

        A patch's own token stands where the class token is read. Where the patches' mean is a feature,
        the class token stays and the patch stands for the mean, so that the mean over patches of any
        linear score is the picture's score.

        Args:
            shared: what `shared(pixels, patches=True)` gave, or `lead` after it.
            gates: (B, E), or None for the frozen backbone without experts.

        Raises:
            ModelError: the shared tokens were made without patches.
        """
        if shared.patches is None:
            raise ModelError("the shared tokens hold no patches; make them with shared(pixels, patches=True)")
        state = self._run(shared, self.last_block, gates)
        features, own = self._features(state), self._last(state)[:, self.config.prefix :]
        if self.readout.patch_mean:
            whole = features[:, None, : -self.config.width].expand(-1, own.shape[1], -1)
            return features, torch.cat([whole, own], dim=-1)
        return features, own if self.readout.final or state.patches is None else state.patches

    def forward(self, pixels: Tensor, gates: Tensor | None = None) -> Tensor:
        """`finish` after `shared`."""
        return self.finish(self.shared(pixels), gates)

    def _features(self, state: SharedTokens) -> Tensor:
        parts = [state.tapped]
        if self.readout.final or self.readout.patch_mean:
            last = self._last(state)
            parts += [last[:, 0]] if self.readout.final else []
            parts += [last[:, self.config.prefix :].mean(dim=1)] if self.readout.patch_mean else []
        return torch.cat(parts, dim=-1)

    def _last(self, state: SharedTokens) -> Tensor:
        """The last block's tokens, normalised."""
        return (
            unit_variance(state.tokens) if self.final_norm is None else self.final_norm(state.tokens).float()
        )

    def _done(self, state: SharedTokens) -> int:
        return self.first_expert_block - 1 if state.done is None else state.done

    def _run(self, state: SharedTokens, last: int, gates: Tensor | None) -> SharedTokens:
        """The pass after block number `last`."""
        x, tapped = state.tokens, [state.tapped]
        patches = [] if state.patches is None else [state.patches]
        whole = state.patches is not None or self.readout.patch_mean
        everything = whole or self.last_block in self.readout.mean_taps
        rotation = self.embeddings.rotation(x.shape[1] - self.config.prefix)
        for number in range(self._done(state) + 1, last + 1):
            # After the last block only the class token is read, so only its query is computed.
            queries = 1 if number == self.last_block and not everything else None
            x = self._block(number, x, self._gates(number, gates), rotation, queries)
            reads, own = self._read(number, x, patches=state.patches is not None)
            tapped += reads
            patches += own
        joined = None if state.patches is None else torch.cat(patches, dim=-1)
        return SharedTokens(x, torch.cat(tapped, dim=-1), joined, max(last, self._done(state)))

    def _read(self, number: int, x: Tensor, *, patches: bool) -> tuple[list[Tensor], list[Tensor]]:
        """What is read of block `number`, and the patch tokens that stand in the same places."""
        class_token, mean = number in self.taps, number in self.readout.mean_taps
        reads = [unit_variance(x[:, 0])] if class_token else []
        if not (mean or (class_token and patches)):
            return reads, []
        own = unit_variance(x[:, self.config.prefix :])
        reads += [own.mean(dim=1)] if mean else []
        return reads, [own] * (class_token + mean) if patches else []

    def _gates(self, number: int, gates: Tensor | None) -> Tensor | None:
        """The gates that count in block `number`."""
        return gates if gates is None or number > self.router_tap else gates * self.known

    def _block(
        self, number: int, x: Tensor, gates: Tensor | None, rotation: Tensor | None, queries: int | None
    ) -> Tensor:
        block = self.blocks[number - 1]
        if self.checkpointing and torch.is_grad_enabled() and number >= self.first_expert_block:
            return checkpoint(block, x, gates, rotation, queries, use_reentrant=False)
        return block(x, gates, rotation, queries)


def unit_variance(x: Tensor) -> Tensor:
    """Tokens (..., D) shifted and scaled to mean 0 and variance 1, in float32."""
    return F.layer_norm(x.float(), x.shape[-1:])


def _check(config: TrunkConfig, experts: ExpertConfig, readout: Readout, last: int, tap: int) -> None:
    """Make sure that what is named is there, and that experts sit where they are read."""
    named = {"experts.blocks": experts.blocks or (), "taps": readout.taps, "mean_taps": readout.mean_taps}
    for place, numbers in named.items():
        outside = [number for number in numbers if not 1 <= number <= config.depth]
        if outside:
            raise ModelError(f"{place} names block {outside[0]}; the trunk has blocks 1..{config.depth}")
    if readout.final and not config.final_norm:
        raise ModelError("features: final needs a backbone with a final norm; this one has none")
    if not last:
        raise ModelError("taps and mean_taps are empty; at least one block must be read")
    if not any(experts.has(number) for number in range(1, last + 1)):
        raise ModelError(f"experts.blocks names none of the blocks 1..{last} that are read")
    if tap >= last:
        raise ModelError(f"router.tap is {tap}; no block of 1..{last} is left to the semantic experts")
