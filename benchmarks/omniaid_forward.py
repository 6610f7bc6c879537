"""OmniAID's forward pass and training step against a straightforward implementation, as Markdown and JSON.

Both hold the same random weights of a CLIP ViT-L/14 at 336 px with six experts of rank 8 on every attention
projection and two semantic experts chosen per picture. The reference does what the published description
says, line by line: a second, frozen copy of the backbone for the router, all blocks and all tokens in both
passes, per projection a loop over the chosen experts that gathers their factors, and attention written out
as in Hugging Face's eager mode. Before anything is timed, both must give the same logits.

Run: python benchmarks/omniaid_forward.py --out benchmarks
"""

import argparse
import contextlib
import copy
import ctypes
import gc
import json
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.model import ModelConfig, OmniAID, RouterConfig, build_model
from detector.vit import ExpertConfig, TrunkConfig, weight_shapes
from moe_core.experts import LowRankExperts

EXPERTS, RANK, TOP_K = 6, 8, 2
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
WANTED = {"two-pass": 1.3, "single-pass (main)": 2.2, "single-pass (early)": 2.2}


class ReferenceProjection(nn.Module):
    """W_main x + b, then one chosen expert after another with its gathered factors."""

    main: Tensor
    bias: Tensor | None

    def __init__(self, layer: LowRankExperts) -> None:
        super().__init__()
        self.register_buffer("main", layer.main_weight().clone())
        self.register_buffer("bias", layer.bias)
        self.u = nn.Parameter(layer.u.detach().transpose(1, 2).clone())
        self.s, self.v = (nn.Parameter(factor.detach().clone()) for factor in (layer.s, layer.v))

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """(B, T, D) with experts `chosen` (B, K) and their `weights` (B, K)."""
        y = F.linear(x, self.main, self.bias)
        for k in range(chosen.shape[1]):
            u, s, v = (factor[chosen[:, k]] for factor in (self.u, self.s, self.v))
            hidden = torch.bmm(x, v.transpose(1, 2)) * s.unsqueeze(1)
            y = y + weights[:, k, None, None] * torch.bmm(hidden, u.transpose(1, 2))
        return y


class ReferenceBlock(nn.Module):
    """A pre-norm block with eager attention; `experts` decides whether it is the frozen copy."""

    out_proj: nn.Module

    def __init__(self, block: Any, heads: int, *, experts: bool) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2, self.mlp = heads, block.norm1, block.norm2, block.mlp
        for name in PROJECTIONS:
            layer = getattr(block.attention, name)
            self.add_module(name, ReferenceProjection(layer) if experts else _dense(layer))

    def forward(self, x: Tensor, *routing: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        normal = self.norm1(x)
        q, k, v = (self._split(getattr(self, name)(normal, *routing)) for name in PROJECTIONS[:3])
        scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[-1] ** -0.5
        attention = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        mixed = torch.matmul(attention, v).transpose(1, 2).reshape(x.shape)
        x = x + self.out_proj(mixed, *routing)
        hidden = self.mlp.fc1(self.norm2(x))
        return x + self.mlp.fc2(hidden * torch.sigmoid(1.702 * hidden))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def _dense(layer: LowRankExperts) -> nn.Linear:
    dense = nn.Linear(layer.weight.shape[1], layer.weight.shape[0])
    dense.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    return dense.requires_grad_(False)


class Reference(nn.Module):
    """The published forward pass: frozen pass, router, gated pass, head."""

    def __init__(self, model: OmniAID) -> None:
        super().__init__()
        trunk: Any = model.trunk
        self.trunk, self.router, self.head = trunk, model.router, model.head
        heads = trunk.config.heads
        self.frozen = nn.ModuleList(ReferenceBlock(b, heads, experts=False) for b in trunk.blocks)
        self.gated = nn.ModuleList(ReferenceBlock(b, heads, experts=True) for b in trunk.blocks)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits (B, 2)."""
        start = self.trunk.embeddings((pixels.float() - self.trunk.mean) / self.trunk.std)
        with torch.no_grad():
            x = start
            for block in self.frozen:
                x = block(x)
            pooled = self.trunk.final_norm(x)[:, 0]
        best, chosen = self.router(pooled).float().topk(TOP_K, dim=-1)
        artifact = torch.full_like(chosen[:, :1], EXPERTS - 1)
        chosen = torch.cat([chosen, artifact], dim=1)
        weights = torch.cat([best.softmax(dim=-1), torch.ones_like(best[:, :1])], dim=1)
        x = start
        for block in self.gated:
            x = block(x, chosen, weights.to(x.dtype))
        return self.head(self.trunk.final_norm(x)[:, 0])


def random_backbone(depth: int, image_px: int) -> tuple[TrunkConfig, dict[str, Tensor]]:
    """Random weights of CLIP's ViT-L/14 with `depth` blocks, scaled so that activations stay near one."""
    config = TrunkConfig(
        width=1024,
        depth=depth,
        heads=16,
        patch_px=14,
        image_px=image_px,
        mlp_width=4096,
        final_norm=True,
    )
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in weight_shapes(config).items():
        drawn = torch.randn(shape, generator=generator)
        fan = drawn[0].numel() if drawn.dim() > 1 else 100
        is_scale = "norm" in name and name.endswith("weight")
        weights[name] = 1 + drawn / 10 if is_scale else drawn / fan**0.5
    return config, weights


def variants(depth: int, image_px: int, tap: int) -> dict[str, nn.Module]:
    """The reference and ours by name, on the same weights; experts in all blocks (`early`: after its tap)."""
    two_pass = RouterConfig(top_k=TOP_K)
    config = ModelConfig(
        depth=depth,
        features="final",
        experts=ExpertConfig(rank=RANK),
        router=two_pass,
        image_px=image_px,
    )
    model = build_model(config, backbone=random_backbone(depth, image_px))
    shake(model)
    return {
        "reference": Reference(model),
        "two-pass": model,
        "single-pass (main)": rerouted(model, "main", tap, router_tap=tap),
        "single-pass (early)": rerouted(model, "early", tap, first_expert_block=tap + 1),
    }


def rerouted(model: OmniAID, mode: str, tap: int, **trunk_changes: int) -> OmniAID:
    """The same weights behind another router; building the model anew would decompose every matrix again."""
    router = RouterConfig.model_validate({"mode": mode, "tap": tap, "top_k": TOP_K})
    trunk = copy.copy(model.trunk)
    for name, value in trunk_changes.items():
        setattr(trunk, name, value)
    return OmniAID(model.config.model_copy(update={"router": router}), trunk)


@torch.no_grad()
def shake(model: OmniAID) -> None:
    """Move the experts apart, as training does."""
    generator = torch.Generator().manual_seed(1)
    for layer in model.expert_layers():
        layer.u.add_(0.05 * torch.randn(layer.u.shape, generator=generator))


def forward(model: nn.Module, pixels: Tensor) -> Tensor:
    """Logits of any variant."""
    output = model(pixels)
    return output if isinstance(output, Tensor) else output.logits


def train_step(model: nn.Module, pixels: Tensor) -> Tensor:
    """Forward and backward of experts, router and head, without an optimiser: the loss."""
    model.zero_grad(set_to_none=True)
    loss = F.cross_entropy(forward(model, pixels).float(), torch.arange(len(pixels)) % 2)
    loss.backward()
    return loss.detach()


def alternate(models: dict[str, nn.Module], run: Callable[[nn.Module], Any], repeats: int) -> dict[str, Any]:
    """Times by variant: one round after another, so that all see the same machine.

    Speed is the ratio of medians of processor time, which other load on the machine does not stretch.
    """
    wall: dict[str, list[float]] = {name: [] for name in models}
    busy: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repeats):
        for name, model in models.items():
            begin = time.perf_counter(), time.process_time()
            run(model)
            wall[name].append(time.perf_counter() - begin[0])
            busy[name].append(time.process_time() - begin[1])
    medians = {name: statistics.median(times) for name, times in busy.items()}
    return {
        name: {
            "processor_s": medians[name],
            "wall_s": statistics.median(wall[name]),
            "speed": medians["reference"] / medians[name],
            "processor_runs_s": busy[name],
            "wall_runs_s": wall[name],
        }
        for name in models
    }


@contextlib.contextmanager
def peak_rss() -> Iterator[list[int]]:
    """Yields a list that afterwards holds by how many bytes this process grew at most."""
    gc.collect()
    # Memory that an earlier run freed but the allocator kept would hide what this one needs.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    grown, done, before = [0], threading.Event(), _rss_bytes()

    def watch() -> None:
        while not done.wait(0.005):
            grown[0] = max(grown[0], _rss_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield grown
    finally:
        done.set()
        watcher.join()


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def saved_bytes(model: nn.Module, pixels: Tensor) -> int:
    """Bytes that autograd keeps between the forward and the backward pass, weights not counted."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        kept = forward(model, pixels)
    total = sum(seen.values())
    del kept
    return total


def measure_forward(models: dict[str, nn.Module], pixels: Tensor, repeats: int, bf16: bool) -> dict[str, Any]:
    """Times and speed against the reference, by variant."""

    def run(model: nn.Module) -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            forward(model.eval(), pixels)

    return alternate(models, run, repeats)


def measure_training(models: dict[str, nn.Module], pixels: Tensor, repeats: int) -> dict[str, Any]:
    """Times of a step, bytes kept for the backward pass and growth of the process, by variant."""
    rows = alternate(models, lambda model: train_step(model.train(), pixels), repeats)
    for name, model in models.items():
        rows[name]["saved_bytes"] = saved_bytes(model, pixels)
        with peak_rss() as grown:
            train_step(model, pixels)
        rows[name]["peak_rss_growth_bytes"] = grown[0]
        model.zero_grad(set_to_none=True)
    return rows


def check_same(models: dict[str, nn.Module], pixels: Tensor) -> float:
    """Largest difference of logits between reference and two-pass; more than 1e-3 ends the program."""
    with torch.no_grad():
        one, other = (forward(models[name].eval(), pixels) for name in ("reference", "two-pass"))
    difference = float((one - other).abs().max())
    if difference > 1e-3:
        raise SystemExit(f"reference and two-pass differ by {difference:.2e}; they must be the same model")
    return difference


def to_markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    setup = report["setup"]
    lines = [
        "# OmniAID in torch against a straightforward implementation",
        "",
        f"ViT-L/14 at {setup['image_px']} px, {EXPERTS} experts of rank {RANK}, top-{TOP_K}, batch "
        f"{setup['batch']}; {setup['repeats']} alternating "
        "runs in one process, medians; speed is the ratio of processor times. Torch "
        f"{setup['torch']}, {setup['threads']} thread(s), "
        f"{setup['processor']}. Logits of reference and two-pass differ by at most "
        f"{report['difference']:.1e}.",
        "",
        "Ours computes in the last block what the class token needs and no more, so fewer blocks flatter it. "
        f"The processor {'has' if setup['bf16_units'] else 'has no'} bf16 instructions"
        f"{'' if setup['bf16_units'] else ': its bf16 times say nothing about one that has them'}.",
    ]
    for title, part in report["parts"].items():
        lines += [
            "",
            f"## {title}",
            "",
            "| variant | processor s | wall s | speed | kept for backward | process growth |",
        ]
        lines += ["|---|---|---|---|---|---|"]
        for name, row in part.items():
            kept, grown = (
                f"{row[field] / 2**20:.0f} MiB" if field in row else "-"
                for field in ("saved_bytes", "peak_rss_growth_bytes")
            )
            times = f"{row['processor_s']:.2f} | {row['wall_s']:.2f} | {row['speed']:.2f}x"
            lines.append(f"| {name} | {times} | {kept} | {grown} |")
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=24, help="blocks in the fp32 forward pass, 2 or more")
    parser.add_argument("--bf16-depth", type=int, default=24, help="blocks under bf16 autocast; 0 skips it")
    parser.add_argument("--train-depth", type=int, default=24, help="blocks in the training step; 0 skips it")
    parser.add_argument("--image-px", type=int, default=336)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--tap", type=int, default=8, help="block that the single-pass routers read")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch takes")
    parser.add_argument("--out", type=Path, help="folder for omniaid_forward.md and .json; else printed")
    return parser.parse_args()


def main() -> None:
    """Measure, print, store."""
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    size = options.image_px
    pixels = torch.randint(
        0, 256, (options.batch, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )
    parts: dict[str, Any] = {}
    report: dict[str, Any] = {"parts": parts, "setup": describe(options)}
    for depth, title, measure in (
        (options.depth, "Forward, fp32", lambda m: measure_forward(m, pixels, options.repeats, False)),
        (
            options.bf16_depth,
            "Forward, bf16 autocast",
            lambda m: measure_forward(m, pixels, options.repeats, True),
        ),
        (options.train_depth, "Training step, fp32", lambda m: measure_training(m, pixels, options.repeats)),
    ):
        if depth:
            models = variants(depth, size, min(options.tap, depth - 1))
            report.setdefault("difference", check_same(models, pixels))
            tap = min(options.tap, depth - 1)
            parts[f"{title}, {depth} blocks, single-pass routers on block {tap}"] = measure(models)
            print(to_markdown(report), flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "omniaid_forward.json").write_text(json.dumps(report, indent=1) + "\n")
        (options.out / "omniaid_forward.md").write_text(to_markdown(report))


def describe(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    described = {name: value for name, value in vars(options).items() if name != "out"}
    return described | {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "bf16_units": any(flag in Path("/proc/cpuinfo").read_text() for flag in ("avx512_bf16", "amx_bf16")),
        "wanted_speed": WANTED,
    }


if __name__ == "__main__":
    main()
