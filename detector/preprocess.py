"""Views: the exact pixels a model sees, made the same way in training, scanning and serving."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

ViewName = Literal["global", "native"]


class Preprocessing(BaseModel):
    """How a picture becomes model input; part of every model card and of every cache key.

    Normalisation (mean and standard deviation) lives inside the exported graph, so that no
    caller can get it wrong: views are plain uint8 pixels.

    Attributes:
        size_px: side of a view.
        views: which views, in order.
        resized_first_px: side of a square that the global view is resized to before `size_px`, for weights
            that were trained that way; None for no such step, and then it is left out when written, so
            that what was stored before this field existed stays the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size_px: int = Field(default=224, ge=16, le=2048)
    views: tuple[ViewName, ...] = ("global", "native")
    resized_first_px: int | None = Field(default=None, ge=16, le=4096, exclude_if=lambda value: value is None)


def global_view(image: Image.Image, size_px: int) -> Image.Image:
    """The whole picture resized straight to a square (aspect not kept), antialiased bicubic.

    Source: OmniAID v2 preprocessing (resize straight to the square).
    """
    return image.resize((size_px, size_px), Image.Resampling.BICUBIC)


def native_view(image: Image.Image, size_px: int) -> Image.Image:
    """The centre square at native resolution, so low-level traces of large pictures survive.

    Of a picture with a side shorter than `size_px`, the whole centre square is enlarged to fit.
    """
    width, height = image.size
    side = min(width, height, size_px)
    left, top = (width - side) // 2, (height - side) // 2
    centre = image.crop((left, top, left + side, top + side))
    return centre if side == size_px else centre.resize((size_px, size_px), Image.Resampling.BICUBIC)


VIEWS: dict[ViewName, Callable[[Image.Image, int], Image.Image]] = {
    "global": global_view,
    "native": native_view,
}


def resize_first(image: Image.Image, name: ViewName, preprocessing: Preprocessing) -> Image.Image:
    """The picture that a view is made from: resized beforehand where the preprocessing says so.

    Only the global view is: what is cut out at native resolution must not be resized.

    Source: OmniAID v1 preprocessing (to a square of 512, then to the input's size).
    """
    side = preprocessing.resized_first_px
    return image if side is None or name != "global" else global_view(image, side)


def make_views(image: Image.Image, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """The picture's views as (V, 3, S, S) uint8, in the order the preprocessing names them.

    Args:
        image: an RGB picture, orientation already applied (see `detector.decode`).
        preprocessing: which views, their side S in pixels, and what is resized beforehand.
    """
    if image.mode != "RGB":
        raise ValueError(f"image mode is {image.mode}; views are made from RGB")
    views = [
        np.asarray(VIEWS[name](resize_first(image, name, preprocessing), preprocessing.size_px))
        for name in preprocessing.views
    ]
    return np.ascontiguousarray(np.stack(views).transpose(0, 3, 1, 2))
