"""Every router mode, kind of expert and structure of backbone through every graph; slow: each is traced."""

import onnx
import pytest
import torch

from detector.exporting.checks import check_against_torch
from detector.exporting.files import trace
from detector.exporting.graphs import view_model
from detector.exporting.storage import compress_weights
from detector.model import ModelConfig, build_model
from detector.vit import ExpertConfig, TrunkConfig, weight_shapes
from detector.vit.shapes import IMAGENET_MEAN, IMAGENET_STD
from tests.detector.exported import PINNED, move
from tests.detector.tiny import tiny_config
from tests.detector.tiny_releases import CLIP, DINO, SHAPE

WIDE = {"width": 64, "heads": 2, "depth": 3}
CLIP_TOWER = CLIP.model_copy(update=WIDE)
DINOV3 = DINO.model_copy(update=WIDE)
DINOV2 = TrunkConfig(
    **(SHAPE | WIDE),
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    activation="silu",
    norm_eps=1e-6,
    positions="bicubic-antialias",
    registers=3,
    patch_bias=True,
    embedding_norm=False,
    layer_scale=True,
    gated_mlp=True,
    final_norm=True,
)
PAPER = {"features": "final", "taps": ()}
EARLY = {"router": {"mode": "early", "tap": 1, "hidden": 8}}
MAIN = {"router": {"mode": "main", "tap": 1, "hidden": 8}}
LORA = {"experts": ExpertConfig(kind="lora", rank=2)}
# Name -> structure of the backbone, and what of the model is not the plainest.
VARIANTS = {
    "two-pass svd": (CLIP_TOWER, PAPER),
    "two-pass lora": (CLIP_TOWER, PAPER | LORA),
    "two-pass svd on mlp too": (
        CLIP_TOWER,
        {"experts": ExpertConfig(rank=(1, 2, 1, 1, 2, 3), on="attention+mlp")},
    ),
    "early svd": (CLIP_TOWER, EARLY),
    "early lora on mlp": (CLIP_TOWER, EARLY | {"experts": ExpertConfig(kind="lora", rank=2, on="mlp")}),
    "main svd": (CLIP_TOWER, MAIN | PAPER),
    "main lora": (CLIP_TOWER, MAIN | LORA),
    "top-1, patch mean": (CLIP_TOWER, {"router": {"top_k": 1, "hidden": 8}, "patch_mean": True}),
    "dinov2 two-pass svd": (DINOV2, PAPER),
    "dinov2 main lora on mlp too": (
        DINOV2,
        MAIN | {"experts": ExpertConfig(kind="lora", on="attention+mlp", rank=2)},
    ),
    "dinov3 two-pass svd": (DINOV3, PAPER),
    "dinov3 early lora": (DINOV3, EARLY | LORA),
    "another size": (DINOV3, PAPER | {"image_px": 48}),
}


def random_weights(config: TrunkConfig) -> dict[str, torch.Tensor]:
    generator, weights = torch.Generator().manual_seed(0), {}
    for name, shape in weight_shapes(config).items():
        drawn = torch.randn(shape, generator=generator)
        fan = drawn[0].numel() if drawn.dim() > 1 else 25
        is_scale = "norm" in name and name.endswith("weight")
        weights[name] = 1 + drawn / 10 if is_scale else drawn / fan**0.5
    return weights


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["patches", "router", "gates", "folded"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_gives_the_numbers_of_torch(variant, graph, tmp_path):
    trunk, changes = VARIANTS[variant]
    config = ModelConfig(**(tiny_config().model_dump() | changes))
    model = move(build_model(config, backbone=(trunk, random_weights(trunk))))
    view, path = view_model(model, graph, PINNED if graph == "folded" else None), tmp_path / "model.onnx"
    traced = trace(view, path)
    compress_weights(traced.graph)
    onnx.save(traced, str(path))
    assert check_against_torch(view, path, 1e-4) <= 1e-4
