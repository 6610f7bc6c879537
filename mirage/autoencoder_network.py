"""The network of the small autoencoder: 8 x 8 pixels to one latent vector and back.

A linear part with overlapping windows carries the coarse picture and is learnt in a minute; residual
blocks with group norm, and nearest-neighbour upsampling as in the decoders of latent diffusion, add
the rest on top of it. So little training goes a long way on a processor.
"""

from typing import Any, NamedTuple

from pydantic import Field

from mirage.declarations import Part
from mirage.extras import need

FACTOR = 8
GROUPS = 8
START_LOG_VARIANCE = -6.0  # noise of 5 % of the latents' scale, so that it does not drown them at first
LOG_VARIANCE_RANGE = (-20.0, 10.0)


class Shape(Part):
    """Sizes of the network; the defaults have about a million weights."""

    latents: int = Field(default=32, ge=1, description="channels of the latents, at an eighth of the sides")
    widths: tuple[int, int, int] = Field(
        default=(32, 64, 96), description="channels at a half, a quarter and an eighth of the sides"
    )


class Posterior(NamedTuple):
    """The encoder's answer: mean and log variance, each (B, latents, H / 8, W / 8)."""

    mean: Any
    log_variance: Any


def build_autoencoder(shape: Shape) -> Any:
    """A torch module with `encode`, `decode` and, for export, `forward` through the posterior's mean.

    Pixels are (B, 3, H, W) float32 in -1..1 inside, and in 0..1 for `forward`.

    Raises:
        MissingExtra: torch is not installed.
    """
    torch = need("torch", "train")
    nn: Any = torch.nn

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            window = {"kernel_size": 2 * FACTOR, "stride": FACTOR, "padding": FACTOR // 2}
            self.linear_encoder = nn.Conv2d(3, shape.latents, **window)
            self.linear_decoder = nn.ConvTranspose2d(shape.latents, 3, **window)
            self.encoder, self.decoder = _encoder(nn, shape), _decoder(nn, shape)

        def encode(self, pixels: Any, linear_only: bool = False) -> Posterior:
            mean = self.linear_encoder(pixels)
            if linear_only:
                return Posterior(mean, torch.full_like(mean, START_LOG_VARIANCE))
            shift, log_variance = self.encoder(pixels).chunk(2, dim=1)
            return Posterior(mean + shift, (log_variance + START_LOG_VARIANCE).clamp(*LOG_VARIANCE_RANGE))

        def decode(self, latents: Any, linear_only: bool = False) -> Any:
            coarse = self.linear_decoder(latents)
            return coarse if linear_only else coarse + self.decoder(latents)

        def forward(self, pixels: Any) -> Any:
            decoded = self.decode(self.encode(pixels * 2 - 1).mean)
            return (decoded / 2 + 0.5).clamp(0, 1)

    return Autoencoder()


def _encoder(nn: Any, shape: Shape) -> Any:
    _, quarter, eighth = shape.widths
    return nn.Sequential(
        nn.PixelUnshuffle(4),
        nn.Conv2d(48, quarter, 3, padding=1),
        _residual(nn, quarter),
        nn.Conv2d(quarter, eighth, 3, stride=2, padding=1),
        _residual(nn, eighth),
        *_silent_end(nn, eighth, 2 * shape.latents),
    )


def _decoder(nn: Any, shape: Shape) -> Any:
    half, quarter, eighth = shape.widths
    return nn.Sequential(
        nn.Conv2d(shape.latents, eighth, 3, padding=1),
        _residual(nn, eighth),
        _residual(nn, eighth),
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(eighth, quarter, 3, padding=1),
        _residual(nn, quarter),
        nn.Upsample(scale_factor=2, mode="nearest"),
        nn.Conv2d(quarter, half, 3, padding=1),
        _residual(nn, half),
        *_silent_end(nn, half, 12),
        # Convolutions at full size would double the time for little.
        nn.PixelShuffle(2),
    )


def _silent_end(nn: Any, width: int, out: int) -> tuple[Any, ...]:
    """Layers that end in zeros before training, so that the linear part is heard alone at first."""
    last = nn.Conv2d(width, out, 3, padding=1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.GroupNorm(GROUPS, width), nn.SiLU(), last


def _residual(nn: Any, width: int) -> Any:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first = (nn.GroupNorm(GROUPS, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
            self.body = nn.Sequential(*first, *_silent_end(nn, width, width))

        def forward(self, features: Any) -> Any:
            return features + self.body(features)

    return Residual()
