"""The open watermarks that reference code of Stable Diffusion, SDXL and FLUX writes into pixels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from detector.evidence.findings import Finding

STEP = 36.0
BLOCK = 4
MIN_PIXELS = 256 * 256
# Correlation of the blocks' votes with a message from which it counts as found. By chance a message of
# 32 bits reaches it less than once in a hundred million unrelated votes, longer ones far more rarely.
LEAST_CORRELATION = 0.85
MAX_BLOCKS = 16_384


@dataclass(frozen=True)
class Message:
    """A message that a generator is known to write.

    Attributes:
        bits: 0 or 1 each, repeated over the blocks of the picture.
        source: where the generator's code states it.
    """

    tool: str
    bits: tuple[int, ...]
    source: str


def _from_text(text: str) -> tuple[int, ...]:
    return tuple(int(bit) for bit in np.unpackbits(np.frombuffer(text.encode(), np.uint8)))


def _from_number(number: int) -> tuple[int, ...]:
    # The generators spell the number with bin(), which drops leading zeros: FLUX has 46 bits.
    return tuple(int(bit) for bit in bin(number)[2:])


MESSAGES = (
    Message(
        "Stable Diffusion 1 (reference scripts)",
        _from_text("StableDiffusionV1"),
        "CompVis/stable-diffusion scripts/txt2img.py",
    ),
    Message(
        "Stable Diffusion 2 (reference scripts)",
        _from_text("SDV2"),
        "Stability-AI/stablediffusion scripts/txt2img.py",
    ),
    Message(
        "Stable Diffusion XL",
        _from_number(0b101100111110110010010000011110111011000110011110),
        "Stability-AI/generative-models scripts/demo/streamlit_helpers.py; diffusers "
        "pipelines/stable_diffusion_xl/watermark.py",
    ),
    Message(
        "FLUX (reference code)",
        _from_number(0b001010101111111010000111100111001111010100101110),
        "black-forest-labs/flux src/flux/util.py; black-forest-labs/flux2 src/flux2/watermark.py",
    ),
)


def find_watermarks(image: Image.Image) -> list[Finding]:
    """A row for each known message found in `image` (RGB, as stored: not resized, cropped or turned)."""
    if image.width * image.height < MIN_PIXELS:
        return []
    rows = max(1, MAX_BLOCKS // max(image.width // 8, 1)) * 8
    top = image.crop((0, 0, image.width, min(rows, image.height)))
    best: dict[str, tuple[float, Message]] = {}
    for scores in block_scores(np.asarray(top)).values():
        for message in MESSAGES:
            value = correlate(scores, message.bits)
            if value >= LEAST_CORRELATION and value > best.get(message.tool, (0.0, message))[0]:
                best[message.tool] = value, message
    return [_row(value, message) for value, message in best.values()]


def _row(value: float, message: Message) -> Finding:
    return Finding(
        kind="watermark",
        claim="made_by_ai",
        confidence="embedded",
        text=f"the pixels carry the mark of {message.tool} (correlation {value:.2f})",
        details={"tool": message.tool, "correlation": round(value, 4), "source": message.source},
    )


def correlate(scores: NDArray[np.bool_], bits: tuple[int, ...]) -> float:
    """Correlation of the blocks' votes with a message, -1..1; 0 when there are too few blocks.

    Differs: the reference decoder takes the majority of each bit. Its embedder can lower the value
    that carries a bit below its neighbours, which are then read instead, so that in smooth pictures
    zeros read as ones half of the time and the majority fails. The votes still follow the message.

    Args:
        scores: (N,) what each block says, in reading order.
        bits: the message; block n carries bit n modulo its length.
    """
    votes, wanted = count_votes(scores, len(bits)), np.array(bits, dtype=np.float64)
    if len(scores) < 4 * len(bits) or votes.std() < 1e-3:
        return 0.0
    return float(((votes - votes.mean()) * (wanted - wanted.mean())).mean() / (votes.std() * wanted.std()))


def count_votes(scores: NDArray[np.bool_], length: int) -> NDArray[np.float64]:
    """The share of ones among the blocks of each bit, (length,)."""
    rows = -(-len(scores) // length)
    padded = np.zeros(rows * length)
    padded[: len(scores)] = scores
    counts = np.full(length, len(scores) // length) + (np.arange(length) < len(scores) % length)
    ones: NDArray[np.float64] = padded.reshape(rows, length).sum(axis=0)
    return ones / np.maximum(counts, 1)


def block_scores(pixels: NDArray[np.uint8]) -> dict[str, NDArray[np.bool_]]:
    """What each block says, (N,) per way in which generators hand their pixels to the embedder.

    Args:
        pixels: (H, W, 3) RGB.

    Source: invisible-watermark 0.2.0, `EmbedMaxDct`: the blue-difference channel, one Haar step, blocks
    of 4 x 4 low-pass values, quantisation with step 36 of the largest value but the first. Despite its
    name there is no cosine transform in it.
    Differs: some callers pass floats, whose channel lies around 0.5 and not 128, and some pass RGB
    where BGR is expected; all four combinations are read.
    """
    height, width = pixels.shape[0] // 4 * 4, pixels.shape[1] // 4 * 4
    crop = pixels[:height, :width].astype(np.int32)
    readings = {}
    for order, channels in {"bgr": crop, "rgb": crop[..., ::-1]}.items():
        readings[f"{order} bytes"] = _decide(_low_pass(_difference_bytes(channels)))
        readings[f"{order} floats"] = _decide(_low_pass(_difference_floats(channels)))
    return readings


def _difference_bytes(rgb: NDArray[np.int32]) -> NDArray[np.float64]:
    """The U channel of 8-bit pictures in the fixed-point arithmetic that OpenCV uses, (H, W)."""
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    luma = (blue * 1868 + green * 9617 + red * 4899 + 8192) >> 14
    return np.clip(((blue - luma) * 8061 + (128 << 14) + 8192) >> 14, 0, 255).astype(np.float64)


def _difference_floats(rgb: NDArray[np.int32]) -> NDArray[np.float64]:
    """The U channel of float pictures, which lies around 0.5, (H, W)."""
    luma = 0.299 * rgb[..., 0] + 0.587 * rgb[..., 1] + 0.114 * rgb[..., 2]
    return 0.492 * (rgb[..., 2] - luma) + 0.5


def _low_pass(channel: NDArray[np.float64]) -> NDArray[np.float64]:
    """The approximation band of one orthonormal Haar step, (H/2, W/2)."""
    pairs = channel[0::2] + channel[1::2]
    return (pairs[:, 0::2] + pairs[:, 1::2]) / 2


def _decide(band: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Per block, whether its largest value but the first lies in the upper half of its step, (N,)."""
    rows, columns = band.shape[0] // BLOCK, band.shape[1] // BLOCK
    cut = band[: rows * BLOCK, : columns * BLOCK].reshape(rows, BLOCK, columns, BLOCK)
    blocks = np.abs(cut.transpose(0, 2, 1, 3).reshape(-1, BLOCK * BLOCK)[:, 1:])
    largest = blocks.max(axis=1, initial=0.0)
    return largest % STEP > STEP / 2
