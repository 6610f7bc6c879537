"""The command that imports released checkpoints; torch is imported when it runs, never before."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from detector.errors import DetectorError


class Variant(StrEnum):
    """How a release's pictures are resized."""

    V1 = "v1"
    V2 = "v2"


def register(app: typer.Typer) -> None:
    """Add the import command to `app`."""
    app.command("import")(import_checkpoint)


def import_checkpoint(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="A .pth file of the OmniAID release.")
    ],
    backbone: Annotated[
        str,
        typer.Option(
            help="The backbone it was trained on: clip-vit-l14-336, dinov3-vit-l16 (both need no weights of "
            "their own), or any name that a training recipe may give."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for model.safetensors and model.json.")],
    variant: Annotated[
        Variant | None,
        typer.Option(
            help="v2: pictures resized straight to the square; v1: to 512 px first. "
            "Default: what the file's name ends with."
        ),
    ] = None,
    domains: Annotated[
        str | None,
        typer.Option(
            help="Names of the semantic experts, separated by commas; needed unless there are 3 or 6 experts."
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            min=1, help="Semantic experts per picture; default: 2 where there are 6 experts, 1 where 3."
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the input in pixels; only for backbones with rotary positions."),
    ] = None,
) -> None:
    """Turn a released checkpoint into safetensors and JSON, strictly: every tensor must be the expected one.

    Nothing in CHECKPOINT is executed. The imported model computes what the released one does.
    """
    try:
        from detector.released import Choices, import_release
    except ImportError as error:
        raise DetectorError(f"importing needs {error.name}; run: pip install 'omniaid[train]'") from error

    names = None if domains is None else tuple(name.strip() for name in domains.split(","))
    choices = Choices(None if variant is None else variant.value, names, top_k, size)
    release = import_release(checkpoint, backbone, out, choices)
    sizes = release.sizes
    print(
        f"{sizes.experts} {sizes.kind} experts of rank {sizes.rank}, router {sizes.hidden} wide, "
        f"input {release.model.trunk.config.image_px} px; deviation {release.deviation:.1e}",
        file=sys.stderr,
    )
    print(out / "model.safetensors")
