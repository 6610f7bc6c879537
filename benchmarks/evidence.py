"""Measures the file evidence on real files: fixtures, odd files, watermark false alarms, fuzzing.

Each section writes its figures into evidence.json beside this script, and all of them into evidence.md:

    python benchmarks/evidence.py fixtures MIRRORS TABLES
    python benchmarks/evidence.py robustness MIRRORS TABLES
    python benchmarks/evidence.py robustness_pixels MIRRORS TABLES
    python benchmarks/evidence.py watermarks SHARDS IMWATERMARK
    python benchmarks/evidence.py fuzz 200000

MIRRORS holds bare clones named OWNER+NAME/repo; TABLES holds sources.tsv and provenance_markers.tsv;
SHARDS is a built data set; IMWATERMARK is the unpacked package invisible-watermark (needs opencv and
pywavelets).
"""

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def render(figures: dict[str, Any]) -> str:
    """The figures as a Markdown page."""
    lines = [
        "# File evidence, measured",
        "",
        "Written by benchmarks/evidence.py; figures are in evidence.json.",
        "",
    ]
    if "fixtures" in figures:
        lines += [
            "## Found / expected on real fixtures",
            "",
            "| what | as expected | files |",
            "|---|---:|---:|",
        ]
        lines += [
            f"| {row['kind']} | {row['as_expected']} | {row['files']} |"
            for row in figures["fixtures"]["table"]
        ]
        missed = [
            f"- {row['kind']}: {', '.join(row['missed'])}"
            for row in figures["fixtures"]["table"]
            if row["missed"]
        ]
        lines += ["", "Not as expected:", "", *(missed or ["- nothing"])]
        lines += ["", "| credentials by source and state | files |", "|---|---:|"]
        lines += [f"| {name} | {count} |" for name, count in figures["fixtures"]["states"].items()]
    for name in ("robustness", "robustness_pixels", "watermarks", "fuzz"):
        if name in figures:
            lines += [
                "",
                f"## {name.capitalize().replace('_', ' with ')}",
                "",
                "| figure | value |",
                "|---|---|",
            ]
            lines += [f"| {key.replace('_', ' ')} | {show(value)} |" for key, value in figures[name].items()]
    return "\n".join(lines) + "\n"


def show(value: Any) -> str:
    """A figure as the content of one table cell."""
    if isinstance(value, dict):
        return "<br>".join(f"{key}: {item}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "<br>".join(map(str, value)) or "none"
    return str(value)


# Section -> (module, function, types of its arguments); only the chosen one is imported.
SECTIONS: dict[str, tuple[str, str, tuple[type, ...]]] = {
    "fixtures": ("evidence_fixtures", "measure_fixtures", (Path, Path)),
    "robustness": ("evidence_odd_files", "measure_robustness", (Path, Path)),
    "robustness_pixels": ("evidence_odd_files", "measure_with_pixels", (Path, Path)),
    "watermarks": ("evidence_watermarks", "measure_watermarks", (Path, Path)),
    "fuzz": ("evidence_fuzz", "measure_fuzz", (int,)),
}


def main() -> None:
    """Measures one section and writes both files anew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", choices=[*SECTIONS, "render"])
    parser.add_argument("places", nargs="*")
    arguments = parser.parse_args()
    stored = HERE / "evidence.json"
    result = run(arguments.section, arguments.places) if arguments.section in SECTIONS else None
    figures = json.loads(stored.read_text()) if stored.exists() else {}
    if result is not None:
        figures[arguments.section] = result
        stored.write_text(json.dumps(figures, indent=1) + "\n")
    (HERE / "evidence.md").write_text(render(figures))


def run(section: str, places: list[str]) -> dict[str, Any]:
    """The section's figures."""
    module, function, kinds = SECTIONS[section]
    if len(places) != len(kinds):
        raise SystemExit(f"{section} takes {len(kinds)} arguments, not {len(places)}")
    measure = getattr(importlib.import_module(module), function)
    return measure(*(kind(place) for kind, place in zip(kinds, places, strict=True)))


if __name__ == "__main__":
    main()
