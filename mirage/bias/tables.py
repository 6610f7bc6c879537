"""The audit for a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mirage.bias.audit import Audit, SplitAudit

SHOWN = 8


def audit_table(found: Audit) -> RenderableType:
    """One table over the splits, then the leaking features and easiest sources of each."""
    splits = Table(
        "split", "real", "AI", "judged by", "AUC", "macro AUC", "by picture", title="Headers alone"
    )
    for name, split in found.splits.items():
        numbers = (_shown(split.auc), _shown(split.macro_auc), _shown(split.auc_by_picture))
        splits.add_row(
            name,
            str(split.pictures.get("real", 0)),
            str(split.pictures.get("ai", 0)),
            split.judged_by,
            *numbers,
        )
    details = [part for name, split in found.splits.items() for part in _details(name, split)]
    return Group(splits, *details)


def _details(name: str, split: SplitAudit) -> list[RenderableType]:
    leaks = Table("feature", "drop when shuffled", "AUC alone", title=f"{name}: what gives the label away")
    for leak in split.leaks[:SHOWN]:
        leaks.add_row(leak.feature, _shown(leak.drop), _shown(leak.auc))
    sources = Table("source", "label", "pictures", "right", title=f"{name}: sources that are easiest to tell")
    for source in split.easiest_sources[:SHOWN]:
        sources.add_row(source.source, source.label, str(source.pictures), _shown(source.right))
    note = [Text(f"{name}: {split.note}")] if split.note else []
    return [*note, *([leaks] if split.leaks else []), *([sources] if split.easiest_sources else [])]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
