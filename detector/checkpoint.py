"""Our checkpoint format: `model.safetensors` with every weight, `model.json` with everything else.

The tensors alone rebuild the model: neither the backbone's source nor a decomposition is needed.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from detector.backbones.files import read_safetensors
from detector.errors import ModelError
from detector.model import ModelConfig, OmniAID, build_model
from detector.vit import TrunkConfig, weight_shapes
from detector.vit.embeddings import resize_positions

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
POSITIONS = "embeddings.position_embedding.weight"


class CheckpointCard(BaseModel):
    """What `model.json` says.

    Attributes:
        format: the version of this format.
        sha256: of the safetensors file, so that files of two checkpoints are never mixed.
        model: what decides the model's shape: backbone's name, experts, domains, router, what the head reads.
        trunk: structure of the backbone as far as it is used.
        facts: what else is known, such as origin and preprocessing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["omniaid-checkpoint-1"] = "omniaid-checkpoint-1"
    sha256: str
    model: ModelConfig
    trunk: TrunkConfig
    facts: dict[str, Any] = Field(default_factory=dict)


def save_checkpoint(model: OmniAID, folder: Path, facts: Mapping[str, Any]) -> None:
    """Write `model` into `folder`, each file whole or not at all, the description last.

    Args:
        model: any model; its weights are stored as they are.
        folder: made when it is missing; files of an earlier checkpoint in it are replaced.
        facts: what else is known of it, in JSON's types.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    written = {name: folder / f"{name}.partial" for name in (WEIGHTS, DESCRIPTION)}
    save_file(tensors, written[WEIGHTS])
    card = CheckpointCard(
        sha256=_sha256(written[WEIGHTS]),
        model=model.config,
        trunk=model.trunk.config,
        facts=dict(facts),
    )
    written[DESCRIPTION].write_text(card.model_dump_json(indent=1) + "\n", "utf-8")
    for name, partial in written.items():
        partial.replace(folder / name)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_checkpoint_card(folder: Path) -> CheckpointCard:
    """What `folder` says about the checkpoint in it.

    Raises:
        ModelError: there is none, or it is not one of ours.
    """
    path = folder / DESCRIPTION
    try:
        return CheckpointCard.model_validate_json(path.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} describes no checkpoint: {_first_fault(error)}") from error


def _first_fault(error: ValidationError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"])
    return f"{where}: {fault['msg']}" if where else fault["msg"]


def load_checkpoint(folder: Path) -> OmniAID:
    """The model in `folder`, in evaluation mode, its weights bit for bit as they were saved.

    Raises:
        ModelError: a file is missing or damaged, the two do not belong together, or a weight is missing,
            unexpected or of another shape or type; the message names it.
    """
    card, path = read_checkpoint_card(folder), folder / WEIGHTS
    tensors = read_safetensors(path)
    digest = _sha256(path)
    if digest != card.sha256:
        raise ModelError(
            f"{path} has sha256 {digest[:12]}; {DESCRIPTION} belongs to a file with {card.sha256[:12]}"
        )
    model = build_undecomposed(card.model, card.trunk, _placeholders(card.trunk, tensors))
    _check(model.state_dict(), tensors, path)
    model.load_state_dict(tensors)
    _refit_positions(model)
    return model.eval()


def _refit_positions(model: OmniAID) -> None:
    """The fitted position table is derived, not stored: make it anew from the loaded one."""
    trunk, embeddings = model.trunk.config, model.trunk.embeddings
    if trunk.positions != "rotary":
        antialias = trunk.positions == "bicubic-antialias"
        embeddings.fitted = resize_positions(embeddings.positions, trunk.grid, antialias=antialias)


def _placeholders(trunk: TrunkConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Zeros in place of the trunk's weights, all of one element; the stored ones replace them.

    The position table may be of another size than the input: its rows are counted in the file.
    """
    shapes = weight_shapes(trunk)
    stored = tensors.get("trunk.embeddings.positions")
    # A table that is no square stays at the expected size, so that the check names it.
    if POSITIONS in shapes and stored is not None and stored.dim() == 2 and _is_square(len(stored)):
        shapes[POSITIONS] = (1 + stored.shape[0], trunk.width)
    return {name: torch.zeros(()).expand(shape) for name, shape in shapes.items()}


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number


def _check(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    wrong = {
        "misses": sorted(expected.keys() - found.keys()),
        "has the unexpected": sorted(found.keys() - expected.keys()),
    }
    for what, names in wrong.items():
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(f"{path} {what} weight {names[0]}{more}")
    for name, value in expected.items():
        mine, theirs = ((tuple(each.shape), each.dtype) for each in (value, found[name]))
        if mine != theirs:
            raise ModelError(
                f"weight {name} of {path} is {theirs[1]} {theirs[0]}; {mine[1]} {mine[0]} is expected"
            )


def build_undecomposed(config: ModelConfig, trunk: TrunkConfig, weights: dict[str, Tensor]) -> OmniAID:
    """A model of this shape on these frozen weights, whose experts are still to be filled.

    Nothing is decomposed, which a large backbone would need minutes for: an SVD layer begins with a
    residual of zeros.

    Args:
        config: the model's shape.
        trunk: the backbone's structure.
        weights: the backbone's weights under the trunk's names.

    Raises:
        ModelError: the configuration and the trunk do not fit each other.
    """
    experts = config.experts.model_copy(update={"kind": "lora"})
    model = build_model(config.model_copy(update={"experts": experts}), backbone=(trunk, weights))
    model.config = config
    if config.experts.kind == "svd":
        for layer in model.expert_layers():
            (d_out, d_in), rank = layer.weight.shape, layer.rank
            layer.residual_u = torch.zeros(rank, d_out)
            layer.residual_s = torch.zeros(rank)
            layer.residual_v = torch.zeros(rank, d_in)
            layer.s.requires_grad_(True)
    return model
