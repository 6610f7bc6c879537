"""False alarms of the watermark reader on real pictures, and its agreement with the reference library."""

import importlib.util
import io
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detector.evidence.watermarks import (
    LEAST_CORRELATION,
    MAX_BLOCKS,
    MESSAGES,
    MIN_PIXELS,
    block_scores,
    correlate,
    count_votes,
    find_watermarks,
)
from mirage.read import list_shards, read_shards


def measure_watermarks(shards: Path, package: Path, count: int = 2400) -> dict[str, Any]:
    """False alarms, the nearest misses, and agreement with the reference."""
    best: dict[str, list[float]] = {message.tool: [] for message in MESSAGES}
    alarms, seen, checked = [], 0, defaultdict(list)
    embed = load_embedder(package)
    paths = list_shards(shards, "train")
    random.Random(0).shuffle(paths)
    for image in real_pictures(paths, count):
        seen += 1
        readings = block_scores(np.asarray(image))
        for message in MESSAGES:
            value = max(correlate(scores, message.bits) for scores in readings.values())
            best[message.tool].append(value)
            if value >= LEAST_CORRELATION:
                alarms.append(f"{message.tool}: picture {seen} ({value:.3f})")
        if seen % 60 == 1:
            check_against_library(
                np.asarray(image.crop((0, 0, min(image.width, 640), min(image.height, 640)))), embed, checked
            )
    return {
        "real_pictures": seen,
        "counted_as_found_from": LEAST_CORRELATION,
        "false_alarms": alarms,
        "false_alarm_rate_95_percent_bound": round(1 - 0.05 ** (1 / seen), 5) if not alarms else None,
        "largest_correlation": {tool: round(max(values), 4) for tool, values in best.items()},
        "99th_percentile": {
            tool: round(float(np.quantile(values, 0.99)), 4) for tool, values in best.items()
        },
        "checked_against_library": {
            name: f"{sum(values)} of {len(values)}" for name, values in sorted(checked.items())
        },
    }


def real_pictures(paths: list[Path], count: int) -> Iterator[Image.Image]:
    """Real pictures of the shards, no smaller than a mark needs, cut to the rows that are read."""
    for sample in read_shards(paths):
        if sample.metadata["label"] != "real":
            continue
        try:
            image = Image.open(io.BytesIO(sample.data)).convert("RGB")
        except OSError:
            continue
        if image.width * image.height >= MIN_PIXELS:
            rows = max(1, MAX_BLOCKS // max(image.width // 8, 1)) * 8
            yield image.crop((0, 0, image.width, min(image.height, rows)))
            count -= 1
        if count == 0:
            return


def load_embedder(package: Path) -> Any:
    """The reference embedder from its own file: importing the whole package would need torch."""
    spec = importlib.util.spec_from_file_location("reference_max_dct", package / "maxDct.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"{package} holds no maxDct.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EmbedMaxDct


def check_against_library(pixels: np.ndarray, embedder: Any, checked: dict[str, list[bool]]) -> None:
    """Marks by the reference embedder, read by it and by us, also after usual handling."""
    bgr = np.ascontiguousarray(pixels[..., ::-1])
    for message in MESSAGES:
        reference = embedder(watermarks=list(message.bits), wmLen=len(message.bits))
        theirs = reference.decode(bgr)
        ours = count_votes(block_scores(pixels)["bgr bytes"], len(message.bits)) * 255 > 127
        checked["same bits as the library on unmarked pictures"].append(
            bool((np.array(theirs) == ours).all())
        )
        for kind, source in {"bytes": bgr, "floats": bgr.astype(np.float32)}.items():
            marked = np.clip(np.asarray(reference.encode(source.copy())), 0, 255).round().astype(np.uint8)
            image = Image.fromarray(np.ascontiguousarray(marked[..., ::-1]))
            for handling, handled in handle(image).items():
                found = any(row.details["tool"] == message.tool for row in find_watermarks(handled))
                checked[f"{message.tool}, embedded in {kind}, {handling}: found by us"].append(found)
            library = embedder(watermarks=[], wmLen=len(message.bits)).decode(marked)
            agree = bool((np.array(library) == np.array(message.bits, dtype=bool)).all())
            name = f"{message.tool}, embedded in {kind}, untouched: every bit read by the library"
            checked[name].append(agree)


def handle(image: Image.Image) -> dict[str, Image.Image]:
    """The picture after usual handling."""
    done = {"untouched": image, "resized to 3/4": image.resize((image.width * 3 // 4, image.height * 3 // 4))}
    for quality in (95, 85):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        done[f"JPEG {quality}"] = Image.open(buffer).convert("RGB")
    return done
