"""The example pictures the page offers, and what is known about them."""

import re
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif"}
TABLE_ROW = re.compile(r"^\|\s*`(?P<name>[^`]+)`\s*\|.*\|\s*(?P<truth>[^|:]+)[^|]*\|\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """One picture of known origin.

    Attributes:
        path: of the file.
        truth: what it is, in a word or two ("real", "AI"); empty when nobody wrote it down.
    """

    path: Path
    truth: str = ""

    @property
    def caption(self) -> str:
        """The words in the file's name: `face-beard.webp` gives "face beard"."""
        return re.sub("[-_]+", " ", self.path.stem)


def find_examples(folder: Path) -> list[Example]:
    """The pictures directly in `folder`, by name; none when there is no such folder.

    The truth comes from the last column of the table in the folder's README.md, if there is one.
    """
    if not folder.is_dir():
        return []
    readme = folder / "README.md"
    table = readme.read_text("utf-8") if readme.is_file() else ""
    truths = {row["name"]: row["truth"].strip() for row in TABLE_ROW.finditer(table)}
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    return [Example(path, truths.get(path.name, "")) for path in paths]
