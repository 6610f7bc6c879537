"""The builder: a recipe to an audited data set, resumable after a kill at any moment."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from mirage.assembly import Assembly, Progress, Setting, read_conflicts
from mirage.bias.audit import Audit, AuditSettings, audit
from mirage.claim import claim, lock
from mirage.download.downloads import forget_failures
from mirage.errors import BuildError
from mirage.extras import need
from mirage.index import Index
from mirage.manifest import write_manifest
from mirage.recipe import Recipe, read_recipe
from mirage.shards import clean_up, forget_failed, journals, read_journal, write_atomically
from mirage.workers import open_engine

STATS_FILE = "stats.json"
AUDIT_FILE = "audit.json"
AGAIN = "finished shards are kept, so run the same command again"


class BiasError(BuildError):
    """A finished data set whose labels can be told without looking at a pixel.

    Attributes:
        summary: of the build, which is complete but for this.
    """

    def __init__(self, folder: Path, summary: "Summary") -> None:
        why = "; ".join(summary.complaints)
        super().__init__(f"{folder} is refused: {why}; give the recipe `align`, or allow the bias")
        self.summary = summary


@dataclass(frozen=True)
class Summary:
    """What a build saw and did.

    Attributes:
        counts: of rows by status; `seen` is the sum of the others.
        conflicts: sentences about like pictures with opposite labels.
        skipped: sentences about sources that were not on this machine.
        complaints: of the bias audit, if the recipe wants one: sentences about splits that headers solve.
    """

    counts: dict[str, int]
    conflicts: tuple[str, ...]
    skipped: tuple[str, ...]
    complaints: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The counts, which add up."""
        counts = self.counts
        return (
            f"seen {counts['seen']} = kept {counts['kept']} + rejected {counts['rejected']} "
            f"+ duplicate {counts['duplicate']}"
        )


def build(
    recipe_path: Path,
    folder: Path,
    *,
    mirrors: Path | None = None,
    engine: str = "local",
    workers: int = 1,
    address: str | None = None,
    skip_missing: bool = False,
    resume: bool = True,
    retry_failed: bool = False,
    allow_bias: bool = False,
    on_progress: Progress | None = None,
) -> Summary:
    """The summary of a data set built in `folder`; what an earlier run finished is not done again.

    Args:
        recipe_path: a YAML recipe; it may have grown since an earlier run.
        folder: where shards, journals and the manifest go; made when missing.
        mirrors: the folder that holds bare clones of the git sources.
        engine: what runs the workers, a key of `mirage.workers.ENGINES`.
        workers: processes that decode; 0 decodes in this one.
        address: of a running cluster, for engines that use one.
        skip_missing: go on without sources that are not on this machine.
        resume: go on with what the folder holds; otherwise it must be empty.
        retry_failed: try again what failed in an earlier run for reasons that may have passed.
        allow_bias: return also when headers alone tell real from AI.
        on_progress: called after each file with source name, its place and the number of sources.

    Raises:
        RecipeError: the recipe, or a source it names, cannot be used.
        BiasError: the data set is complete, but headers alone tell real from AI.
        BuildError: the folder holds another build, or cannot be written.
    """
    recipe = read_recipe(recipe_path)
    need("pyarrow")
    setting = Setting(folder, recipe_path.parent, mirrors, skip_missing, on_progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not resume and any(folder.iterdir()):
            raise BuildError(
                f"{folder} is not empty; resume the build that it holds, or choose another folder"
            )
        with lock(folder):
            claim(folder, recipe)
            clean_up(folder)
            if retry_failed:
                forget_failed(folder)
                forget_failures(folder / "downloads" / "urls")
            with (
                closing(Index(folder)) as index,
                open_engine(engine, workers, recipe.timeout_s, address) as running,
            ):
                assembly = Assembly(recipe, setting, index)
                assembly.work(running)
            write_manifest(folder)
            summary = _summarise(folder, recipe, assembly.skipped)
    except OSError as error:
        raise BuildError(f"{error.filename or folder}: {error.strerror or error}; {AGAIN}") from error
    except sqlite3.Error as error:
        raise BuildError(f"{folder}: {error}; {AGAIN}") from error
    if summary.complaints and not allow_bias:
        raise BiasError(folder, summary)
    return summary


def _summarise(folder: Path, recipe: Recipe, skipped: list[str]) -> Summary:
    counts: Counter[str] = Counter(seen=0, kept=0, rejected=0, duplicate=0)
    for path in journals(folder):
        for row in read_journal(path):
            counts.update(("seen", row["status"]))
    conflicts = tuple(sorted(read_conflicts(folder)))
    stats = {"counts": dict(counts), "conflicts": conflicts, "skipped": skipped}
    write_atomically(folder / STATS_FILE, json.dumps(stats, ensure_ascii=False, indent=1).encode("utf-8"))
    complaints: tuple[str, ...] = ()
    if recipe.audit and counts["kept"]:
        found = write_audit(folder, seed=recipe.seed)
        complaints = found.complaints(recipe.audit.max_auc, recipe.audit.splits)
    return Summary(dict(counts), conflicts, tuple(skipped), complaints)


def write_audit(folder: Path, *, seed: int = 0) -> Audit:
    """The bias audit of a data set's splits, also written into its folder as `audit.json`.

    Raises:
        BuildError: the folder holds no finished shard.
    """
    found = audit(folder, settings=AuditSettings(seed=seed))
    write_atomically(folder / AUDIT_FILE, found.model_dump_json(indent=1).encode("utf-8"))
    return found
