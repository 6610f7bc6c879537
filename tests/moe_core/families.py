"""Tiny models of random weights, one of each family of mixtures that the core knows, and dense ones."""

from typing import Any

import torch
import transformers
from torch import Tensor

SHARED = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
}
ACTIVE = {"num_experts_per_tok": 3}
QWEN = {"head_dim": 8, "intermediate_size": 32, "moe_intermediate_size": 16, "num_experts": 8}
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-moe": ("Qwen3Moe", {**QWEN, "norm_topk_prob": True}),
    "qwen3-moe-raw": ("Qwen3Moe", {**QWEN, "norm_topk_prob": False, "mlp_only_layers": [1]}),
    "qwen2-moe": ("Qwen2Moe", {**QWEN, "shared_expert_intermediate_size": 16}),
    "mixtral": ("Mixtral", {"head_dim": 8, "intermediate_size": 16, "num_local_experts": 8}),
    "olmoe": ("Olmoe", {"intermediate_size": 16, "num_experts": 8}),
    "deepseek-v2": ("DeepseekV2", {**LATENT, "topk_method": "group_limited_greedy"}),
    "deepseek-v3": ("DeepseekV3", LATENT),
    "gpt-oss": ("GptOss", {"head_dim": 8, "intermediate_size": 16, "num_local_experts": 8}),
}
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"intermediate_size": 32, "num_hidden_layers": 2}),
    "qwen3": ("Qwen3", {"intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}),
}


def tiny(name: str, seed: int = 0, **changes: Any) -> Any:
    """The tiny model of that name in evaluation mode, its weights wide enough for tokens to differ."""
    stem, own = {**MIXTURES, **DENSE}[name]
    active = ACTIVE if name in MIXTURES else {}
    config = getattr(transformers, f"{stem}Config")(**{**SHARED, **active, **own, **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{stem}ForCausalLM")(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim >= 2:
                    weight.normal_(0, 0.2)
    return model.eval()


def words(rows: int, length: int, seed: int = 0, low: int = 1) -> Tensor:
    """Random tokens (rows, length)."""
    return torch.randint(low, 64, (rows, length), generator=torch.Generator().manual_seed(seed))
