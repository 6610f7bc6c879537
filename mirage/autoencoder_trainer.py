"""Training of the small autoencoder: first its linear part alone, then all of it.

Source: Rombach et al. 2022, arXiv 2112.10752, appendix G: the KL-regularised autoencoder.
Differs: no perceptual loss, which needs a pretrained network, and no critic, which needs more
training than a processor gives: it shifts colours long before it sharpens. Differences between
neighbouring pixels and the strength of fine texture are compared instead.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from mirage.autoencoder_crops import Crops, CropSettings, draw_batch
from mirage.autoencoder_network import FACTOR, Shape, build_autoencoder
from mirage.declarations import Part
from mirage.errors import BuildError
from mirage.extras import need
from mirage.shards import TEMPORARY, publish

CHECKPOINT_EVERY = 200
WARM_UP_STEPS = 50
FINAL_RATE = 0.02  # of the learning rate, at the end of its cosine
GRADIENT_NORM = 1.0

Loss = dict[str, float]


class Training(Part):
    """How the autoencoder is trained."""

    seed: int = Field(default=0, ge=0)
    steps: int = Field(default=6000, ge=1, description="of the whole network, after the linear part's own")
    linear_steps: int = Field(default=2500, ge=0, description="of the linear part alone")
    batch: int = Field(default=8, ge=1)
    window_px: int = Field(default=64, ge=16, multiple_of=8)
    rate: float = Field(default=6e-4, gt=0)
    linear_rate: float = Field(default=1e-2, gt=0)
    edge_weight: float = Field(default=0.5, ge=0, description="of differences between neighbouring pixels")
    texture_weight: float = Field(
        default=4.0, ge=0, description="of the strength of fine texture, where and how it runs left free"
    )
    divergence_weight: float = Field(default=1e-4, ge=0, description="of the KL divergence per pixel value")
    shape: Shape = Shape()
    crops: CropSettings = CropSettings()


@dataclass(frozen=True)
class Progress:
    """Where training stands: steps done, of how many, and the last step's losses."""

    step: int
    steps: int
    losses: Loss


class Trainer:
    """The network, its optimiser, and the step they are at."""

    def __init__(self, training: Training, crops: Crops, checkpoint: Path) -> None:
        """Trainer that continues from `checkpoint`, if there is one.

        Raises:
            BuildError: the checkpoint is of another training, or a window does not fit a crop.
        """
        if training.window_px > crops.train.shape[1]:
            raise BuildError(
                f"windows of {training.window_px} px do not fit crops of {crops.train.shape[1]} px"
            )
        self.training, self.crops, self.checkpoint = training, crops, checkpoint
        torch = self.torch = need("torch", "train")
        self.network = build_autoencoder(training.shape).to(memory_format=torch.channels_last)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=training.rate, betas=(0.9, 0.99))
        self.step = 0
        self._load()

    @property
    def steps(self) -> int:
        """Of both phases."""
        return self.training.linear_steps + self.training.steps

    def run(self, on_progress: Callable[[Progress], None]) -> None:
        """Train to the end."""
        while self.step < self.steps:
            losses = self._advance()
            self.step += 1
            if self.step % CHECKPOINT_EVERY == 0 or self.step == self.steps:
                self._save()
            on_progress(Progress(self.step, self.steps, losses))

    def _advance(self) -> Loss:
        """The losses of one step, whose randomness depends on the seed and its number alone."""
        torch, training = self.torch, self.training
        seeds = (training.seed, self.step)
        linear_only = self.step < training.linear_steps
        batch = draw_batch(self.crops.train, training.window_px, training.batch, seeds)
        pixels = torch.from_numpy(batch).contiguous(memory_format=torch.channels_last)
        noise = np.random.default_rng([*seeds, 1]).standard_normal(self._latent_shape(), np.float32)
        mean, log_variance = self.network.encode(pixels, linear_only)
        decoded = self.network.decode(mean + torch.from_numpy(noise) * (log_variance / 2).exp(), linear_only)
        error = (decoded - pixels).abs().mean()
        edges = _edge_error(decoded - pixels)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum() / (2 * pixels.numel())
        loss = error + training.edge_weight * edges
        losses = {"error": error, "edges": edges, "divergence": divergence}
        if not linear_only:
            losses["texture"] = self._texture_error(decoded, pixels)
            loss = loss + training.texture_weight * losses["texture"]
        self._descend(loss + training.divergence_weight * divergence)
        return {name: float(value.detach()) for name, value in losses.items()}

    def _texture_error(self, decoded: Any, pixels: Any) -> Any:
        """How far apart the strength of fine texture is, over squares of 7 px.

        A network that must be right about every pixel leaves out what it cannot know, and blurs. Here
        only the amount counts, so texture of its own making is better than none.
        """
        pool = self.torch.nn.functional.avg_pool2d
        pairs = zip(_fine_bands(decoded), _fine_bands(pixels), strict=True)
        return sum((pool(ours.abs(), 7, 4) - pool(theirs.abs(), 7, 4)).abs().mean() for ours, theirs in pairs)

    def _latent_shape(self) -> tuple[int, ...]:
        side = self.training.window_px // FACTOR
        return (self.training.batch, self.training.shape.latents, side, side)

    def _descend(self, loss: Any) -> None:
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate()
        self.optimiser.zero_grad()
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.network.parameters(), GRADIENT_NORM)
        self.optimiser.step()

    def _rate(self) -> float:
        """Of this step: a short warm-up and a cosine in each phase."""
        training = self.training
        if self.step < training.linear_steps:
            step, steps, rate = self.step, training.linear_steps, training.linear_rate
        else:
            step, steps, rate = self.step - training.linear_steps, training.steps, training.rate
        cosine = FINAL_RATE + (1 - FINAL_RATE) * (1 + math.cos(math.pi * step / steps)) / 2
        return rate * min(1, (step + 1) / WARM_UP_STEPS) * cosine

    def _identity(self) -> dict[str, str]:
        """What must be equal for a checkpoint to be continued."""
        return {"training": self.training.model_dump_json(), "data": self.crops.digest}

    def _save(self) -> None:
        temporary = self.checkpoint.with_name(self.checkpoint.name + TEMPORARY)
        parts = {"network": self.network.state_dict(), "optimiser": self.optimiser.state_dict()}
        self.torch.save(self._identity() | parts | {"step": self.step}, temporary)
        publish(temporary, self.checkpoint)

    def _load(self) -> None:
        if not self.checkpoint.exists():
            return
        saved = self.torch.load(self.checkpoint, weights_only=True)
        if {name: saved.get(name) for name in self._identity()} != self._identity():
            raise BuildError(
                f"{self.checkpoint} belongs to another training; delete it or choose another --out"
            )
        self.network.load_state_dict(saved["network"])
        self.optimiser.load_state_dict(saved["optimiser"])
        self.step = saved["step"]


def _edge_error(difference: Any) -> Any:
    """Mean absolute difference of the neighbours' differences: what is blurred counts here."""
    across = difference[..., 1:] - difference[..., :-1]
    down = difference[..., 1:, :] - difference[..., :-1, :]
    return across.abs().mean() + down.abs().mean()


def _fine_bands(pixels: Any) -> tuple[Any, Any, Any]:
    """The diagonal, horizontal and vertical detail of each 2 x 2 square."""
    across = pixels[..., 1:] - pixels[..., :-1]
    down = pixels[..., 1:, :] - pixels[..., :-1, :]
    return (
        across[..., 1:, :] - across[..., :-1, :],
        across[..., 1:, :] + across[..., :-1, :],
        down[..., 1:] + down[..., :-1],
    )
