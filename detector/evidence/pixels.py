"""The stored pixels of a file: not turned, not colour-managed, alpha kept, for checks that need them so."""

import io
import warnings

from PIL import Image

from detector.evidence.containers import Layout

READERS = {
    "JPEG": ("JPEG", "MPO"),
    "PNG": ("PNG",),
    "WEBP": ("WEBP",),
    "GIF": ("GIF",),
    "TIFF": ("TIFF",),
    "HEIF": ("AVIF",),
}


def open_raw(data: bytes, layout: Layout, max_pixels: int) -> tuple[Image.Image | None, str]:
    """The first frame as stored, or None and the reason in one sentence.

    HEIC is left out: no generator's watermark survives it, and its previews are not EXIF ones.
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns of large pictures; the limit here is our own, checked before decoding.
            warnings.simplefilter("ignore")
            opened = Image.open(io.BytesIO(data), formats=READERS[layout.container])
            if opened.width * opened.height > max_pixels:
                return None, f"the picture has more than {max_pixels:,} pixels"
            opened.load()
    except Exception as error:
        # Pillow's readers raise almost any exception on damaged bytes.
        return None, f"the pixels cannot be decoded: {type(error).__name__}"
    return opened, ""
