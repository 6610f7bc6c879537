"""Test suites of other picture libraries, thousands of odd files: no crash, no hang, bounded memory."""

import multiprocessing
import re
import resource
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from evidence_files import AI, SUFFIXES, Clone, claims, rows

from detector.evidence import EvidenceOptions, examine


def look(data: bytes, pixels: bool) -> dict[str, Any]:
    """One file in the worker: what it cost and what came out."""
    start, cpu = time.perf_counter(), time.process_time()
    evidence = examine(data, EvidenceOptions(pixels=pixels))
    return {
        "wall_s": time.perf_counter() - start,
        "cpu_s": time.process_time() - cpu,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "container": evidence.container or "none",
        "claims": sorted(claims(evidence)),
        "failed": [text for text in evidence.checks.values() if text.startswith("it failed")],
        "kinds": sorted({row.kind for row in evidence.warnings}),
        "json": len(evidence.model_dump_json()),
    }


def measure_robustness(mirrors: Path, tables: Path, pixels: bool = False) -> dict[str, Any]:
    """What every odd file cost, summarised."""
    results: list[dict[str, Any]] = []
    crashed: list[str] = []
    pool = new_pool()
    for row in rows(tables / "sources.tsv"):
        if row["role"] != "robustness":
            continue
        clone = Clone(mirrors, row["repo"])
        for path in clone.paths():
            if not re.search(row["select"].removeprefix("re:"), path) or not SUFFIXES.search(path):
                continue
            data = clone.read(path)
            if data is None:
                continue
            try:
                results.append(pool.submit(look, data, pixels).result() | {"repo": row["repo"], "path": path})
            except BrokenProcessPool:
                crashed.append(f"{row['repo']} {path}")
                pool = new_pool()
    pool.shutdown()
    return summarise_robustness(results, crashed)


def measure_with_pixels(mirrors: Path, tables: Path) -> dict[str, Any]:
    """The same with every picture decoded as well."""
    return measure_robustness(mirrors, tables, pixels=True)


def new_pool() -> ProcessPoolExecutor:
    """One fresh worker process."""
    # A worker is replaced often, so that its peak memory belongs to few files.
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=400)


def summarise_robustness(results: list[dict[str, Any]], crashed: list[str]) -> dict[str, Any]:
    """Counts over all files, and the worst ones by name."""
    slow = sorted(results, key=lambda row: -row["cpu_s"])[:5]
    return {
        "files": len(results) + len(crashed),
        "crashed": crashed,
        "checks_failed": [
            f"{row['repo']} {row['path']}: {row['failed']}" for row in results if row["failed"]
        ],
        "over_5_s_cpu": sum(row["cpu_s"] > 5 for row in results),
        "over_5_s_wall": sum(row["wall_s"] > 5 for row in results),
        "slowest": [f"{row['cpu_s']:.2f} s: {row['repo']} {row['path']}" for row in slow],
        "peak_mib": round(max(row["peak_bytes"] for row in results) / 2**20),
        "containers": dict(Counter(row["container"] for row in results)),
        "warnings": dict(Counter(kind for row in results for kind in row["kinds"])),
        "claims": dict(Counter(claim for row in results for claim in row["claims"])),
        "claims_of_ai": [f"{row['repo']} {row['path']}" for row in results if AI & set(row["claims"])],
        "by_repo": dict(Counter(row["repo"] for row in results)),
    }
