"""Random models of two narrow layers, one for each architecture."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SHARED = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LATENT = {
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
}
SPARSE: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "qwen2_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v2": LATENT | {"n_group": 1, "topk_group": 1, "topk_method": "greedy"},
    "deepseek_v3": LATENT | {"n_group": 2, "topk_group": 1},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2},
}
DENSE = ("llama", "qwen2", "qwen3", "mistral")
FACTORABLE = tuple(name for name in SPARSE if name != "gpt_oss")


def tiny(name: str, **changes: Any) -> Any:
    """A random model of that architecture in evaluation mode; always the same one."""
    values = SHARED | SPARSE.get(name, {}) | changes
    if name.startswith("deepseek"):
        values.pop("head_dim")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **values)
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def tokens(count: int = 4, length: int = 12, seed: int = 0) -> torch.Tensor:
    """(count, length) random tokens."""
    return torch.randint(0, 64, (count, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Of a model, (B, L, V)."""
    return model(input_ids=ids).logits
