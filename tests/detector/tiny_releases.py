"""Tiny checkpoints with the exact key structure of the release's files."""

import argparse

import torch

from detector.vit import TrunkConfig
from detector.vit.shapes import IMAGENET_MEAN, IMAGENET_STD

WIDTH, DEPTH, PATCH, SIZE, MLP, HIDDEN = 32, 2, 8, 32, 48, 6
SHAPE = {"width": WIDTH, "depth": DEPTH, "heads": 2, "patch_px": PATCH, "image_px": SIZE, "mlp_width": MLP}
CLIP = TrunkConfig(**SHAPE, final_norm=True)
DINO = TrunkConfig(
    **SHAPE,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    activation="gelu",
    positions="rotary",
    registers=2,
    patch_bias=True,
    embedding_norm=False,
    layer_scale=True,
    final_norm=True,
)
PROJECTIONS = ("q", "k", "v", "out")
State = dict[str, torch.Tensor]


class Draw:
    """Seeded random tensors."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, scale: float | None = None) -> torch.Tensor:
        values = torch.randn(*shape, generator=self.generator)
        return values * (shape[-1] ** -0.5 if scale is None else scale)

    def norm(self, name: str) -> State:
        return {f"{name}.weight": 1 + self(WIDTH, scale=0.1), f"{name}.bias": self(WIDTH, scale=0.1)}


def expert_parts(draw: Draw, weight: torch.Tensor, kind: str, experts: int, rank: int) -> State:
    """What the release keeps of one projection with trained experts."""
    if kind == "lora":
        parts = {"weight_main": weight}
        for e in range(experts):
            parts |= {f"lora_A_experts.{e}": draw(rank, WIDTH), f"lora_B_experts.{e}": draw(WIDTH, rank)}
        return parts
    u, s, v = torch.linalg.svd(weight.double(), full_matrices=False)
    main = WIDTH - rank
    parts = {
        "weight_main": (u[:, :main] * s[:main]) @ v[:main],
        "U_r": u[:, :main],
        "V_r": v[:main],
        "weight_original_fnorm": weight.double().norm(),
    }
    for e in range(experts):
        parts |= {
            f"U_experts.{e}": u[:, main:] + draw(WIDTH, rank, scale=0.3),
            f"S_experts.{e}": s[main:] + draw(rank, scale=0.3),
            f"V_experts.{e}": v[main:] + draw(rank, WIDTH, scale=0.3),
        }
    return {name: value.float().contiguous() for name, value in parts.items()}


def head_and_router(draw: Draw, experts: int) -> State:
    return {
        "gating_network.network.0.weight": draw(HIDDEN, WIDTH),
        "gating_network.network.0.bias": draw(HIDDEN),
        "gating_network.network.2.weight": draw(experts - 1, HIDDEN),
        "gating_network.network.2.bias": draw(experts - 1),
        "head.weight": draw(2, WIDTH),
        "head.bias": draw(2),
    }


def clip_state(kind: str = "svd", experts: int = 6, rank: int = 3, seed: int = 0) -> State:
    draw, state, frozen = Draw(seed), {}, "feature_extractor.vision_model."
    for name, value in {
        "class_embedding": draw(WIDTH),
        "patch_embedding.weight": draw(WIDTH, 3, PATCH, PATCH, scale=0.1),
        "position_embedding.weight": draw((SIZE // PATCH) ** 2 + 1, WIDTH),
    }.items():
        state |= {f"embeddings.{name}": value, f"{frozen}embeddings.{name}": value.clone()}
    state[f"{frozen}embeddings.position_ids"] = torch.arange(17).unsqueeze(0)
    pairs = [("ln_pre", "pre_layrnorm"), ("ln_post", "post_layernorm")]
    pairs += [
        (f"encoder_layers.{i}.layer_norm{n}", f"encoder.layers.{i}.layer_norm{n}")
        for i in range(DEPTH)
        for n in (1, 2)
    ]
    for mine, theirs in pairs:
        for name, value in draw.norm("").items():
            state |= {mine + name: value, frozen + theirs + name: value.clone()}
    for i in range(DEPTH):
        for name, shape in (("fc1", (MLP, WIDTH)), ("fc2", (WIDTH, MLP))):
            for part, value in {"weight": draw(*shape), "bias": draw(shape[0], scale=0.1)}.items():
                state[f"encoder_layers.{i}.mlp.{name}.{part}"] = value
                state[f"{frozen}encoder.layers.{i}.mlp.{name}.{part}"] = value.clone()
        for p in PROJECTIONS:
            weight, bias = draw(WIDTH, WIDTH), draw(WIDTH, scale=0.1)
            stem = f"encoder_layers.{i}.self_attn.{p}_proj."
            parts = expert_parts(draw, weight, kind, experts, rank) | {"bias": bias}
            state |= {stem + name: value for name, value in parts.items()}
            own = f"{frozen}encoder.layers.{i}.self_attn.{p}_proj."
            state |= {own + "weight": weight.clone(), own + "bias": bias.clone()}
    return state | head_and_router(draw, experts)


def dino_state(experts: int = 6, rank: int = 1, seed: int = 0) -> State:
    """Hugging Face's DINOv3 names in the frozen copy; no bias on keys."""
    draw, state, frozen = Draw(seed), {}, "feature_extractor."
    for name, value in {
        "cls_token": draw(1, 1, WIDTH),
        "register_tokens": draw(1, 2, WIDTH),
        "mask_token": draw(1, 1, WIDTH),
        "patch_embeddings.weight": draw(WIDTH, 3, PATCH, PATCH, scale=0.1),
        "patch_embeddings.bias": draw(WIDTH),
    }.items():
        state |= {f"embeddings.{name}": value, f"{frozen}embeddings.{name}": value.clone()}
    for name, value in draw.norm("").items():
        state |= {f"ln_post{name}": value, f"{frozen}norm{name}": value.clone()}
    for i in range(DEPTH):
        mine, theirs = f"encoder_layers.{i}.", f"{frozen}layer.{i}."
        for n in (1, 2):
            for name, value in draw.norm("").items():
                state |= {f"{mine}layer_norm{n}{name}": value, f"{theirs}norm{n}{name}": value.clone()}
            scale = draw(WIDTH, scale=1.0)
            state |= {
                f"{mine}layer_scale{n}.lambda1": scale,
                f"{theirs}layer_scale{n}.lambda1": scale.clone(),
            }
        for a, b, shape in (("fc1", "up_proj", (MLP, WIDTH)), ("fc2", "down_proj", (WIDTH, MLP))):
            for part, value in {"weight": draw(*shape), "bias": draw(shape[0], scale=0.1)}.items():
                state |= {f"{mine}mlp.{a}.{part}": value, f"{theirs}mlp.{b}.{part}": value.clone()}
        for p in PROJECTIONS:
            weight, bias = draw(WIDTH, WIDTH), draw(WIDTH, scale=0.1)
            stem, own = f"{mine}self_attn.{p}_proj.", f"{theirs}attention.{'o' if p == 'out' else p}_proj."
            parts = expert_parts(draw, weight, "svd", experts, rank)
            state |= {stem + name: value for name, value in parts.items()}
            state[own + "weight"] = weight.clone()
            if p != "k":
                state |= {stem + "bias": bias, own + "bias": bias.clone()}
    return state | head_and_router(draw, experts)


WRAPPERS = {
    "model": lambda state: {"model": state, "epoch": 1, "args": argparse.Namespace(lr=2e-4)},
    "model_ema": lambda state: {"model_ema": state},
    "module": lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
    "bare": lambda state: state,
}
