"""A soak of the running service: many requests, some hostile; memory must not grow, no answer be wrong.

    python benchmarks/service_soak.py --requests 20000 --concurrency 32

Starts `omniaid serve` itself, sends pictures of its own making, and fails (exit code 1) when an answer
is not the one that the detector gives, when a hostile request gets anything but a refusal, when a
status of 5xx other than a 503 with Retry-After comes, or when memory grew by 5 % or more after warm-up.
"""

import argparse
import asyncio
import io
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from detector.scoring import Detector

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 0.2  # share of the requests
HOSTILE = 0.05
GROWTH_ALLOWED = 0.05
TOLERANCE = 1e-5
PICTURES = 48


@dataclass(frozen=True)
class Sample:
    """A request's picture, with the probability or the statuses that are right for it."""

    data: bytes
    probability: float | None = None
    statuses: tuple[int, ...] = ()


def make_picture(seed: int) -> bytes:
    """A picture of our own making in one of five formats."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
    side = (160, 224, 320, 512)[seed % 4]
    buffer = io.BytesIO()
    format_name = ("JPEG", "PNG", "WEBP", "GIF", "BMP")[seed % 5]
    small.resize((side, side), Image.Resampling.BICUBIC).save(buffer, format_name)
    return buffer.getvalue()


def hostile_samples(picture: bytes, seed: int) -> list[Sample]:
    """What must be refused without harm."""
    noise = random.Random(seed).randbytes(4096)
    bomb = bytearray(make_picture(1))  # a PNG
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    return [
        Sample(b"", statuses=(415,)),
        Sample(noise, statuses=(415,)),
        Sample(b"\x89PNG\r\n\x1a\n" + noise, statuses=(415, 422)),
        Sample(b"RIFF\xff\xff\xff\xffWEBP" + noise, statuses=(415, 422)),
        Sample(bytes(bomb), statuses=(415, 422)),
        Sample(picture[: len(picture) // 2], statuses=(415, 422)),
        Sample(bytes(40 * 2**20), statuses=(413,)),
    ]


def make_samples(count: int, seed: int) -> Iterator[Sample]:
    """The requests, in an order that the seed decides; right answers come from the detector itself."""
    detector = Detector(threads=1)
    pictures = [make_picture(number) for number in range(PICTURES)]
    good = [Sample(data, detector.score(data, "x").probability) for data in pictures]
    del detector
    bad = hostile_samples(pictures[0], seed)
    chance = random.Random(seed)
    return (chance.choice(bad) if chance.random() < HOSTILE else chance.choice(good) for _ in range(count))


@contextmanager
def start_server(state: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server without a page, and its address."""
    given = {"OMNIAID_STATE": str(state), "OMNIAID_PAGE": "false", "PYTHONUNBUFFERED": "1", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "serve", "--port", "0"],
        cwd=ROOT,
        env=os.environ | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SystemExit("the server did not start")
        yield process, found.group()
    finally:
        process.terminate()
        process.wait(120)


def rss_mb(root: int) -> tuple[float, float]:
    """Resident memory of the server and of all its processes together, in MB."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = [root, *(pid for pid, parent in parents.items() if parent == root)]
    sizes = [_rss_mb(pid) for pid in family]
    return sizes[0], sum(sizes)


def _rss_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return 0.0


def fault_of(sample: Sample, response: httpx.Response) -> str | None:
    """What is wrong with the answer; None when it is right or a clean 503."""
    if response.status_code == 503:
        return None if response.headers.get("retry-after") else "a 503 without Retry-After"
    if sample.probability is None:
        right = response.status_code in sample.statuses
        return None if right else f"hostile input got {response.status_code}"
    if response.status_code != 200:
        return f"a picture got {response.status_code}"
    off = abs(response.json()["probability"] - sample.probability)
    return None if off <= TOLERANCE else f"a probability is off by {off:.2e}"


async def soak(url: str, pid: int, samples: Iterator[Sample], total: int, concurrency: int) -> dict:
    """What happened."""
    statuses: Counter[int] = Counter()
    faults: Counter[str] = Counter()
    memory: list[tuple[float, float]] = []
    numbers = itertools.count(1)
    limits = httpx.Limits(max_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits, trust_env=False) as client:

        async def work() -> None:
            for sample in samples:
                try:
                    response = await client.post("/v1/images", files={"file": ("x", sample.data)})
                except httpx.HTTPError as error:
                    faults[f"no answer: {type(error).__name__}"] += 1
                    continue
                statuses[response.status_code] += 1
                if fault := fault_of(sample, response):
                    faults[fault] += 1
                if next(numbers) % max(1, total // 100) == 0:
                    memory.append(rss_mb(pid))

        while (await client.get("/ready")).status_code != 200:
            await asyncio.sleep(0.2)
        await asyncio.gather(*(work() for _ in range(concurrency)))
    after = memory[int(len(memory) * WARM_UP) :]
    fifth = max(1, len(after) // 5)
    begin, end = (sum(total for _, total in part) / fifth for part in (after[:fifth], after[-fifth:]))
    return {
        "requests": total,
        "statuses": dict(statuses),
        "faults": dict(faults),
        "rss_mb_after_warm_up": round(begin),
        "rss_mb_at_end": round(end),
        "growth": round(end / begin - 1, 4),
        "server_rss_mb_at_end": round(memory[-1][0]),
    }


def main() -> None:
    """Run the soak and print what happened as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cached", action="store_true", help="let known reports be reused")
    options = parser.parse_args()
    samples = make_samples(options.requests, options.seed)
    start = time.monotonic()
    cache = {} if options.cached else {"OMNIAID_CACHE_DAYS": "0"}
    limit = {"OMNIAID_REQUEST_TIMEOUT_S": "240"}
    with (
        tempfile.TemporaryDirectory() as state,
        start_server(Path(state), **cache, **limit) as (process, url),
    ):
        found = asyncio.run(soak(url, process.pid, samples, options.requests, options.concurrency))
    found |= {
        "seconds": round(time.monotonic() - start),
        "seed": options.seed,
        "concurrency": options.concurrency,
    }
    print(json.dumps(found, indent=1))
    raise SystemExit(bool(found["faults"]) or found["growth"] >= GROWTH_ALLOWED)


if __name__ == "__main__":
    main()
