"""One released file, with what its name and the user say about it, stored in our format."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from detector.backbones import load_backbone
from detector.backbones.published import PUBLISHED
from detector.checkpoint import save_checkpoint
from detector.errors import ModelError
from detector.preprocess import Preprocessing
from detector.released.archive import read_archive
from detector.released.conversion import Release, convert_release
from detector.vit import TrunkConfig

Variant = Literal["v1", "v2"]
# The release's own backbones, known without their weights, because a file brings these along.
STRUCTURES: dict[str, TrunkConfig] = dict(PUBLISHED)
# The first weights were trained on pictures resized twice: to this, then to the input's size.
RESIZED_FIRST_PX: dict[Variant, int | None] = {"v1": 512, "v2": None}


@dataclass(frozen=True)
class Choices:
    """What no tensor tells.

    Attributes:
        variant: preprocessing; None takes it from a name that ends in `_v1` or `_v2`.
        domains: names of the semantic experts; None where their number says which.
        top_k: chosen experts; None where the number of experts says how many.
        size_px: side of the input of a backbone with rotary positions; None for its own.
    """

    variant: Variant | None = None
    domains: tuple[str, ...] | None = None
    top_k: int | None = None
    size_px: int | None = None


def import_release(path: Path, backbone: str, out: Path, choices: Choices | None = None) -> Release:
    """The released model in `path`, after it was written to `out` in our format.

    Args:
        path: one of the release's `.pth` files.
        backbone: a name of STRUCTURES, or any that `load_backbone` knows.
        out: the folder to write.
        choices: what no tensor tells.

    Raises:
        ModelError: the file does not fit the backbone, or something that nobody said is not known; or
            `out` holds a checkpoint already.
    """
    chosen = choices or Choices()
    if (out / "model.json").exists():
        raise ModelError(f"{out} holds a checkpoint already; name another folder or delete it")
    if out.exists() and not out.is_dir():
        raise ModelError(f"{out} is a file; the folder to write is needed")
    variant = chosen.variant or _variant_in(path)
    trunk, frozen = _structure(backbone, chosen.size_px)
    archive = read_archive(path)
    release = convert_release(
        archive,
        backbone,
        trunk,
        domains=chosen.domains,
        top_k=chosen.top_k,
        frozen=frozen,
    )
    origin = {
        "file": archive.source,
        "sha256": archive.sha256,
        "wrapper": archive.wrapper,
        "variant": variant,
        "frozen_from": release.frozen_from,
        "deviation": release.deviation,
    }
    size = release.model.trunk.config.image_px
    preprocessing = Preprocessing(
        size_px=size, views=("global",), resized_first_px=RESIZED_FIRST_PX[variant]
    ).model_dump(mode="json")
    save_checkpoint(release.model, out, {"origin": origin, "preprocessing": preprocessing})
    return release


def _variant_in(path: Path) -> Variant:
    """The variant that a file's name ends with.

    Raises:
        ModelError: it ends with none.
    """
    found = re.search(r"_(v[12])$", path.stem)
    if found is None:
        raise ModelError(
            f"{path.name} does not end in _v1 or _v2; say with --variant how its pictures are resized"
        )
    return "v1" if found[1] == "v1" else "v2"


def _structure(name: str, size_px: int | None) -> tuple[TrunkConfig, dict[str, Tensor] | None]:
    """The backbone's structure, and its weights where they are at hand.

    Raises:
        ModelError: the backbone is unknown, or its input cannot be of that size.
    """
    trunk, weights = (STRUCTURES[name], None) if name in STRUCTURES else load_backbone(name)
    if size_px is None:
        return trunk, weights
    if trunk.positions != "rotary":
        raise ModelError(f"the position table decides the input size of {name}; leave the size out")
    if size_px < trunk.patch_px or size_px % trunk.patch_px:
        raise ModelError(f"an input of {size_px} px cannot be cut into patches of {trunk.patch_px} px")
    return trunk.model_copy(update={"image_px": size_px}), weights
