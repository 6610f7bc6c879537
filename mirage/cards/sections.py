"""The sections of a dataset card: Markdown made from counts, the build's record and the audit."""

import re
from collections.abc import Sequence
from typing import Any

from mirage.cards.counts import LABELS, Counts, SourceCounts
from mirage.cards.markdown import escape, link, render, render_ready
from mirage.cards.tables import (
    NAMES,
    domain_table,
    field_table,
    generator_table,
    outcome,
    reason_table,
    split_table,
    splits_of,
    spread_table,
)

Record = dict[str, Any]
NO_LICENCE = re.compile(r"^(none|not stated|unknown|no licen[cs]e)\b", re.IGNORECASE)
MOST_NAMED, MOST_EASY = 20, 5


def introduction(counts: Counts) -> str:
    """What the data set is, one paragraph."""
    made = sum(entry.label == "ai" for entry in counts.generators)
    by_label = {label: counts.by("label").get((label,), 0) for label in LABELS}
    dates = f" released from {counts.released[0]} to {counts.released[1]}" if counts.released else ""
    pairs = f" {counts.pairs:,} real crops stand beside their reconstructions." if counts.pairs else ""
    return (
        f"{counts.kept:,} pictures ({counts.bytes / 1e9:.1f} GB) for telling AI-made pictures from others: "
        f"{by_label['real']:,} real ones and {by_label['ai']:,} made by {made} generators{dates}, "
        f"from {len(counts.sources)} sources.{pairs} They are stored as WebDataset shards: "
        "each sample is a picture and a JSON file with its label, generator, domain, split and provenance. "
        "`manifest.parquet` has one row for every picture seen, kept or not.\n"
    )


def rebuilding(build: Record, counts: Counts, digest: str | None) -> str:
    """How to make the same data set again, and how to tell that it is the same."""
    name = str(build.get("recipe", "RECIPE"))
    repos = len({source.repo for source in counts.sources if source.repo})
    clones = f" CLONES holds bare clones of the {repos} repositories below." if repos else ""
    facts = {
        "recipe": f"`{name}`",
        "sha256 of the recipe": f"`{build.get('recipe_sha256', 'not recorded')}`",
        "seed": str(build.get("seed", "that of the recipe")),
        "sha256 over all shards": f"`{digest}`" if digest else "not recorded",
    } | {f"version of {key}": str(value) for key, value in build.get("versions", {}).items()}
    command = f"omniaid mirage build {name}.yaml --out DIR{' --mirrors CLONES' if repos else ''}"
    return (
        f"```\n{command}\nomniaid mirage verify DIR\n```\n\n"
        "Every choice is made by hash and seed, so the same recipe, sources and versions give the same "
        f"shards byte for byte.{clones}\n\n"
        + render_ready(("what", "value"), [[key, value] for key, value in facts.items()])
        + ("\n`LC_ALL=C; sha256sum *.tar | sha256sum` gives the last sha256.\n" if digest else "")
    )


def splitting(build: Record, counts: Counts) -> str:
    """How the splits are made, and what stands in several of them."""
    content = build.get("content", {})
    rules, points = content.get("splits", {}), []
    named = [source for source in content.get("sources", []) if source.get("split")]
    if named:
        points.append(f"{len(named)} of {len(content['sources'])} sources name their split in the recipe.")
    if held := rules.get("hold_out"):
        points.append(f"Held out whole for devtest: {_names(held)}.")
    if after := rules.get("released_after"):
        points.append(f"AI pictures of generators released after {after} go to devtest.")
    if rules.get("shares") and len(named) != len(content.get("sources") or [None]):
        shares = ", ".join(f"{split} {share:.0%}" for split, share in rules["shares"].items())
        points.append(
            f"Other groups of sources go to a split whole, by a hash of the group's name: {shares}."
        )
    made = {entry.generator: set(entry.splits) for entry in counts.generators if entry.label == "ai"}
    unseen = [name for name, splits in made.items() if splits == {"devtest"}]
    seen = [name for name, splits in made.items() if {"train", "devtest"} <= splits]
    divided = [source.source for source in counts.sources if len(source.splits) > 1]
    points += [f"Generators that only devtest holds: {_names(unseen)}."] if unseen else []
    points += [f"Generators in both train and devtest: {_names(seen)}."] if seen else []
    points.append(
        f"Sources divided between splits: {_names(divided)}."
        if divided
        else "No source stands in two splits."
    )
    return render(split_table(counts)) + "\n" + "".join(f"- {point}\n" for point in points)


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(escape(name) for name in names[:MOST_NAMED])
    return f"{shown} and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else shown


def aligning(build: Record) -> str:
    """How both classes were given one distribution of sizes and codecs; empty when they were not."""
    rules = build.get("content", {}).get("align")
    if not rules:
        return "Pictures are stored as they were found, so sizes and codecs can differ between the classes.\n"
    splits = ", ".join(rules.get("splits", []))
    rows = [[f"`{name}`", f"`{value}`"] for name, value in rules.items() if name != "splits"]
    return (
        f"Pictures of {splits} go through one distribution of sizes and codecs, the same for both classes, "
        "drawn for each picture from its hash and recorded in its row.\n\n"
        + render_ready(("setting", "value"), rows)
    )


def auditing(audit: Record, build: Record) -> str:
    """How well the pictures' headers alone tell the classes apart."""
    splits = audit.get("splits") or {}
    if not splits:
        return "No audit was recorded; `omniaid mirage audit DIR` makes one.\n"
    rows = [[split, *_audit_cells(result)] for split, result in splits.items()]
    columns = ("split", "held out", "most telling", "AUC", "per source", "range", "by picture")
    rules = build.get("content", {}).get("audit") or {}
    gate = f" The build refuses more than {rules['max_auc']:g}." if "max_auc" in rules else ""
    notes = [f"{split}: {escape(result['note'])}" for split, result in splits.items() if result.get("note")]
    easy = [
        f"In {split} easiest: {named}." for split, result in splits.items() if (named := _easiest(result))
    ]
    return (
        "Trees learn the label from file headers alone (format, size, bytes, JPEG tables, metadata) and are "
        f"judged on sources they have not seen. 0.5 is chance.{gate} *AUC* counts every picture alike, "
        "*per source* every source; *range* is over repeats; *by picture* holds out pictures instead of "
        "sources, so it also counts what only marks a source.\n\n"
        + render_ready(columns, rows, 4)
        + "\n"
        + "".join(f"- {point}\n" for point in (*notes, *easy))
    )


def _audit_cells(result: Record) -> list[str]:
    numbers = [result.get(name) for name in ("auc", "macro_auc", "auc_by_picture")]
    auc, macro, picture = ("" if number is None else f"{number:.2f}" for number in numbers)
    low_high = " to ".join(f"{number:.2f}" for number in result.get("auc_range") or ())
    leaks = ", ".join(escape(leak["feature"]) for leak in result.get("leaks", [])[:3])
    return [escape(str(result.get("judged_by", ""))), leaks, auc, macro, low_high, picture]


def _easiest(result: Record) -> str:
    sources = result.get("easiest_sources", [])[:MOST_EASY]
    return ", ".join(
        f"{escape(source['source'])} ({NAMES.get(source['label'], '')}, {source['right']:.2f})"
        for source in sources
    )


def contents(counts: Counts) -> str:
    """Tables of domains, generators and kinds."""
    tables = (domain_table(counts), generator_table(counts, "ai"), generator_table(counts, "real"))
    return "\n".join(render(table) for table in tables if table.rows)


def qualities(counts: Counts) -> str:
    """Tables of sizes and stored formats."""
    formats = field_table(counts, "stored_format", "", "stored as")
    return render(spread_table(counts)) + "\n" + render(formats)


def licences(counts: Counts) -> str:
    """One line for each source: where it is, what it brought, on which terms."""
    rows = [
        [
            escape(source.source),
            "/".join(NAMES.get(label, label) for label in source.labels) or "none kept",
            _place(source),
            _names(source.licences) or "none kept",
            f"{source.kept:,}",
        ]
        for source in counts.sources
    ]
    columns = ("source", "class", "where", "licence as stated there", "kept")
    return (
        "The pictures belong to those who made them. A licence below is what the source says of itself; "
        "no one has cleared single pictures.\n\n" + render_ready(columns, rows, 1)
    )


def _place(source: SourceCounts) -> str:
    if source.kind != "git":
        return escape(source.repo or source.kind)
    address = f"https://github.com/{source.repo}/tree/{source.revision}"
    return link(f"{source.repo}@{source.revision[:10]}", address)


def refusals(counts: Counts, conflicts: Sequence[str]) -> str:
    """What was not kept and why, and pictures that two sources label differently."""
    listed = "".join(f"- {escape(sentence)}\n" for sentence in conflicts[:MOST_NAMED])
    more = len(conflicts) - MOST_NAMED
    rest = f"- and {more:,} more, listed in `stats.json`\n" if more > 0 else ""
    said = (
        f"{len(conflicts):,} pictures look like one of the other class and wait for a person to settle them:"
        if conflicts
        else "No picture was found in both classes."
    )
    return f"{outcome(counts)}\n\n{render(reason_table(counts))}\n{said}\n\n{listed}{rest}"


def limits(counts: Counts) -> str:
    """What the data set cannot do, from its own numbers."""
    points = [
        "Labels, generators and most domains are what the sources say; not every picture was looked at.",
        "Rights are mixed, so the set is rebuilt from its sources and not passed on.",
    ]
    unlicensed = sum(group.pictures for group in counts.groups if NO_LICENCE.match(group.licence))
    if unlicensed:
        points.append(f"{unlicensed:,} pictures come from sources that state no licence.")
    points += [_missing(counts, split) for split in splits_of(counts)]
    points += [_leading(counts, label) for label in LABELS]
    undated = [made.generator for made in counts.generators if made.label == "ai" and not made.released]
    if undated:
        points.append(f"Generators without a known release date: {_names(undated)}.")
    return "".join(f"- {point}\n" for point in points if point)


def _missing(counts: Counts, split: str) -> str:
    kept = counts.by("split", "domain", "label")
    domains = [domain for (domain,) in counts.by("domain") if domain != "mixed"]
    holes = [
        f"{NAMES[label]} {domain}"
        for domain in domains
        for label in LABELS
        if (split, domain, label) not in kept
    ]
    return f"In {split} there are no pictures of: {', '.join(holes)}." if holes else ""


def _leading(counts: Counts, label: str) -> str:
    sources = [source for source in counts.sources if source.labels == (label,)]
    if not sources:
        return ""
    first = max(sources, key=lambda source: source.kept)
    share = first.kept / counts.by("label")[label,]
    return (
        f"The largest source of {NAMES[label]} pictures is {escape(first.source)}, with {share:.0%} of them."
    )
