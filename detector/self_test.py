"""Known scores that a model must give again before it serves: broken and constant models are refused."""

import base64
import io
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from detector.card import KnownScore, ModelCard, SelfTest
from detector.errors import ModelError
from detector.preprocess import Preprocessing, make_views

SIDE_PX = 48
TOLERANCE = 0.05
LEAST_DIFFERENCE = 1e-5
ScoreViews = Callable[[NDArray[np.uint8]], tuple[NDArray[np.float32], NDArray[np.float32]]]


def make_self_test(score_views: ScoreViews, preprocessing: Preprocessing) -> SelfTest:
    """The self-test of a model: of a few made pictures, the two whose margins lie farthest apart.

    Args:
        score_views: of the model, as in `Runtime`.
        preprocessing: of its card.

    Raises:
        ModelError: the model gives all of them nearly the same score.
    """
    pictures = _made_pictures()
    margins = _margins(score_views, pictures, preprocessing)
    low, high = int(margins.argmin()), int(margins.argmax())
    difference = float(margins[high] - margins[low])
    if difference <= 100 * LEAST_DIFFERENCE:
        raise ModelError(
            f"the model's scores of {len(pictures)} different pictures differ by {difference:.2g}; "
            "a self-test of a constant model would mean nothing"
        )
    known = tuple(
        KnownScore(png=_to_png(pictures[place]), margin=round(float(margins[place]), 6))
        for place in (low, high)
    )
    return SelfTest(pictures=known, tolerance=min(TOLERANCE, difference / 4))


def check_answers(score_views: ScoreViews, card: ModelCard) -> None:
    """Refuse a model that does not give the card's known scores, or the same score for everything.

    Raises:
        ModelError: it does not pass.
    """
    test, name = card.self_test, f"model {card.name} {card.version}"
    if test is not None and test.why_none:
        return
    pictures = _made_pictures()[:2] if test is None else [_from_png(one.png, name) for one in test.pictures]
    margins = _margins(score_views, pictures, card.preprocessing)
    if np.ptp(margins) <= LEAST_DIFFERENCE:
        raise ModelError(f"{name} gives every picture the same score and must not be used; install it again")
    if test is None:
        return
    for place, one in enumerate(test.pictures):
        if not abs(margins[place] - one.margin) <= test.tolerance:
            raise ModelError(
                f"{name} scores picture {place + 1} of its self-test {margins[place]:.4f}, but its card says "
                f"{one.margin:.4f}; model, card or onnxruntime is broken here, and it must not be used"
            )


def _margins(
    score_views: ScoreViews, pictures: Sequence[Image.Image], preprocessing: Preprocessing
) -> NDArray[np.float64]:
    """AI-minus-real logits (N,) of the pictures' first views, in one inference to keep starting quick."""
    first = preprocessing.model_copy(update={"views": preprocessing.views[:1]})
    logits, _ = score_views(np.concatenate([make_views(picture, first) for picture in pictures]))
    return (logits[:, 1] - logits[:, 0]).astype(np.float64)


def _made_pictures() -> list[Image.Image]:
    """Six tiny pictures of very different kinds; integers alone, so that all machines make the same."""
    y, x = np.mgrid[0:SIDE_PX, 0:SIDE_PX]
    rng = np.random.default_rng(65)
    smooth = np.stack([x * 5, y * 5, (x + y) * 2], axis=-1)
    grain = rng.integers(0, 256, (SIDE_PX, SIDE_PX, 3))
    squares = np.where((x // 6 + y // 6)[..., None] % 2, (230, 60, 40), (30, 90, 200))
    rings = ((x - 24) ** 2 + (y - 24) ** 2)[..., None] // np.array([2, 3, 5]) % 256
    shapes = (squares, grain, smooth, smooth * 3 // 4 + grain // 4, rings, 255 - smooth)
    return [Image.fromarray(shape.astype(np.uint8)) for shape in shapes]


def _to_png(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _from_png(text: str, name: str) -> Image.Image:
    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=["PNG"]) as picture:
            return picture.convert("RGB")
    except (ValueError, OSError, SyntaxError) as error:
        raise ModelError(f"a self-test picture in the card of {name} is no PNG file in base64") from error
