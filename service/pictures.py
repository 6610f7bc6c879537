"""The little the service itself needs to know about pictures: is it one, and a preview of it."""

import base64
import io
from functools import cache
from importlib.util import find_spec

from PIL import Image, UnidentifiedImageError

from mirage.decode import FORMATS, HEIF_BRANDS, decode

PREVIEW_PX = 640
PROBE_PX = 64


def is_picture(data: bytes) -> bool:
    """Whether the bytes begin like a picture that this installation can decode; no pixel is decoded."""
    if data[4:8] == b"ftyp" and data[8:12] in HEIF_BRANDS:
        return find_spec("pillow_heif") is not None
    Image.init()
    known = [name for name in FORMATS if name in Image.OPEN]
    try:
        with Image.open(io.BytesIO(data), formats=known):
            return True
    except UnidentifiedImageError:
        return False
    except Exception:
        # The header was recognised, its contents are damaged or too large: that is the decoder's to say.
        return True


def thumbnail(data: bytes) -> str:
    """A preview of the picture as it was judged (upright, sRGB, over white), as a `data:` address.

    Raises:
        UnreadableImage: the bytes cannot be decoded.
    """
    image = decode(data).image
    image.thumbnail((PREVIEW_PX, PREVIEW_PX))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@cache
def probe_picture() -> bytes:
    """A tiny PNG with some structure in it, for readiness checks."""
    ramp = Image.linear_gradient("L").resize((PROBE_PX, PROBE_PX))
    buffer = io.BytesIO()
    Image.merge("RGB", (ramp, ramp.transpose(Image.Transpose.ROTATE_90), ramp)).save(buffer, "PNG")
    return buffer.getvalue()
