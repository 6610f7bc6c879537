"""From raw bytes to a begun report and the decoded picture: what scanning and serving do alike."""

import hashlib

from detector.decode import decode_picture
from detector.errors import UnscorableImage
from detector.report import ImageReport, ModelIdentity
from detector.scope import why_out_of_scope
from mirage.decode import Limits, Picture


def open_picture(
    data: bytes, name: str, limits: Limits, identity: ModelIdentity
) -> tuple[ImageReport, Picture | None]:
    """The report as far as it goes without the model, and the picture; for a bad one an error and None.

    Args:
        data: the file.
        name: printable, for the report.
        limits: what a picture may cost.
        identity: of the model that will judge it.
    """
    digest = hashlib.sha256(data).hexdigest()
    try:
        picture = decode_picture(data, limits)
    except UnscorableImage as error:
        return refuse(name, str(error), identity, digest), None
    report = ImageReport(
        path=name,
        sha256=digest,
        status="ok",
        width=picture.width,
        height=picture.height,
        format=picture.format,
        warnings=picture.warnings,
        model=identity,
        reasons=why_out_of_scope(picture.image),
    )
    return report, picture


def refuse(name: str, reason: str, identity: ModelIdentity, digest: str | None = None) -> ImageReport:
    """The report on what cannot be scored; `digest` is the SHA-256 of its bytes, where there are any."""
    return ImageReport(path=name, sha256=digest, status="error", error=reason, model=identity)
