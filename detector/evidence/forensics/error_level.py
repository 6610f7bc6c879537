"""Error-level analysis: how much each place changes when the picture is compressed once more."""

import io

import numpy as np
from PIL import Image

from detector.evidence.forensics.exhibits import Exhibit, to_image

QUALITY = 90
GAIN = 15.0


def error_level(image: Image.Image) -> Exhibit:
    """The difference between an RGB picture and its JPEG copy of quality 90, fifteen times enlarged.

    Source: N. Krawetz, A Picture's Worth, 2007.
    """
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY, subsampling=0)
    again = np.asarray(Image.open(buffer).convert("RGB"), dtype=np.float64)
    difference = np.abs(np.asarray(image, dtype=np.float64) - again)
    return Exhibit(
        name="error_level",
        image=to_image(difference * GAIN),
        caption=(
            f"Error levels at JPEG quality {QUALITY}. Areas pasted from another file can differ from their "
            "surroundings; so do edges and rich texture in untouched photographs."
        ),
        numbers={
            "mean": round(float(difference.mean()), 4),
            "p99": round(float(np.percentile(difference, 99)), 4),
        },
    )
