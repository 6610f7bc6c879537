"""A tiny CLIP image tower with the true structure, and a tiny model on it."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from detector.model import ModelConfig, OmniAID, build_model
from detector.vit import ExpertConfig, TrunkConfig

WIDTH, DEPTH, PATCH, SIZE, MLP = 64, 3, 8, 32, 128


def tiny_weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    weights = {
        "embeddings.class_embedding": draw(WIDTH),
        "embeddings.patch_embedding.weight": draw(WIDTH, 3, PATCH, PATCH),
        "embeddings.position_embedding.weight": draw((SIZE // PATCH) ** 2 + 1, WIDTH),
    }
    norms = ["pre_layrnorm", *(f"encoder.layers.{i}.layer_norm{n}" for i in range(DEPTH) for n in (1, 2))]
    for name in norms:
        weights |= {f"{name}.weight": 1 + draw(WIDTH) / 10, f"{name}.bias": draw(WIDTH) / 10}
    for i in range(DEPTH):
        shapes = {f"self_attn.{p}_proj": (WIDTH, WIDTH) for p in ("q", "k", "v", "out")}
        shapes |= {"mlp.fc1": (MLP, WIDTH), "mlp.fc2": (WIDTH, MLP)}
        for name, shape in shapes.items():
            weights |= {
                f"encoder.layers.{i}.{name}.weight": draw(*shape),
                f"encoder.layers.{i}.{name}.bias": draw(shape[0]) / 10,
            }
    return weights


def tiny_backbone(seed: int = 0) -> tuple[TrunkConfig, dict[str, Tensor]]:
    config = TrunkConfig(width=WIDTH, depth=DEPTH, heads=2, patch_px=PATCH, image_px=SIZE, mlp_width=MLP)
    return config, tiny_weights(seed)


def tiny_config(**changes: object) -> ModelConfig:
    values = {
        "backbone": "tiny",
        "depth": DEPTH,
        "taps": (1, 3),
        "experts": ExpertConfig(rank=2),
        "router": {"hidden": 8},
    }
    return ModelConfig(**(values | changes))


def tiny_model(**changes: object) -> OmniAID:
    return build_model(tiny_config(**changes), backbone=tiny_backbone())


def save_tiny_backbone(path: Path) -> Path:
    save_file({f"vision_model.{name}": value for name, value in tiny_weights().items()}, path)
    return path
