"""What the service adds to the bare runtime, on the same cores in one run.

    python benchmarks/service_speed.py

Writes service_speed.json and service_speed.md beside this file: latency over the bare call on decoded
pixels, throughput at concurrency 16 over that of the bare runtime, cold start, memory, and whether
scoring several pictures in one inference would help at all on this machine.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
from service_soak import make_picture, rss_mb, start_server

from detector.decode import decode_picture
from detector.preprocess import make_views
from detector.runtime import Runtime, default_model_path
from detector.threads import available_threads

HERE = Path(__file__).resolve().parent
CONCURRENCY = 16
BATCHES = (1, 2, 4, 8)
GATES = {"overhead_ms": 8.0, "throughput_ratio": 0.85, "cold_start_s": 3.0, "server_rss_mb": 700.0}


def times_ms(call: Callable[[], object], count: int) -> list[float]:
    """Milliseconds of each call."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1000)
    return found


def measure_bare(pictures: list[bytes], count: int) -> dict:
    """The runtime without a service: decode, inference, and inference of several pictures at once."""
    runtime = Runtime(default_model_path())
    turns: Iterator[int] = iter(range(10**9))
    views = [make_views(decode_picture(data).image, runtime.card.preprocessing) for data in pictures]
    runtime.score_views(views[0])

    def decode() -> None:
        data = pictures[next(turns) % len(pictures)]
        make_views(decode_picture(data).image, runtime.card.preprocessing)

    batched = {}
    for size in BATCHES:
        stack = np.concatenate([views[place % len(views)] for place in range(size)])
        spent = times_ms(lambda stack=stack: runtime.score_views(stack), max(3, count // size))
        batched[str(size)] = round(1000 * size / statistics.median(spent), 2)
    inference = times_ms(lambda: runtime.score_views(views[next(turns) % len(views)]), count)
    return {
        "decode_ms": statistics.median(times_ms(decode, count)),
        "inference_ms": statistics.median(inference),
        "pictures_per_s": 1000 * count / sum(inference),
        "pictures_per_s_by_batch": batched,
    }


def measure_service(pictures: list[bytes], count: int) -> dict:
    """The service over HTTP, its cache off."""
    begun = time.perf_counter()
    environment = {"OMNIAID_CACHE_DAYS": "0", "OMNIAID_REQUEST_TIMEOUT_S": "240"}
    with (
        tempfile.TemporaryDirectory() as state,
        start_server(Path(state), **environment) as (process, url),
    ):
        with httpx.Client(base_url=url, timeout=240, trust_env=False) as client:
            while client.get("/ready").status_code != 200:
                time.sleep(0.02)
            cold_s = time.perf_counter() - begun
            turns = iter(range(10**9))

            def send() -> None:
                data = pictures[next(turns) % len(pictures)]
                client.post("/v1/images", files={"file": ("x", data)}).raise_for_status()

            times_ms(send, 3)
            latency = times_ms(send, count)
        per_s = asyncio.run(throughput(url, pictures, 4 * count))
        server_mb, all_mb = rss_mb(process.pid)
    return {
        "cold_start_s": cold_s,
        "latency_ms": statistics.median(latency),
        "pictures_per_s": per_s,
        "server_rss_mb": server_mb,
        "all_rss_mb": all_mb,
    }


async def throughput(url: str, pictures: list[bytes], count: int) -> float:
    """Pictures per second with CONCURRENCY requests open at any time."""
    left = iter(range(count))
    async with httpx.AsyncClient(base_url=url, timeout=240, trust_env=False) as client:

        async def work() -> None:
            for number in left:
                data = pictures[number % len(pictures)]
                (await client.post("/v1/images", files={"file": ("x", data)})).raise_for_status()

        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        return count / (time.perf_counter() - start)


def compare(bare: dict, service: dict) -> dict:
    """The numbers that the gates are about."""
    return {
        "overhead_ms": service["latency_ms"] - bare["decode_ms"] - bare["inference_ms"],
        "throughput_ratio": service["pictures_per_s"] / bare["pictures_per_s"],
        "cold_start_s": service["cold_start_s"],
        "server_rss_mb": service["server_rss_mb"],
    }


def as_markdown(found: dict) -> str:
    """The result as a page."""
    gates = found["gates"]
    rows = [
        f"| {name} | {gates[name]:.2f} | {'>=' if name == 'throughput_ratio' else '<='} {GATES[name]:g} |"
        for name in GATES
    ]
    batches = [
        f"| {size} | {value:.2f} |" for size, value in found["bare"]["pictures_per_s_by_batch"].items()
    ]
    return "\n".join(
        (
            "# Speed of the service",
            "",
            f"{found['threads']} threads, {found['machine']}, load {found['load']:.1f} when it began. "
            "Written by `python benchmarks/service_speed.py`.",
            "",
            "| | measured | wanted |",
            "|---|---|---|",
            *rows,
            "",
            "## Several pictures in one inference",
            "",
            "The most that micro-batching could bring, without any waiting:",
            "",
            "| pictures | pictures per second |",
            "|---|---|",
            *batches,
            "",
        )
    )


def main() -> None:
    """Measure, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=40, help="calls per measurement")
    parser.add_argument("--out", type=Path, default=HERE / "service_speed")
    options = parser.parse_args()
    pictures = [make_picture(number) for number in range(12)]
    load = os.getloadavg()[0]
    bare, service = measure_bare(pictures, options.count), measure_service(pictures, options.count)
    found = {
        "machine": platform.machine(),
        "threads": available_threads(),
        "load": load,
        "bare": bare,
        "service": service,
        "gates": compare(bare, service),
    }
    options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    options.out.with_suffix(".md").write_text(as_markdown(found), "utf-8")
    print(as_markdown(found))


if __name__ == "__main__":
    main()
