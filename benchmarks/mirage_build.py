"""Speed, scaling and memory of data set builds, against a bare loop over the same pictures.

The bare loop decodes each file, takes its SHA-256 and its perceptual hash and appends its bytes to a tar
file, nothing more: one process per worker, each with a share of the files and a tar file of its own, so
that no byte passes between processes. Loop and builder are run in turns with one worker and with two;
wall times are compared within each round. What two bare loops gain over one is the machine's own
ceiling. Memory is the peak of all processes of a build together, with few and with many small pictures.

Run: python benchmarks/mirage_build.py --out docs/benchmarks
"""

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

from mirage.build import build
from mirage.decode import decode
from mirage.errors import UnreadableImage
from mirage.perceptual import fingerprint

WANTED = {"throughput": 0.8, "growth": 1.10, "scaling": 1.7}
SIDES_PX = (512, 640, 768, 1024, 1280, 1600)
SMALL_PX = (96, 80)
PNG_SHARE = 0.2
SAMPLE_S = 0.02
BUILD = (
    "import sys; from pathlib import Path; from mirage.build import build; "
    "print(build(Path(sys.argv[1]), Path(sys.argv[2]), workers=int(sys.argv[3])).counts['kept'])"
)


def draw(number: int, size: tuple[int, int], seed: int) -> Image.Image:
    """A picture with broad shapes, an edge and a sensor's noise; no two look alike."""
    rng = np.random.default_rng((seed, number))
    shapes = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    pixels = np.asarray(shapes.resize(size, Image.Resampling.BICUBIC), np.int16).copy()
    pixels[:, int(rng.uniform(0.2, 0.8) * size[0]) :] //= 2
    tile = rng.normal(0, 4, (64, 64, 1)).astype(np.int16)
    pixels += np.tile(tile, (size[1] // 64 + 1, size[0] // 64 + 1, 1))[: size[1], : size[0]]
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def synthesise(folder: Path, count: int, seed: int, sizes: tuple[int, ...] | None = SIDES_PX) -> None:
    """Write `count` JPEG and PNG files of common sizes; without `sizes`, tiny JPEG files."""
    folder.mkdir(parents=True)
    for number in range(count):
        rng = np.random.default_rng((seed, number, 1))
        side = int(rng.choice(sizes)) if sizes else 0
        image = draw(number, (side, side * 3 // 4) if sizes else SMALL_PX, seed)
        if sizes and rng.random() < PNG_SHARE:
            image.save(folder / f"{number:06d}.png", compress_level=3)
        else:
            image.save(folder / f"{number:06d}.jpg", quality=int(rng.integers(75, 96)))


def write_recipe(pictures: Path) -> Path:
    """A recipe that stores the folder's pictures as they are; no audit, which is a step after the build."""
    source = {"kind": "folder", "name": "pictures", "path": pictures.name, "split": "train"}
    source |= {"label": "real", "generator": "drawn", "licence": "CC0-1.0"}
    path = pictures.with_suffix(".yaml")
    recipe = {"name": "benchmark", "audit": None, "max_side_px": 8192, "sources": [source]}
    path.write_text(yaml.safe_dump(recipe), "utf-8")
    return path


def bare_loop(paths: list[Path], shard: Path) -> None:
    """Decode, hash and store: the work that no builder can do without."""
    with tarfile.TarFile(shard, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in paths:
            data = path.read_bytes()
            name = hashlib.sha256(data).hexdigest()
            try:
                fingerprint(decode(data).image)
            except UnreadableImage:
                continue
            member = tarfile.TarInfo(f"{name}{path.suffix}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def run_bare(pictures: Path, out: Path, workers: int) -> None:
    """The bare loop over a folder, shared out among processes."""
    out.mkdir()
    paths = sorted(path for path in pictures.rglob("*") if path.is_file())
    context = multiprocessing.get_context("spawn")
    shares = [
        context.Process(target=bare_loop, args=(paths[first::workers], out / f"{first}.tar"))
        for first in range(workers)
    ]
    for share in shares:
        share.start()
    for share in shares:
        share.join()
        if share.exitcode:
            raise SystemExit(f"a bare loop ended with exit code {share.exitcode}")


def run_build(pictures: Path, out: Path, workers: int) -> None:
    """The builder over a folder."""
    if not build(write_recipe(pictures), out, workers=workers).counts["kept"]:
        raise SystemExit("the builder kept no picture")


def timed(run: Callable[[Path, Path, int], None], pictures: Path, workers: int) -> dict[str, float]:
    """Wall and processor seconds of a run into a folder of its own."""
    with tempfile.TemporaryDirectory(dir=pictures.parent) as scratch:
        begun, busy = time.perf_counter(), processor_s()
        run(pictures, Path(scratch) / "out", workers)
        return {"wall_s": time.perf_counter() - begun, "processor_s": processor_s() - busy}


def processor_s() -> float:
    """Processor time of this process and the children that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure_speed(pictures: Path, rounds: int, workers: int) -> dict[str, Any]:
    """All four kinds of run in turns, and what their times say about each other, round by round."""
    kinds = {"bare": run_bare, "build": run_build}
    runs: dict[str, list[dict[str, float]]] = {
        f"{kind} {number}": [] for number in (1, workers) for kind in kinds
    }
    for turn in range(rounds):
        for name, times in runs.items():
            kind, number = name.split()
            times.append(timed(kinds[kind], pictures, int(number)))
            print(f"round {turn + 1}: {name} {times[-1]['wall_s']:.1f} s", file=sys.stderr, flush=True)

    def median_ratio(one: str, other: str, unit: str = "wall_s") -> float:
        pairs = zip(runs[one], runs[other], strict=True)
        return statistics.median(above[unit] / below[unit] for above, below in pairs)

    return {
        "runs": runs,
        "throughput": median_ratio(f"bare {workers}", f"build {workers}"),
        "throughput of one worker": median_ratio("bare 1", "build 1"),
        "throughput by processor time": median_ratio(f"bare {workers}", f"build {workers}", "processor_s"),
        "scaling": median_ratio("build 1", f"build {workers}"),
        "scaling of bare loops": median_ratio("bare 1", f"bare {workers}"),
    }


def measure_memory(scratch: Path, count: int, workers: int, seed: int) -> dict[str, float]:
    """Peak memory of a build of `count` small pictures, in MiB."""
    pictures = scratch / f"small-{count}"
    synthesise(pictures, count, seed, sizes=None)
    command = [sys.executable, "-c", BUILD, str(write_recipe(pictures)), str(scratch / f"out-{count}")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    begun = time.perf_counter()
    process = subprocess.Popen([*command, str(workers)], env=environment, stdout=subprocess.PIPE, text=True)
    parent = tree = 0.0
    while process.poll() is None:
        sizes = {pid: resident_mib(pid) for pid in descendants(process.pid)}
        parent, tree = max(parent, sizes.get(process.pid, 0.0)), max(tree, sum(sizes.values()))
        time.sleep(SAMPLE_S)
    kept = process.communicate()[0].strip()
    if process.returncode or not kept or int(kept) < 0.9 * count:
        raise SystemExit(f"the build of {count} small pictures kept {kept or 'none'}")
    wall_s = time.perf_counter() - begun
    return {"pictures": count, "kept": int(kept), "parent_mib": parent, "tree_mib": tree, "wall_s": wall_s}


def descendants(root: int) -> set[int]:
    """The process and everything it started that still lives."""
    found = {root}
    for children in Path(f"/proc/{root}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found = found.union(*(descendants(int(pid)) for pid in children.read_text().split()))
    return found


def resident_mib(pid: int) -> float:
    """Resident memory of a process, 0 when it has ended; shared pages count fully."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


def to_markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    setup = report["setup"]
    lines = [
        "# Builds of data sets",
        "",
        f"{setup['pictures']} pictures, {setup['megabytes']:.0f} MB, {setup['rounds']} rounds in turns, "
        f"medians; {setup['processors']} processors ({setup['machine']}), Python {setup['python']}, load "
        f"{setup['load_before']:.1f} before and {setup['load_after']:.1f} after.",
    ]
    lines += speed_lines(report["speed"], setup) if "speed" in report else []
    lines += memory_lines(report["memory"]) if "memory" in report else []
    return "\n".join(lines) + "\n"


def speed_lines(speed: dict[str, Any], setup: dict[str, Any]) -> list[str]:
    """Tables of the times and of their ratios."""
    lines = ["", "| run | workers | wall s | processor s | pictures/s |", "|---|---|---|---|---|"]
    for name, times in speed["runs"].items():
        wall, busy = (statistics.median(run[unit] for run in times) for unit in ("wall_s", "processor_s"))
        kind, number = name.split()
        lines.append(f"| {kind} | {number} | {wall:.1f} | {busy:.1f} | {setup['pictures'] / wall:.1f} |")
    workers = setup["workers"]
    titles = {
        "throughput": f"throughput of a build over bare loops, {workers} workers",
        "throughput of one worker": "the same with one worker",
        "throughput by processor time": "the same in processor time",
        "scaling": f"a build with {workers} workers over one",
        "scaling of bare loops": f"{workers} bare loops over one (the machine's ceiling)",
    }
    lines += ["", "| ratio | measured | wanted |", "|---|---|---|"]
    return lines + [
        f"| {title} | {speed[key]:.2f} | {WANTED.get(key, '')} |" for key, title in titles.items()
    ]


def memory_lines(memory: dict[str, Any]) -> list[str]:
    """Table of the peaks."""
    lines = [
        "",
        "| small pictures | wall s | parent's peak, MiB | all processes' peak, MiB |",
        "|---|---|---|---|",
    ]
    for row in memory["rows"]:
        numbers = (row["wall_s"], row["parent_mib"], row["tree_mib"])
        lines.append(f"| {row['pictures']} | " + " | ".join(f"{number:.0f}" for number in numbers) + " |")
    return [*lines, "", f"Growth of the peak: {memory['growth']:.3f}x (wanted: at most {WANTED['growth']}x)."]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, help="folder of pictures to copy; else they are drawn")
    parser.add_argument("--count", type=int, default=1000, help="pictures for the speed; 0 skips it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", type=int, nargs="*", default=[1000, 20000], help="pictures per memory run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="where pictures and builds go meanwhile")
    parser.add_argument("--out", type=Path, help="folder for mirage_build.md and .json; else printed")
    return parser.parse_args()


def gather(options: argparse.Namespace, folder: Path) -> None:
    """Put the pictures of the speed runs into `folder`."""
    if options.pictures is None:
        synthesise(folder, options.count, options.seed)
        return
    folder.mkdir()
    files = sorted(path for path in options.pictures.rglob("*") if path.is_file())
    for number, path in enumerate(files[: options.count]):
        shutil.copyfile(path, folder / f"{number:06d}{path.suffix}")


def describe(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    machine = {"processors": os.cpu_count(), "machine": platform.machine()}
    machine |= {"python": platform.python_version(), "load_before": os.getloadavg()[0], "wanted": WANTED}
    return machine | {name: getattr(options, name) for name in ("workers", "rounds", "small", "seed")}


def main() -> None:
    """Measure, print, store."""
    options = arguments()
    report: dict[str, Any] = {"setup": describe(options)}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch) / "pictures"
        gather(options, folder)
        sizes = [path.stat().st_size for path in folder.iterdir()]
        report["setup"] |= {"pictures": len(sizes), "megabytes": sum(sizes) / 1e6}
        if sizes:
            report["speed"] = measure_speed(folder, options.rounds, options.workers)
        if options.small:
            rows = [measure_memory(Path(scratch), n, options.workers, options.seed) for n in options.small]
            report["memory"] = {"rows": rows, "growth": rows[-1]["tree_mib"] / rows[0]["tree_mib"]}
    report["setup"]["load_after"] = os.getloadavg()[0]
    print(to_markdown(report))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "mirage_build.json").write_text(json.dumps(report, indent=1) + "\n")
        (options.out / "mirage_build.md").write_text(to_markdown(report))


if __name__ == "__main__":
    main()
