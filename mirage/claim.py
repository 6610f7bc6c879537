"""The claim of a folder: one build at a time, of one recipe that may grow but not change."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mirage.errors import BuildError
from mirage.extras import need
from mirage.recipe import Recipe
from mirage.shards import write_atomically

BUILD_FILE = "build.json"
DECIDING = ("pillow", "numpy", "imagehash")  # other versions may decode, draw or hash otherwise
FREE = {"sources", "audit", "timeout_s"}  # settings that change no stored picture
LOCK_FILE = ".lock"


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """The folder for one process alone; the lock goes with the process, however it ends.

    Raises:
        BuildError: another build works in the folder.
    """
    filelock = need("filelock")
    guard = filelock.FileLock(folder / LOCK_FILE, timeout=0)
    try:
        guard.acquire()
    except filelock.Timeout as error:
        raise BuildError(f"another build is at work in {folder}") from error
    try:
        yield
    finally:
        guard.release()


def claim(folder: Path, recipe: Recipe) -> None:
    """Note in the folder whose build it holds.

    A recipe that continues one built before may have new sources at its end and higher caps; all
    else would make the finished shards and the new ones differ in kind.

    Raises:
        BuildError: the folder holds the build of a recipe that this one does not continue.
    """
    path = folder / BUILD_FILE
    content = json.loads(recipe.model_dump_json())
    if path.exists():
        before = json.loads(path.read_text("utf-8")).get("content", {})
        if difference := _difference(before, content):
            raise BuildError(
                f"{folder} holds a build of another recipe: {difference}; choose another --out or delete it"
            )
    record = {
        "recipe": recipe.name,
        "recipe_sha256": digest(recipe),
        "seed": recipe.seed,
        "versions": {package: version(package) for package in DECIDING},
        "content": content,
    }
    write_atomically(path, json.dumps(record, ensure_ascii=False, indent=1).encode("utf-8"))


def digest(recipe: Recipe) -> str:
    """The sha256 of the recipe's meaning, whatever its file looks like."""
    content = json.loads(recipe.model_dump_json())
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8")).hexdigest()


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What forbids to go on, a few words; None when the recipe has only grown."""
    for name in now:
        if name not in FREE and before.get(name) != now[name]:
            return f"its {name} differs"
    old = before.get("sources", [])
    if len(now["sources"]) < len(old):
        return f"it has {len(old)} sources, this one {len(now['sources'])}"
    for was, source in zip(old, now["sources"], strict=False):
        if was | {"cap": None} != source | {"cap": None}:
            return f"its source {was['name']} differs"
        if (source["cap"] or float("inf")) < (was["cap"] or float("inf")):
            return f"its source {was['name']} has a higher cap"
    return None
