"""The toy models: a mixture of experts and two dense ones, trained once and kept in a folder."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from moe_core.errors import ConfigError
from moe_core.toys.corpus import DOMAINS, domain_text, sequences

Kind = Literal["moe", "dense", "dense-small"]
Size = Literal["full", "smoke"]

VOCABULARY = 256
AUXILIARY = 0.005


@dataclass(frozen=True)
class Recipe:
    """How a toy is built and trained.

    Attributes:
        width: D; heads of 24 or 16 values are cut from it.
        layers: decoder layers.
        hidden: H of a dense block, or of one expert.
        experts, active: E and K; 0 for a dense model.
        steps, batch, length: training, in sequences of `length` bytes.
        rate: peak learning rate of AdamW under a cosine.
    """

    width: int
    layers: int
    hidden: int
    experts: int
    active: int
    steps: int
    batch: int = 8
    length: int = 96
    rate: float = 2e-3


RECIPES: dict[tuple[str, str], Recipe] = {
    ("moe", "full"): Recipe(96, 3, 48, 16, 4, steps=1500),
    ("dense", "full"): Recipe(96, 3, 384, 0, 0, steps=1300),
    ("dense-small", "full"): Recipe(64, 2, 192, 0, 0, steps=800),
    ("moe", "smoke"): Recipe(32, 2, 16, 16, 4, steps=60, length=48, rate=6e-3),
    ("dense", "smoke"): Recipe(32, 2, 128, 0, 0, steps=60, length=48, rate=6e-3),
    ("dense-small", "smoke"): Recipe(16, 2, 64, 0, 0, steps=60, length=48, rate=6e-3),
}


def load_toy(kind: Kind, size: Size = "full", folder: Path | None = None) -> Any:
    """A fresh copy of a trained toy, in evaluation mode and float32; change it freely.

    Args:
        kind: "moe" (Qwen3Moe), "dense" (Qwen3) or "dense-small" (Qwen3, about a quarter of it).
        size: "full" trains for minutes on one core, "smoke" for seconds.
        folder: where trained toys are kept; without it they are trained once per process.

    Raises:
        ConfigError: there is no such toy.
    """
    if (kind, size) not in RECIPES:
        known = ", ".join(f"{name} {scale}" for name, scale in RECIPES)
        raise ConfigError(f"toy {kind!r} of size {size!r} is unknown; there are: {known}")
    model = build(RECIPES[kind, size], seed=0)
    model.load_state_dict(_kept(kind, size, folder) if folder else _trained(kind, size))
    return model.eval()


def _kept(kind: Kind, size: Size, folder: Path) -> dict[str, Tensor]:
    """Weights from the folder; trained and put there first when it has none of this recipe and text."""
    from safetensors.torch import load_file, save_file

    path = folder / f"{kind}-{size}-{_fingerprint(RECIPES[kind, size])}.safetensors"
    if path.is_file():
        return load_file(path)
    weights = {name: tensor.contiguous() for name, tensor in _trained(kind, size).items()}
    folder.mkdir(parents=True, exist_ok=True)
    handle, half = tempfile.mkstemp(dir=folder, suffix=".partial")
    os.close(handle)
    save_file(weights, half)
    Path(half).replace(path)
    return weights


def _fingerprint(recipe: Recipe) -> str:
    """Eight hex digits that change with the recipe and with the text it is trained on."""
    parts = [repr(recipe).encode(), *(domain_text(domain, "train") for domain in DOMAINS)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:8]


def build(recipe: Recipe, seed: int) -> Any:
    """An untrained model of that recipe, its weights drawn by `seed`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    heads = 4
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": recipe.width,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "head_dim": recipe.width // heads,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    with _seeded(seed):
        if not recipe.experts:
            return Qwen3ForCausalLM(Qwen3Config(**shared, intermediate_size=recipe.hidden))
        return Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                **shared,
                intermediate_size=recipe.hidden * recipe.active,
                moe_intermediate_size=recipe.hidden,
                num_experts=recipe.experts,
                num_experts_per_tok=recipe.active,
                norm_topk_prob=True,
                router_aux_loss_coef=AUXILIARY,
            )
        )


@cache
def _trained(kind: Kind, size: Size) -> dict[str, Tensor]:
    recipe = RECIPES[kind, size]
    return train(build(recipe, seed=0), recipe, seed=0).state_dict()


def train(model: Any, recipe: Recipe, seed: int) -> Any:
    """The model after `recipe.steps` steps on the corpus; it is changed in place."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=0.01)
    warm = max(1, recipe.steps // 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=warm),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.steps - warm, recipe.rate * 0.05),
        ],
        [warm],
    )
    routed = {"output_router_logits": True} if recipe.experts else {}
    model.train()
    for step in range(recipe.steps):
        ids = sequences("train", recipe.batch, recipe.length, seed=seed * 1_000_003 + step)
        loss = model(input_ids=ids, labels=ids, **routed).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def token_losses(model: Any, ids: Tensor, batch: int = 16) -> Tensor:
    """Mean loss (N,) float64 of each sequence, in nats per token.

    Args:
        model: a causal language model.
        ids: (N, L) int64 tokens without padding.
        batch: sequences per forward pass.
    """
    return torch.cat([_losses(model(input_ids=part).logits, part) for part in ids.split(batch)])


def _losses(logits: Tensor, ids: Tensor) -> Tensor:
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2).float(), ids[:, 1:], reduction="none")
    return losses.double().mean(dim=1)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw by `seed` inside, and leave the caller's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
