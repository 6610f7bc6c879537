"""What a killed run continues from: one file, replaced as a whole."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from detector.errors import RecipeError
from detector.model import OmniAID

STATE = "state.pt"


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Put `state` in place of the one before; a kill at any moment leaves one of the two."""
    partial = folder / f"{STATE}.partial"
    torch.save(state, partial)
    partial.replace(folder / STATE)


def read_state(folder: Path, identity: str) -> dict[str, Any] | None:
    """What the folder's run had come to; None when it has not begun.

    Raises:
        RecipeError: the run belongs to other settings or pictures.
    """
    path = folder / STATE
    if not path.exists():
        return None
    saved = torch.load(path, weights_only=True, map_location="cpu")
    if saved["identity"] != identity:
        raise RecipeError(f"{path} belongs to another recipe or data set; use another folder or delete it")
    return saved


def restore(model: OmniAID, state: dict[str, Tensor]) -> None:
    """Load what training changes, strictly.

    Raises:
        RecipeError: a weight is missing or unexpected; the message names it.
    """
    wrong = sorted(model.trainable_state().keys() ^ state.keys())
    if wrong:
        raise RecipeError(f"the saved state and the model differ in {len(wrong)} weights, first: {wrong[0]}")
    model.load_state_dict(state, strict=False)
