"""Write tests/golden/regression.jsonl anew: verdict bands of the shipped model, by content hash.

    python tests/golden/make_regression.py --data DIR

DIR is a data set built from the recipe `mirage-open`. The committed examples are always part of it. A release
that moves a band runs this and says in the changelog which bands moved.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from detector import Detector  # noqa: E402
from detector.report import ImageReport  # noqa: E402

EXAMPLES = ROOT / "examples"
GOLDEN = Path(__file__).with_name("regression.jsonl")
PICTURES = {".jpg", ".png", ".webp"}
PER_SOURCE = 12


def main() -> None:
    """Score the examples and, when given, pictures of the data set; write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a data set built by `omniaid mirage build`")
    parser.add_argument("--split", default="devtest")
    parser.add_argument("--per-source", type=int, default=PER_SOURCE, help="pictures per source and class")
    parser.add_argument("--model", type=Path, help="default: the packaged model")
    parser.add_argument("--out", type=Path, default=GOLDEN)
    options = parser.parse_args()
    detector = Detector(options.model)
    rows = [example_row(detector, path) for path in example_pictures()]
    if options.data is not None:
        rows += data_rows(detector, options.data, options.split, options.per_source)
    head = {"model": detector.identity.model_dump(), "thresholds": thresholds(detector)}
    text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in (head, *rows))
    options.out.write_text(text, "utf-8")
    print(f"{len(rows)} rows in {options.out}")


def thresholds(detector: Detector) -> dict[str, float]:
    """The bands' edges."""
    return {"ai": detector.card.thresholds.ai, "real": detector.card.thresholds.real}


def example_pictures() -> list[Path]:
    """The committed pictures."""
    return sorted(path for path in EXAMPLES.iterdir() if path.suffix in PICTURES)


def example_row(detector: Detector, path: Path) -> dict[str, Any]:
    """The row of a committed picture."""
    return row(detector.score(path.read_bytes(), path.name), f"examples/{path.name}")


def data_rows(detector: Detector, data: Path, split: str, per_source: int) -> Iterator[dict[str, Any]]:
    """Rows of a data set's pictures, at most `per_source` of each source and class."""
    from detector.evaluation.samples import open_pictures

    pictures = open_pictures(data, split=split, limit_per_source=per_source)
    for sample in pictures.samples:
        yield row(detector.score(pictures.read(sample), sample.key), sample.source)


def row(report: ImageReport, source: str) -> dict[str, Any]:
    """What is kept of a report: no name of a file of others, only a hash and the band."""
    probability = None if report.probability is None else round(report.probability, 4)
    band = report.verdict or "error"
    return {"sha256": report.sha256, "source": source, "band": band, "probability": probability}


if __name__ == "__main__":
    main()
