"""The calibration command: a person's own real pictures give his own threshold."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detector.errors import DetectorError
from detector.paths import reason

if TYPE_CHECKING:
    from detector.calibration import Bound
    from detector.card import Thresholds
    from detector.operating_points import FittedThresholds
    from detector.own_pictures import OwnPictures
    from detector.scoring import Detector


def register(app: typer.Typer) -> None:
    """Add the calibration command to `app`."""
    app.command("calibrate")(calibrate)


def calibrate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER_OF_REALS", help="Pictures that are known to be real; searched recursively."
        ),
    ],
    fpr: Annotated[
        float, typer.Option(min=0.0001, max=0.5, help="Largest false-positive rate, e.g. 0.01 for 1 %.")
    ] = 0.01,
    out: Annotated[Path, typer.Option(help="Write the thresholds to this file.")] = Path(
        "my-thresholds.json"
    ),
    model: Annotated[
        Path | None,
        typer.Option(help="ONNX model with its .json card beside it, instead of the packaged one."),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(min=0.5, max=0.999, help="With which the rate holds for further pictures like these."),
    ] = 0.95,
    batch_size: Annotated[int, typer.Option(min=1, max=1024, help="Pictures scored at once.")] = 8,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Default: what CPU affinity and cgroup quota allow.")
    ] = None,
) -> None:
    """Fit the threshold for `ai` to your own real pictures, for `omniaid scan --thresholds`.

    The rate holds, with the confidence stated, for further pictures of the same kind and origin only.
    """
    from detector.commands import require_any
    from detector.output import check_target
    from detector.own_pictures import collect_scores
    from detector.scan import find_inputs
    from detector.scoring import Detector

    if not folder.is_dir():
        raise DetectorError(f"{folder} is not a folder of real pictures")
    check_target(out)
    inputs = require_any(find_inputs([folder]), [folder])
    detector = Detector(model, threads)
    pictures = collect_scores(detector.score_many(inputs, batch_size))
    fitted = fit_thresholds(detector, pictures, fpr, confidence)
    write(fitted, out)
    for line in describe(fitted, detector):
        print(line)
    print(out)


def fit_thresholds(
    detector: "Detector", pictures: "OwnPictures", fpr: float, confidence: float = 0.95
) -> "FittedThresholds":
    """Thresholds whose false-positive rate on pictures like these is at most `fpr` with that confidence.

    Raises:
        DetectorError: there are too few pictures for that rate, or too many at probability 1.
    """
    from detector.calibration import bound_false_positives, pictures_needed
    from detector.operating_points import FittedThresholds

    count, needed = len(pictures.probabilities), pictures_needed(fpr, confidence)
    if count < needed:
        left = sum(pictures.left_out.values())
        raise DetectorError(
            f"a false-positive rate of {fpr:g} with {confidence:.0%} confidence needs at least {needed} "
            f"different real pictures in scope; there are {count} ({left} were left out)"
        )
    bound = bound_false_positives(pictures.probabilities, fpr, confidence)
    if bound is None:
        raise DetectorError(
            f"no threshold gives these {count} pictures a false-positive rate of {fpr:g}: too many of them "
            "have probability 1; look at them with `omniaid scan`"
        )
    return FittedThresholds(
        model=detector.identity,
        thresholds=_thresholds(detector, bound, count, fpr, confidence),
        confidence=confidence,
        pictures=count,
        flagged=bound.flagged,
        left_out=pictures.left_out,
        pictures_sha256=hashlib.sha256("\n".join(pictures.hashes).encode()).hexdigest(),
    )


def _thresholds(
    detector: "Detector", bound: "Bound", count: int, fpr: float, confidence: float
) -> "Thresholds":
    """The card's thresholds with another `ai`; `real` is lowered where it would lie above it."""
    own = detector.card.thresholds
    return own.model_copy(
        update={
            "ai": bound.threshold,
            "real": min(own.real, bound.threshold),
            "false_positive_rate": bound.flagged / count,
            "target": fpr,
            "upper_bound": bound.upper_bound,
            "how": (
                f"`ai` is the lowest probability that {bound.flagged} of {count} real pictures of its owner "
                f"reach; with {confidence:.0%} confidence at most {bound.upper_bound:.2%} of further "
                f"pictures like them do (Clopper-Pearson). `real` is the model card's: {own.how}"
            ),
        }
    )


def describe(fitted: "FittedThresholds", detector: "Detector") -> list[str]:
    """What was fitted, in a few lines for a person."""
    new, own = fitted.thresholds, detector.card.thresholds
    lines = [
        f"{fitted.pictures} real pictures; `ai` from probability {new.ai:.4f} (the model card: {own.ai:.4f})",
        f"{fitted.flagged} of them reach it; with {fitted.confidence:.0%} confidence at most "
        f"{new.upper_bound:.2%} of further pictures like them will",
    ]
    if fitted.left_out:
        lines.append("left out: " + ", ".join(f"{count} {why}" for why, count in fitted.left_out.items()))
    return lines


def write(fitted: "FittedThresholds", out: Path) -> None:
    """Store the thresholds, whole or not at all.

    Raises:
        DetectorError: the file cannot be written.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(fitted.model_dump_json(indent=1) + "\n", "utf-8")
        temporary.replace(out)
    except OSError as error:
        raise DetectorError(f"--out {out} cannot be written: {reason(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)
