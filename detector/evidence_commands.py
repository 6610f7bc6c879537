"""The evidence command: what files say of their own origin, one JSON line per input."""

import json
from pathlib import Path
from typing import Annotated

import typer

from detector.errors import UnscorableImage
from detector.paths import printable, visible

EXIT_ERRORS = 3
EPILOG = "Exit codes: 0 every file was read; 2 wrong usage; 3 at least one file could not be read."


def register(app: typer.Typer) -> None:
    """Add the evidence command to `app`."""
    app.command("evidence", epilog=EPILOG)(evidence)


def evidence(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Picture files.")],
    redact_prompts: Annotated[
        bool, typer.Option("--redact-prompts", help="Give a prompt's length and sha256 instead of its text.")
    ] = False,
    trust_list: Annotated[
        Path | None, typer.Option(help="PEM file of trusted C2PA signers, instead of the bundled list.")
    ] = None,
    pixels: Annotated[bool, typer.Option(help="Also look into the pixels: watermarks, thumbnails.")] = True,
) -> None:
    """Read what the raw bytes say about a picture's origin: signed provenance, metadata, watermarks.

    It is evidence beside the pixels' verdict and never part of it; what is absent says nothing.
    """
    from detector.decode import read_bytes
    from detector.evidence import EvidenceOptions, examine

    options = EvidenceOptions(redact_prompts=redact_prompts, trust_list=trust_list, pixels=pixels)
    failed = False
    for path in files:
        try:
            row = examine(read_bytes(path, options.max_bytes), options).model_dump(mode="json")
        except UnscorableImage as error:
            failed, row = True, {"error": str(error)}
        print(visible(json.dumps({"path": printable(path)} | row, ensure_ascii=False)))
    if failed:
        raise typer.Exit(EXIT_ERRORS)
