"""Another published detector on the same pictures, for the comparison that a model card owes its readers.

`sahu65` (MIT) ships its weights in its package, so anybody can repeat the comparison. Both detectors get the
same decoded pixels: it reads them from a lossless file without metadata, so signed provenance, which it
also looks at, has no say.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from detector.decode import decode_picture
from detector.errors import UnscorableImage
from detector.evaluation.predictions import Prediction, write_predictions
from detector.evaluation.samples import Pictures, Sample
from mirage.extras import need
from mirage.transforms import TRANSFORMS

# Its words, and ours for the same.
VERDICTS = {
    "likely_ai": "ai",
    "ai_generated_verified": "ai",
    "likely_real": "real",
    "inconclusive": "uncertain",
}
Progress = Callable[[int, int], None]


def score_outside(
    pictures: Pictures,
    transforms: Sequence[str],
    out: Path,
    on_progress: Progress = lambda done, total: None,
) -> Path:
    """The file of the outside detector's predictions: one row per picture and transform.

    It is a baseline for `omniaid eval --baseline sahu65=FILE`, and a comparison for `omniaid card`.

    Args:
        pictures: of `evaluation.samples.open_pictures`, the same as for our own model.
        transforms: names of `TRANSFORMS`.
        out: a Parquet file.
        on_progress: called with the rows done and the rows in all.

    Raises:
        MissingExtra: the package is not installed.
    """
    detector = load_detector()
    total = len(pictures.samples) * len(transforms)
    rows: list[Prediction] = []
    for sample in pictures.samples:
        rows += _score_sample(detector, pictures, sample, transforms)
        on_progress(len(rows), total)
    write_predictions(rows, out)
    return out


def load_detector() -> Any:
    """The `sahu65` detector, its weights loaded.

    Raises:
        MissingExtra: the package is not installed.
    """
    return need("sahu65", "compare").LocalDetector().warm()


def score_image(detector: Any, image: Image.Image) -> dict[str, Any]:
    """What the outside detector says of an RGB picture: probability, verdict, or an error."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    try:
        found = detector.detect_bytes(buffer.getvalue())
    except Exception as error:
        # A stranger's code may raise anything; the row says what, and the run goes on.
        return {"error": f"sahu65 failed: {' '.join(str(error).split()) or type(error).__name__}"}
    # Its raw probability: later steps of its own never change the order of two pictures.
    return {"probability": float(found.detector_probability), "verdict": VERDICTS[found.verdict]}


def _score_sample(
    detector: Any, pictures: Pictures, sample: Sample, transforms: Sequence[str]
) -> Iterator[Prediction]:
    image, problem = None, ""
    try:
        image = decode_picture(pictures.read(sample)).image
    except UnscorableImage as error:
        problem = str(error)
    for name in transforms:
        row: Prediction = asdict(sample) | {
            "transform": name,
            "probability": None,
            "verdict": "",
            "error": "",
        }
        if image is None:
            yield row | {"error": problem}
            continue
        changed = None
        with suppress(OSError, ValueError):  # what Pillow's encoders raise, for example on too many pixels
            changed = TRANSFORMS[name](image)
        if changed is None:
            yield row | {"error": f"transform {name} failed"}
            continue
        yield row | {"width": changed.width, "height": changed.height} | score_image(detector, changed)
