"""The published forward pass on the release's tensors, written out picture by picture, expert by expert."""

import math

import torch
import torch.nn.functional as F

from detector.vit import TrunkConfig
from tests.detector.tiny_releases import DEPTH, PATCH, SIZE, WIDTH, State


def linear(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))


def norm(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (WIDTH,), state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)


def with_experts(state: State, name: str, x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """One picture's tokens (T, D): W_main x + b, then one expert after another."""
    y = F.linear(x, state[f"{name}.weight_main"], state.get(f"{name}.bias"))
    for e, gate in enumerate(gates):
        if f"{name}.lora_A_experts.{e}" in state:
            low = x @ state[f"{name}.lora_A_experts.{e}"].T
            y = y + gate * (low @ state[f"{name}.lora_B_experts.{e}"].T)
        else:
            u, s, v = (state[f"{name}.{part}_experts.{e}"] for part in "USV")
            y = y + gate * (x @ v.T @ torch.diag(s) @ u.T)
    return y


def turned(x: torch.Tensor) -> torch.Tensor:
    """Heads of one picture (H, T, d) with DINOv3's rotary positions, channel by channel."""
    side, d, y = SIZE // PATCH, x.shape[-1], x.clone()
    for row in range(side):
        for column in range(side):
            token = 3 + row * side + column
            for axis, place in enumerate((row, column)):
                for k in range(d // 4):
                    angle = 2 * math.pi * ((place + 0.5) / side * 2 - 1) / 100 ** (4 * k / d)
                    a, b = axis * (d // 4) + k, axis * (d // 4) + k + d // 2
                    y[:, token, a] = x[:, token, a] * math.cos(angle) - x[:, token, b] * math.sin(angle)
                    y[:, token, b] = x[:, token, b] * math.cos(angle) + x[:, token, a] * math.sin(angle)
    return y


def features(state: State, names: dict, pixels: torch.Tensor, gates: torch.Tensor | None) -> torch.Tensor:
    """Final class token (D,) of one normalised picture (3, S, S), with experts where gates are given."""
    dino = "cls" in names
    e, patch = names["embeddings"], "patch_embeddings" if dino else "patch_embedding"
    x = F.conv2d(pixels[None], state[f"{e}{patch}.weight"], state.get(f"{e}{patch}.bias"), PATCH)
    x = x.flatten(2)[0].T
    if dino:
        x = torch.cat([state[f"{e}cls_token"][0], state[f"{e}register_tokens"][0], x])
    else:
        x = torch.cat([state[f"{e}class_embedding"][None], x]) + state[f"{e}position_embedding.weight"]
        x = norm(state, names["pre"], x)
    for i in range(DEPTH):
        layer = names["layer"].format(i)

        def project(part: str, y: torch.Tensor, layer: str = layer) -> torch.Tensor:
            name = f"{layer}{names['attention']}.{names.get(part, part)}_proj"
            return linear(state, name, y) if gates is None else with_experts(state, name, y, gates)

        y = norm(state, f"{layer}{names['norm']}1", x)
        q, k, v = (project(part, y).view(-1, 2, WIDTH // 2).transpose(0, 1) for part in "qkv")
        if dino:
            q, k = turned(q), turned(k)
        mixed = (q @ k.transpose(1, 2) / (WIDTH // 2) ** 0.5).softmax(-1) @ v
        y = project("out", mixed.transpose(0, 1).reshape(-1, WIDTH))
        x = x + (y * state[f"{layer}layer_scale1.lambda1"] if dino else y)
        y = linear(state, f"{layer}mlp.{names['fc1']}", norm(state, f"{layer}{names['norm']}2", x))
        y = F.gelu(y) if dino else y * torch.sigmoid(1.702 * y)
        y = linear(state, f"{layer}mlp.{names['fc2']}", y)
        x = x + (y * state[f"{layer}layer_scale2.lambda1"] if dino else y)
    return norm(state, names["post"], x)[0]


MAIN = {
    "embeddings": "embeddings.",
    "pre": "ln_pre",
    "post": "ln_post",
    "layer": "encoder_layers.{}.",
    "attention": "self_attn",
    "norm": "layer_norm",
    "fc1": "fc1",
    "fc2": "fc2",
}
FROZEN_CLIP = MAIN | {
    "embeddings": "feature_extractor.vision_model.embeddings.",
    "pre": "feature_extractor.vision_model.pre_layrnorm",
    "post": "feature_extractor.vision_model.post_layernorm",
    "layer": "feature_extractor.vision_model.encoder.layers.{}.",
}
FROZEN_DINO = MAIN | {
    "embeddings": "feature_extractor.embeddings.",
    "post": "feature_extractor.norm",
    "layer": "feature_extractor.layer.{}.",
    "attention": "attention",
    "out": "o",
    "norm": "norm",
    "fc1": "up_proj",
    "fc2": "down_proj",
    "cls": "",
}


def published(state: State, pixels: torch.Tensor, trunk: TrunkConfig, top_k: int):
    """Logits (B, 2) and gates (B, E) as the release computes them, picture by picture."""
    dino, all_logits, all_gates = trunk.positions == "rotary", [], []
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (trunk.mean, trunk.std))
    for picture in pixels:
        x = (picture / 255 - mean) / std
        read = features(state, FROZEN_DINO if dino else FROZEN_CLIP, x, None)
        hidden = linear(state, "gating_network.network.0", read).relu()
        scores = linear(state, "gating_network.network.2", hidden)
        values, chosen = scores.topk(top_k)
        gates = torch.zeros(len(scores) + 1)
        for expert, weight in zip(chosen.tolist(), values.softmax(0), strict=True):
            gates[expert] = weight
        gates[-1] = 1
        last = features(state, MAIN | ({"cls": ""} if dino else {}), x, gates)
        all_logits.append(linear(state, "head", last))
        all_gates.append(gates)
    return torch.stack(all_logits), torch.stack(all_gates)
