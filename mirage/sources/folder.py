"""Pictures in a folder of this machine."""

from collections.abc import Generator
from pathlib import Path
from typing import Literal

from pydantic import Field

from mirage.declarations import SourceBase
from mirage.sources.candidate import (
    EXTENSIONS,
    Candidate,
    MissingSource,
    Surroundings,
    pick,
    printable,
    read_file,
)


class FolderSource(SourceBase):
    """Pictures in a folder; a relative path starts at the recipe's folder."""

    kind: Literal["folder"]
    path: Path
    pattern: str = Field(default="**/*", description="glob below `path`")


def open_folder(source: FolderSource, around: Surroundings) -> Generator[Candidate]:
    """Regular files below a folder that match the pattern and look like pictures by their extension."""
    root = around.recipe_dir / source.path
    if not root.is_dir():
        raise MissingSource(f"source {source.name}: the folder {root} does not exist")
    names = [
        str(path.relative_to(root))
        for path in root.glob(source.pattern)
        if path.suffix.lower() in EXTENSIONS and path.is_file() and not path.is_symlink()
    ]
    for name in sorted(names, key=lambda name: pick(around.seed, name, name)):
        yield read_file(root / name, printable(name), around)
