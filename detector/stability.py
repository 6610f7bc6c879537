"""Whether a verdict survives what happens to pictures on their way: encoded again, resized."""

from collections.abc import Callable

from PIL import Image

from detector.report import Stability, Verdict
from mirage.transforms import jpeg, resize

REENCODINGS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "jpeg-95": lambda image: jpeg(image, 95),
    "jpeg-80": lambda image: jpeg(image, 80),
    "resize-0.75": lambda image: resize(image, 0.75),
}
# Lossless: the same pixels and hence the same score, so there is nothing to encode and score again.
LOSSLESS = "png"


def reencode(image: Image.Image) -> list[Image.Image]:
    """The decoded picture after each of the re-encodings, in their order."""
    return [encode(image) for encode in REENCODINGS.values()]


def compare(own: tuple[float, Verdict], others: list[tuple[float, Verdict]]) -> Stability:
    """What the re-encodings did.

    Args:
        own: probability and verdict of the picture as it is.
        others: of the re-encodings, in their order.
    """
    named = dict(zip((LOSSLESS, *REENCODINGS), (own, *others), strict=True))
    probabilities = {name: probability for name, (probability, _) in named.items()}
    return Stability(
        probabilities=probabilities,
        spread=max(probabilities.values()) - min(probabilities.values()),
        flips=tuple(name for name, (_, verdict) in named.items() if verdict != own[1]),
    )
