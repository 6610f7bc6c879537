"""The backbones that the published models stand on: from files that are at hand, never from the network."""

from detector.backbones.files import load_file
from detector.backbones.naming import Backbone
from detector.errors import ModelError
from detector.vit.shapes import IMAGENET_MEAN, IMAGENET_STD, TrunkConfig
from mirage.extras import need

PUBLISHED: dict[str, TrunkConfig] = {
    "clip-vit-l14-336": TrunkConfig(
        width=1024, depth=24, heads=16, patch_px=14, image_px=336, mlp_width=4096, final_norm=True
    ),
    "dinov3-vit-l16": TrunkConfig(
        width=1024,
        depth=24,
        heads=16,
        patch_px=16,
        image_px=448,
        mlp_width=4096,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        activation="gelu",
        positions="rotary",
        registers=4,
        patch_bias=True,
        embedding_norm=False,
        layer_scale=True,
        final_norm=True,
    ),
}
# Where their weights lie on the hub, and so in its cache.
REPOSITORIES = {
    "clip-vit-l14-336": "openai/clip-vit-large-patch14-336",
    "dinov3-vit-l16": "facebook/dinov3-vitl16-pretrain-lvd1689m",
}
WEIGHTS = "model.safetensors"


def load_published(name: str, file: str | None = None) -> Backbone:
    """Structure and weights of a published backbone.

    Args:
        name: a name of PUBLISHED.
        file: a `.safetensors` file with Hugging Face's names; None for the one in the Hugging Face cache.

    Raises:
        ModelError: there is no such file, or it holds another backbone.
    """
    path, structure = file or _cached(name), PUBLISHED[name]
    found, weights = load_file(path)
    # A file alone does not tell what these say; the shapes of the weights are checked all the same.
    known = {field: getattr(structure, field) for field in ("mean", "std", "norm_eps", "image_px")}
    if structure.positions != "rotary":
        known.pop("image_px")
    found = found.model_copy(update=known)
    mine, wanted = found.model_dump(), structure.model_dump()
    other = [field for field in wanted if mine[field] != wanted[field]]
    if other:
        raise ModelError(f"{path} is no {name}: {other[0]} is {mine[other[0]]}, not {wanted[other[0]]}")
    return found, weights


def _cached(name: str) -> str:
    """The path of the weights in the Hugging Face cache.

    Raises:
        ModelError: they are not there.
    """
    path = need("huggingface_hub").try_to_load_from_cache(REPOSITORIES[name], WEIGHTS)
    if not isinstance(path, str):
        raise ModelError(
            f"backbone {name} needs its weights at hand, and the Hugging Face cache holds no {WEIGHTS} of "
            f"{REPOSITORIES[name]}; put it there, or name the file: {name}:FILE.safetensors"
        )
    return path
