"""Whether an embedded preview shows the picture it is embedded in."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin

from detector.evidence.carriers import Metadata
from detector.evidence.findings import Finding, Place

SIDE = 32
# Below this the preview shows another picture or a much edited one.
LEAST_CORRELATION = 0.6
MAX_PREVIEW_PIXELS = 1_000_000


def find_thumbnails(metadata: Metadata, image: Image.Image) -> list[Finding]:
    """A row for each EXIF preview: whether it agrees with `image` (RGB) in content."""
    rows = []
    for exif, place in metadata.exif:
        if not exif.thumbnail:
            continue
        preview = _decode(exif.thumbnail)
        if preview is None:
            continue
        agreement = similarity(image, preview)
        if agreement is not None:
            rows.append(_row(agreement, preview, place))
    return rows


def _decode(data: bytes) -> Image.Image | None:
    """The preview as RGB, or None when it is damaged: a broken preview says nothing."""
    try:
        opened = JpegImagePlugin.JpegImageFile(io.BytesIO(data))
        if opened.width * opened.height > MAX_PREVIEW_PIXELS or min(opened.size) < 16:
            return None
        return opened.convert("RGB")
    except Exception:
        # Pillow's readers raise almost any exception on damaged bytes.
        return None


def similarity(image: Image.Image, preview: Image.Image) -> float | None:
    """Best correlation of brightness over the four turns, -1..1; None when one of them is flat.

    A preview may keep black bars around another aspect ratio, and the picture may have been turned
    since; both are tried.
    """
    best = None
    small = image.reduce(_factor(image))
    for turned in (small.rotate(angle, expand=True) for angle in (0, 90, 180, 270)):
        for shown in (preview, _without_bars(preview, turned.width / turned.height)):
            value = _correlation(_grey(turned), _grey(shown))
            if value is not None and (best is None or value > best):
                best = value
    return best


def _factor(image: Image.Image) -> int:
    return max(1, min(image.size) // 128)


def _without_bars(preview: Image.Image, aspect: float) -> Image.Image:
    """The centre of `preview` that has the given aspect ratio (width / height)."""
    width, height = preview.size
    if width / height > aspect:
        inner = max(1, round(height * aspect))
        return preview.crop(((width - inner) // 2, 0, (width - inner) // 2 + inner, height))
    inner = max(1, round(width / aspect))
    return preview.crop((0, (height - inner) // 2, width, (height - inner) // 2 + inner))


def _grey(image: Image.Image) -> NDArray[np.float64]:
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64)


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    if first.std() < 2 or second.std() < 2:
        return None
    return float(((first - first.mean()) * (second - second.mean())).mean() / (first.std() * second.std()))


def _row(agreement: float, preview: Image.Image, place: Place) -> Finding:
    same = agreement >= LEAST_CORRELATION
    text = (
        f"the embedded preview ({preview.width} x {preview.height} px) "
        + ("shows the same picture" if same else "shows another picture, or this one before it was changed")
        + f" (correlation {agreement:.2f})"
    )
    return Finding(
        kind="thumbnail",
        claim="none" if same else "edited",
        confidence="hint",
        text=text,
        place=place,
        details={"correlation": round(agreement, 4), "differs": not same},
    )
