"""ONNX Runtime against our own torch forward pass, and what outputs per patch cost, as Markdown and JSON.

Random weights of a CLIP ViT-L/14 at 336 px with six experts of rank 8 on every attention projection, two
semantic experts per picture, the paper's two-pass router. Torch and ONNX Runtime take turns in one process
on the same pixels with the same number of threads; before anything is timed, both must agree.

Run: python benchmarks/onnx_forward.py --out benchmarks
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from omniaid_forward import EXPERTS, RANK, TOP_K, random_backbone
from torch import Tensor

from detector.checkpoint import build_undecomposed
from detector.exporting.files import trace
from detector.exporting.graphs import view_model
from detector.model import ModelConfig, OmniAID, RouterConfig
from detector.vit import ExpertConfig

WANTED_SPEED = 1.1
MOST_SCORING_COST = 1.05
Runs = dict[str, Callable[[], Any]]


@torch.no_grad()
def random_model(depth: int, image_px: int) -> OmniAID:
    """A model whose experts are random: a forward pass costs the same whatever they were made from."""
    config = ModelConfig(
        depth=depth, features="final", experts=ExpertConfig(rank=RANK), router=RouterConfig(top_k=TOP_K)
    )
    model = build_undecomposed(config, *random_backbone(depth, image_px))
    generator = torch.Generator().manual_seed(1)
    for layer in model.expert_layers():
        for name in ("residual_u", "residual_s", "residual_v", "u", "s", "v"):
            value = getattr(layer, name)
            value.copy_(0.03 * torch.randn(value.shape, generator=generator))
    return model.eval()


def open_session(model: OmniAID, graph: str, folder: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session as the scanner opens it."""
    path = folder / f"{graph}.onnx"
    traced = trace(view_model(model, graph), path)
    onnx.save(traced, str(path), save_as_external_data=True, location=f"{graph}.data")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def alternate(runs: Runs, repeats: int) -> dict[str, dict[str, Any]]:
    """Times by name: each once unmeasured, then one round after another."""
    wall: dict[str, list[float]] = {name: [] for name in runs}
    busy: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            begin = time.perf_counter(), time.process_time()
            run()
            if turn:
                wall[name].append(time.perf_counter() - begin[0])
                busy[name].append(time.process_time() - begin[1])
    return {
        name: {
            "processor_s": statistics.median(busy[name]),
            "wall_s": statistics.median(wall[name]),
            "processor_runs_s": busy[name],
            "wall_runs_s": wall[name],
        }
        for name in runs
    }


def compare_engines(
    model: OmniAID, session: onnxruntime.InferenceSession, pixels: Tensor, bf16: bool
) -> Runs:
    """Torch and ONNX Runtime on the same pixels; the first is what the others are held against."""
    array = pixels.numpy()

    def in_torch(autocast: bool) -> Tensor:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(pixels).logits

    runs: Runs = {
        "torch fp32": lambda: in_torch(False),
        "ONNX Runtime fp32": lambda: session.run(["logits", "gates"], {"pixels": array}),
    }
    return runs | ({"torch bf16 autocast": lambda: in_torch(True)} if bf16 else {})


def compare_outputs(
    score: onnxruntime.InferenceSession, patches: onnxruntime.InferenceSession, pixels: Tensor
) -> Runs:
    """Ways to have outputs per patch at hand; the first is scoring as it is."""
    feed = {"pixels": pixels.numpy()}
    fetched = onnxruntime.RunOptions()
    fetched.only_execute_path_to_fetches = True
    return {
        "score graph": lambda: score.run(["logits", "gates"], feed),
        "patches graph, patches not asked for": lambda: patches.run(["logits", "gates"], feed),
        "patches graph, only the path to what is asked for": lambda: patches.run(
            ["logits", "gates"], feed, fetched
        ),
        "patches graph, patches asked for": lambda: patches.run(["logits", "gates", "patch_logits"], feed),
    }


def measure(options: argparse.Namespace, depth: int, bf16: bool, outputs: bool) -> dict[str, Any]:
    """One depth: rows by title, and the largest difference between the engines."""
    size, threads = options.image_px, torch.get_num_threads()
    generator = torch.Generator().manual_seed(2)
    pixels = torch.randint(0, 256, (options.batch, 3, size, size), dtype=torch.uint8, generator=generator)
    model = random_model(depth, size)
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(model, "score", Path(folder), threads)
        with torch.inference_mode():
            mine = model(pixels).logits
        theirs = torch.from_numpy(session.run(["logits"], {"pixels": pixels.numpy()})[0])
        difference = float((mine.softmax(-1) - theirs.softmax(-1)).abs().max())
        if not difference <= 1e-4:
            raise SystemExit(f"torch and ONNX Runtime differ by {difference:.2e}; at most 1e-04 is allowed")
        measured: dict[str, Any] = {"blocks": depth, "difference": difference}
        measured["engines"] = alternate(compare_engines(model, session, pixels, bf16), options.repeats)
        if outputs:
            patches = open_session(model, "patches", Path(folder), threads)
            measured["outputs"] = alternate(compare_outputs(session, patches, pixels[:1]), options.repeats)
    return measured


def to_markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    setup = report["setup"]
    has = "has" if setup["bf16_units"] else "has no"
    lines = [
        "# ONNX Runtime against our own torch",
        "",
        f"ViT-L/14 at {setup['image_px']} px, {EXPERTS} experts of rank {RANK}, top-{TOP_K}, two-pass "
        f"router, batch {setup['batch']}; {setup['repeats']} alternating runs in one process after one "
        "unmeasured, medians; speed is the ratio of processor times to the first row. "
        f"Torch {setup['torch']}, ONNX Runtime {setup['onnxruntime']}, {setup['threads']} thread(s), "
        f"{setup['processor']}. At least {WANTED_SPEED}x is wanted of ONNX Runtime in fp32.",
        "",
        f"The processor {has} bf16 instructions"
        f"{'.' if setup['bf16_units'] else ': its bf16 times say nothing about one that has them.'} "
        "ONNX Runtime has no bf16 matrix products on the CPU.",
    ]
    for part in report["parts"]:
        lines += _table(f"Engines, {part['blocks']} blocks, batch {setup['batch']}", part["engines"])
        lines += ["", f"Probabilities differ by at most {part['difference']:.1e}."]
        if "outputs" in part:
            lines += _table(f"Outputs per patch, {part['blocks']} blocks, one view", part["outputs"])
            lines += ["", f"Scoring may cost {MOST_SCORING_COST} times what it costs without them."]
    return "\n".join(lines) + "\n"


def _table(title: str, rows: dict[str, Any]) -> list[str]:
    first = next(iter(rows.values()))
    lines = ["", f"## {title}", "", "| | processor s | wall s | speed |", "|---|---|---|---|"]
    for name, row in rows.items():
        speed = first["processor_s"] / row["processor_s"]
        lines.append(f"| {name} | {row['processor_s']:.2f} | {row['wall_s']:.2f} | {speed:.2f}x |")
    return lines


def describe(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    flags = Path("/proc/cpuinfo").read_text()
    return {name: value for name, value in vars(options).items() if name != "out"} | {
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "bf16_units": any(flag in flags for flag in ("avx512_bf16", "amx_bf16")),
        "wanted_speed": WANTED_SPEED,
    }


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=24, help="blocks in fp32, 2 or more")
    parser.add_argument("--bf16-depth", type=int, default=24, help="blocks with bf16 beside fp32; 0 skips it")
    parser.add_argument("--image-px", type=int, default=336)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch takes")
    parser.add_argument("--out", type=Path, help="folder for onnx_forward.md and .json; else printed")
    return parser.parse_args()


def main() -> None:
    """Measure, print, store."""
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    same = options.bf16_depth == options.depth
    parts = [measure(options, options.depth, bf16=same, outputs=True)]
    if options.bf16_depth and not same:
        parts.append(measure(options, options.bf16_depth, bf16=True, outputs=False))
    report = {"setup": describe(options), "parts": parts}
    print(to_markdown(report), flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "onnx_forward.json").write_text(json.dumps(report, indent=1) + "\n")
        (options.out / "onnx_forward.md").write_text(to_markdown(report))


if __name__ == "__main__":
    main()
