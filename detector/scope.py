"""Which pictures the detector is not made for: too small, blank, screenshots and documents.

Everything is read off the pixels of thin strips, so the cost does not grow with the picture. The model
never sees what is decided here, and what is decided here never sees the model's score.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

STRIP_PX = 8
MOST_STRIPS, MOST_PIXELS = 24, 200_000
FLAT_RANGE, SHARP_RANGE = 2, 96
EDGE, STRONG_EDGE = 16, 40
LONG_RUN_PX, LONG_LINE_PX = 24, 64
POLICY = (
    "Blank pictures: nearly all of the picture has one colour.",
    "Screenshots and documents, where even areas, level edges and long lines give them away without doubt: "
    "about 4 in 10 screenshots of programs, 2 in 10 after strong recompression; fewer than 1 in 100 "
    "photographs, drawings and AI pictures of sources that the rule was not made on.",
    "What is not recognised is judged as if it were a picture: scans on uneven paper and screenshots of "
    "games or photographs are practically never recognised.",
)


class Traits(NamedTuple):
    """What the strips of a picture are like; every value is a share between 0 and 1.

    Attributes:
        equal: horizontal neighbours of equal brightness.
        near: horizontal neighbours at most two levels apart.
        runs: pixels in horizontal runs of at least 24 px with steps of at most one level.
        flat: 8 x 8 blocks that span at most two levels.
        one_colour: all blocks that are flat in the commonest colour of flat blocks.
        three_colours: all blocks that are flat in one of the three commonest colours.
        sharp: blocks that span more than 96 levels, as text and lines do.
        texture: blocks that span 5 to 48 levels, as surfaces in photographs do.
        upright: edge pixels that belong to upright edges, at the same place in all rows of a strip.
        level: edge pixels that belong to level edges, over whole blocks.
        long_lines: strips crossed by a level edge of at least 64 px.
        changes: horizontal neighbours more than 40 levels apart.
        paper: flat blocks that are nearly white.
        colour: mean distance between the largest and the smallest channel.
        contrast: standard deviation of the brightness.
    """

    equal: float
    near: float
    runs: float
    flat: float
    one_colour: float
    three_colours: float
    sharp: float
    texture: float
    upright: float
    level: float
    long_lines: float
    changes: float
    paper: float
    colour: float
    contrast: float


def cut_strips(image: Image.Image) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Strips of an RGB picture, evenly spaced from top to bottom, W a multiple of 8.

    Returns:
        Brightness (K, 8, W), and the colours of every eighth pixel (K, W / 8, 3).
    """
    width = image.width // STRIP_PX * STRIP_PX
    fit = min(MOST_STRIPS, image.height // STRIP_PX, max(1, MOST_PIXELS // (STRIP_PX * width)))
    tops = np.linspace(0, image.height - STRIP_PX, fit).round().astype(int)
    strips = [image.crop((0, top, width, top + STRIP_PX)) for top in tops.tolist()]
    grey = np.stack([np.asarray(strip.convert("L")) for strip in strips])
    return grey, np.stack([np.asarray(strip.crop((0, 0, width, 1)))[0, ::STRIP_PX] for strip in strips])


def read_traits(image: Image.Image) -> Traits:
    """The traits of an RGB picture of at least 8 x 8 px."""
    grey, colours = cut_strips(image)
    signed = grey.astype(np.int16)
    across, down = np.diff(signed, axis=2), np.diff(signed, axis=1)
    steps = np.abs(across)
    tall = np.stack([grey.max(axis=1), grey.min(axis=1)]).reshape(2, len(grey), -1, STRIP_PX)
    span = tall[0].max(axis=2) - tall[1].min(axis=2)
    flat = span <= FLAT_RANGE
    counts = np.bincount((colours[flat] >> 3) @ np.array([1024, 32, 1]), minlength=3)
    common = np.sort(np.partition(counts, -3)[-3:]) / flat.size
    return Traits(
        equal=_share(steps == 0),
        near=_share(steps <= 2),
        runs=_long_runs(steps[:, 3] <= 1),
        flat=_share(flat),
        one_colour=float(common[-1]),
        three_colours=float(common.sum()),
        sharp=_share(span > SHARP_RANGE),
        texture=_share((span > 4) & (span <= 48)),
        upright=_aligned(across, axis=1),
        level=_aligned(down.reshape(*down.shape[:2], -1, STRIP_PX), axis=3),
        long_lines=_long_lines(down),
        changes=_share(steps > STRONG_EDGE),
        paper=_share(flat & (tall[1].min(axis=2) >= 235)),
        colour=float((colours.max(axis=2) - colours.min(axis=2)).mean() / 255),
        contrast=float(grey[:, ::4, ::4].std() / 255),
    )


def _share(mask: NDArray[np.bool_]) -> float:
    return float(np.count_nonzero(mask) / mask.size)


def _long_runs(same: NDArray[np.bool_], least: int = LONG_RUN_PX) -> float:
    """Share of places in runs of at least `least` along the last axis."""
    padded = np.zeros((len(same), same.shape[1] + 2), np.int8)
    padded[:, 1:-1] = same
    turns = np.diff(padded.ravel())
    lengths = np.flatnonzero(turns == -1) - np.flatnonzero(turns == 1)
    return float(lengths[lengths >= least].sum() / same.size)


def _aligned(steps: NDArray[np.int16], axis: int) -> float:
    """Share of edge pixels in edges of one direction that go on for 8 px along `axis`."""
    rising, falling = steps >= EDGE, steps <= -EDGE
    edges = np.count_nonzero(rising) + np.count_nonzero(falling)
    whole = np.count_nonzero(rising.all(axis=axis)) + np.count_nonzero(falling.all(axis=axis))
    return float(whole * steps.shape[axis] / edges) if edges else 0.0


def _long_lines(down: NDArray[np.int16]) -> float:
    """Share of strips with a level edge of one direction of at least 64 px."""
    if down.shape[2] < LONG_LINE_PX:
        return 0.0
    # Any 64 px hold seven whole blocks of 8, so whole blocks are enough to look at.
    blocks = down.reshape(*down.shape[:2], -1, STRIP_PX)
    found = np.zeros(len(down), bool)
    for edges in (blocks >= EDGE, blocks <= -EDGE):
        whole: NDArray[np.bool_] = np.all(edges, axis=3)
        length = LONG_LINE_PX // STRIP_PX - 1
        ends = whole.shape[2] - length + 1
        lines = np.stack([whole[:, :, start : ends + start] for start in range(length)])
        found |= np.any(np.all(lines, axis=0), axis=(1, 2))
    return float(found.mean())


# A logistic regression on half of 110 screenshots of programs and 577 pictures of training sources, clean and
# degraded, rounded. The limit is a cautious one: it calls 1 of 205 pictures of other sources (photographs,
# drawings, AI pictures) out of scope, and none of them after the strongest degradation. The price: of the
# other half of the screenshots it finds 39 % (as a web copy 30 %, degraded 20 %), of 45 scanned receipts and
# of 20 screenshots of a game none, of 40 screenshots of node editors none (degraded: 3).
WEIGHTS: dict[str, float] = {
    "runs": 5.8,
    "flat": 1.3,
    "sharp": 4.0,
    "texture": 1.4,
    "level": 3.3,
    "long_lines": 4.6,
    "colour": -5.4,
}
OFFSET = -5.0
LEAST_RESEMBLANCE = 3.4
BLANK_CONTRAST = 0.012  # three of 255 levels


def why_out_of_scope(image: Image.Image) -> tuple[str, ...]:
    """One sentence for each reason not to judge an RGB picture by its pixels; empty for pictures in scope."""
    if min(image.size) < STRIP_PX:
        return ()  # too small for anything; the card's least size says so
    traits = read_traits(image)
    if traits.contrast < BLANK_CONTRAST:
        return ("The picture is blank: nearly all of it has one colour, so there is nothing to judge.",)
    if resemblance(traits) < LEAST_RESEMBLANCE:
        return ()
    return (
        f"It looks like a screenshot or a document: {traits.runs:.0%} of its pixels lie in even runs "
        f"and {traits.long_lines:.0%} of its strips hold long level lines; the model is not made for those.",
    )


def resemblance(traits: Traits) -> float:
    """How much a picture resembles screenshots and documents; higher is more."""
    return OFFSET + sum(weight * getattr(traits, name) for name, weight in WEIGHTS.items())


def too_small(shorter_side_px: int, least_px: int) -> tuple[str, ...]:
    """The reason when a picture's shorter side is below what the model's card asks for."""
    if shorter_side_px >= least_px:
        return ()
    return (
        f"Insufficient resolution: the shorter side has {shorter_side_px} px, and below {least_px} px the "
        "model has not been shown to be reliable.",
    )
