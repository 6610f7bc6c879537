"""The dataset card: a README with a Hugging Face header, plots and contact sheets, and the page beside it."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mirage.cards.counts import Counts, count
from mirage.cards.gallery import write_gallery
from mirage.cards.markdown import escape
from mirage.cards.plots import Plot, draw
from mirage.cards.reasons import CONFLICT, NEAR_COPY, classify, other_side
from mirage.cards.sections import (
    aligning,
    auditing,
    contents,
    introduction,
    licences,
    limits,
    qualities,
    rebuilding,
    refusals,
    splitting,
)
from mirage.cards.tables import NAMES, splits_of
from mirage.cards.thumbnails import Row, Selection, write_sheet, write_thumbnails
from mirage.errors import BuildError
from mirage.extras import need
from mirage.manifest import read_manifest
from mirage.shards import write_atomically

CARD, FOLDER = "README.md", "card"
COUNTS_FILE = "counts.json"
THUMBNAILS, PAGE = "thumbnails", "index.html"
BUILD_FILE, STATS_FILE, AUDIT_FILE = "build.json", "stats.json", "audit.json"
MARK = "<!-- Written by `omniaid mirage card`; changes by hand are lost. -->"
SHEET_PICTURES, PAGE_PICTURES, DISPUTED_PICTURES = 48, 4000, 400
TAGS = ("ai-generated-image-detection", "synthetic-images", "image-forensics", "webdataset")


def write_card(folder: Path, *, out: Path | None = None, pictures: bool = True, workers: int = 1) -> Path:
    """The path of the card written for the data set in `folder`, beside a folder `card` with its plots.

    Args:
        folder: a finished data set.
        out: where the card goes; the data set's own folder when None.
        pictures: whether contact sheets and the page's thumbnails are made. Without them the card
            holds numbers and drawings only, so it may be passed on.
        workers: processes that decode.

    Raises:
        BuildError: the folder holds no data set, `out` holds something else, or pictures would leave
            the data set's folder.
    """
    target = out or folder
    inside = target.resolve() == folder.resolve()
    if pictures and not inside:
        raise BuildError(f"pictures stay in {folder}, because rights are mixed; write to {out} without them")
    try:
        _check_free(target)
        counts = count(folder, headers=True)
        fresh = target / f".{FOLDER}-new"
        shutil.rmtree(fresh, ignore_errors=True)
        plots = draw(counts, fresh)
        (fresh / COUNTS_FILE).write_text(counts.model_dump_json(indent=1), "utf-8")
        shown, thumbnails, sheets = _make_pictures(folder, fresh, workers) if pictures else ([], {}, {})
        if inside:
            write_gallery(folder, fresh / PAGE, counts, shown, thumbnails, plots)
        text = compose(folder, counts, plots, sheets)
        shutil.rmtree(target / FOLDER, ignore_errors=True)
        fresh.replace(target / FOLDER)
        write_atomically(target / CARD, text.encode("utf-8"))
    except OSError as error:
        raise BuildError(f"{error.filename or target}: {error.strerror or error}") from error
    return target / CARD


def _check_free(target: Path) -> None:
    """Make sure that nothing but an earlier card is overwritten."""
    readme, folder = target / CARD, target / FOLDER
    if readme.exists() and MARK not in readme.read_text("utf-8", "replace"):
        raise BuildError(
            f"{readme} is not a card written by this command; move it away or choose another --out"
        )
    if folder.exists() and not (folder / COUNTS_FILE).exists():
        raise BuildError(f"{folder} holds other files than a card's; move it away or choose another --out")


def _make_pictures(
    folder: Path, fresh: Path, workers: int
) -> tuple[list[Row], dict[str, str], dict[str, str]]:
    """The rows shown, their thumbnails by key, and the contact sheets' file names by title."""
    on_page, on_sheets = _select(folder)
    rows = {row["key"]: row for chosen in (on_page, *on_sheets.values()) for row in chosen}
    thumbnails = write_thumbnails(folder, list(rows.values()), fresh / THUMBNAILS, workers)
    sheets = {}
    for (split, label), chosen in on_sheets.items():
        tiles = [
            (fresh / THUMBNAILS / thumbnails[row["key"]], row["generator"] or "")
            for row in chosen
            if row["key"] in thumbnails
        ]
        if tiles:
            name = f"sheet-{split}-{label}.webp"
            write_sheet(fresh / name, tiles)
            sheets[f"{NAMES.get(label, label)} pictures of {split}"] = name
    return list(rows.values()), thumbnails, sheets


def _select(folder: Path) -> tuple[list[Row], dict[tuple[str, str], list[Row]]]:
    """The rows for the page, and for the contact sheet of each split and class."""
    page, disputed = Selection(PAGE_PICTURES), Selection(DISPUTED_PICTURES)
    sheets: dict[tuple[str, str], Selection] = {}
    others = {other_side(row["reason"]) for row in read_manifest(folder) if _is_disputed(row)}
    for row in read_manifest(folder):
        if row["status"] != "kept":
            continue
        split, label, generator = row["split"], row["label"], row.get("generator") or ""
        page.add((split, label, row["source"], generator), row)
        sheets.setdefault((split, label), Selection(SHEET_PICTURES)).add((generator,), row)
        if (row["source"], row["path"]) in others:
            disputed.add((), row)
    on_sheets = {cell: selection.rows() for cell, selection in sheets.items()}
    return page.rows() + disputed.rows(), on_sheets


def _is_disputed(row: Row) -> bool:
    """Whether a person should see the kept picture that this one repeats."""
    return row["status"] == "duplicate" and classify(row["reason"] or "") in (CONFLICT, NEAR_COPY)


def compose(folder: Path, counts: Counts, plots: Sequence[Plot], sheets: dict[str, str]) -> str:
    """The card's text: the YAML header and the Markdown below it.

    Args:
        folder: of the data set.
        counts: its numbers.
        plots: drawn beside the card, in the folder `card`.
        sheets: title -> file name of each contact sheet in the folder `card`.
    """
    build, stats = _read_json(folder / BUILD_FILE), _read_json(folder / STATS_FILE)
    images = {plot.path.stem: f"![{plot.text}]({FOLDER}/{plot.path.name})\n" for plot in plots}
    sections = {
        "": introduction(counts),
        "Rebuild it": rebuilding(build, counts, digest_shards(folder)),
        "Splits": splitting(build, counts) + _with(images, "splits", "timeline"),
        "Contents": contents(counts) + _with(images, "domains", "generators"),
        "Sizes and codecs": aligning(build) + "\n" + qualities(counts) + _with(images, "sizes", "quality"),
        "Bias audit": auditing(_read_json(folder / AUDIT_FILE), build),
        "Not kept": refusals(counts, stats.get("conflicts", [])),
        "Known limits": limits(counts),
        "Sources and licences": licences(counts),
    }
    if sheets:
        sections["Contact sheets"] = "\n".join(
            f"![{title}]({FOLDER}/{name})\n\n*{title[:1].upper()}{title[1:]}, evenly from its generators.*\n"
            for title, name in sheets.items()
        )
    name = str(build.get("recipe") or folder.resolve().name)
    body = "".join(f"## {title}\n\n{text}\n" if title else f"{text}\n" for title, text in sections.items())
    return f"---\n{_header(name, counts)}---\n\n{MARK}\n\n# {escape(name)}\n\n{body.rstrip()}\n"


def _with(images: dict[str, str], *names: str) -> str:
    return "".join(f"\n{images[name]}" for name in names if name in images)


def _header(name: str, counts: Counts) -> str:
    """The YAML that the Hugging Face hub and its `datasets` library read."""
    formats = sorted({group.stored_format for group in counts.groups})
    features = [{"name": name, "dtype": "image"} for name in formats]
    features += [{"name": "json", "dtype": "json"}]
    features += [{"name": name, "dtype": "string"} for name in ("__key__", "__url__")]
    files = [{"split": split, "path": f"{split}-*.tar"} for split in splits_of(counts)]
    content = {
        "pretty_name": name,
        "license": "other",
        "license_name": "mixed-per-source",
        "task_categories": ["image-classification"],
        "size_categories": [size_category(counts.kept)],
        "annotations_creators": ["found"],
        "tags": list(TAGS),
        "configs": [{"config_name": "default", "data_files": files}],
        # Without it `datasets` expects every picture in the format of the first.
        "dataset_info": {"features": features},
    }
    return str(need("yaml").safe_dump(content, sort_keys=False, allow_unicode=True))


def size_category(pictures: int) -> str:
    """The hub's name for a number of samples, such as 10K<n<100K."""
    names = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    place = sum(pictures >= 1000 * 10**power for power in range(len(names)))
    if place == 0:
        return "n<1K"
    return f"{names[place - 1]}<n<{names[place]}" if place < len(names) else "n>1T"


def digest_shards(folder: Path) -> str | None:
    """The sha256 over the lines of `sha256sum *.tar`; None when a shard has no recorded checksum."""
    lines = []
    for path in sorted(folder.glob("*.tar")):
        known = _read_json(path.with_name(f"{path.name}.json"))
        if "sha256" not in known:
            return None
        lines.append(f"{known['sha256']}  {path.name}\n")
    return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest() if lines else None


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of the data set; empty when there is no such file.

    Raises:
        BuildError: the file is no JSON object.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BuildError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise BuildError(f"{path} holds {type(content).__name__}; it must be an object")
    return content
