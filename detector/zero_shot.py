"""Domains by comparing a picture with sentences, through any contrastive model that open_clip can load."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detector.errors import DetectorError, ModelError
from detector.prefetch import map_ahead
from detector.samples import PictureStore, SampleRow
from detector.threads import available_threads
from mirage.decode import decode

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

# Every domain has the same number of subjects, so that each is the mean of as many sentences.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "human": ("a person", "a human face", "people", "a person wearing clothes"),
    "animal": ("an animal", "a pet", "a wild animal", "a bird, fish or insect"),
    "object": ("an object", "a product", "food or groceries", "a document or a page of text"),
    "scene": ("a landscape", "a city street with buildings", "the inside of a room", "an outdoor place"),
    "anime": ("an anime character", "a cartoon", "a comic or manga page", "a painting or an illustration"),
}
TEMPLATES = ("{}.", "a picture of {}.", "an image that shows {}.", "a cropped view of {}.", "a photo of {}.")
# "A photo of a cartoon" would be a sentence about a photograph.
DRAWN_TEMPLATES = (*TEMPLATES[:-1], "a drawing of {}.")
BATCH = 32
SCHEMES = ("hf-hub:", "local-dir:")


@dataclass(frozen=True)
class ZeroShotLabeller:
    """A contrastive model that turns pictures into probabilities over SUBJECTS.

    Attributes:
        network: open_clip model in evaluation mode.
        preprocess: the model's own inference transform, from picture to tensor (3, S, S).
        domains: names, in the order of the columns.
        text: (F, D) unit vectors, one per domain.
        weights_sha256: of the network's tensors (see `tensor_digest`).
    """

    network: Any
    preprocess: Callable[["Image"], "Tensor"]
    domains: tuple[str, ...]
    text: "Tensor"
    weights_sha256: str

    def probabilities(self, images: Sequence["Image"]) -> NDArray[np.float64]:
        """Softmax of the scaled cosines, (N, D), of RGB pictures, computed as one batch."""
        import torch

        with torch.inference_mode():
            pixels = torch.stack([self.preprocess(image) for image in images])
            pictures = self.network.encode_image(pixels, normalize=True)
            scores = self.network.logit_scale.exp() * pictures @ self.text
            return scores.double().softmax(dim=-1).numpy()

    def judge(
        self,
        rows: Sequence[SampleRow],
        store: PictureStore,
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> NDArray[np.float64]:
        """`probabilities` of stored pictures, batch by batch, in the order of `rows`."""
        import torch

        torch.set_num_threads(available_threads())
        result = np.empty((len(rows), len(self.domains)))
        images = map_ahead(lambda row: decode(store.read(row)).image, rows, BATCH)
        done = 0
        while batch := list(islice(images, BATCH)):
            result[done : done + len(batch)] = self.probabilities(batch)
            done += len(batch)
            on_progress(done)
        return result


def zero_shot_labeller(model: str, pretrained: str | Path | None = None) -> ZeroShotLabeller:
    """A labeller from an open_clip model.

    Args:
        model: a name that open_clip knows, or `hf-hub:owner/name`, or `local-dir:folder`.
        pretrained: a checkpoint file, or the hub's tag of the weights for this name; None only for the
            two schemes, which bring their own.

    Raises:
        ModelError: the name is unknown, or its weights are missing or do not fit.
        DetectorError: open_clip is not installed.
    """
    open_clip = _open_clip()
    _check_name(open_clip, model, pretrained)
    weights = None if pretrained is None else str(pretrained)
    try:
        network, _, preprocess = open_clip.create_model_and_transforms(
            model, weights, require_pretrained=True
        )
        tokenizer = open_clip.get_tokenizer(model)
    except Exception as error:  # the hub's, torch's and open_clip's own: any of them ends the same way
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(
            f"open_clip cannot load model {model!r} with weights {weights!r}: {reason}"
        ) from error
    network.eval()
    text = open_clip.build_zero_shot_classifier(network, tokenizer, tuple(SUBJECTS), _sentences())
    return ZeroShotLabeller(network, preprocess, tuple(SUBJECTS), text, tensor_digest(network.state_dict()))


def tensor_digest(tensors: Mapping[str, "Tensor"]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names.

    The same weights have the same digest in whatever file they came.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _open_clip() -> Any:
    try:
        import open_clip
    except ImportError as error:
        raise DetectorError(
            "zero-shot labels need open_clip_torch; run: pip install 'omniaid[train]'"
        ) from error
    return open_clip


def _check_name(open_clip: Any, model: str, pretrained: str | Path | None) -> None:
    if model.startswith(SCHEMES):
        return
    if model not in open_clip.list_models():
        raise ModelError(
            f"open_clip knows no model {model!r}; allowed are its own names (ViT-B-32, ViT-L-14, ...), "
            "hf-hub:owner/name and local-dir:folder"
        )
    if pretrained is None:
        raise ModelError(f"model {model!r} needs weights: a checkpoint file or a tag of the hub")


def _sentences() -> list[Callable[[str], str]]:
    """One function from domain to sentence per subject and template, as open_clip takes them."""
    places = [(s, t) for s in range(len(SUBJECTS["human"])) for t in range(len(TEMPLATES))]
    return [partial(_sentence, subject=subject, template=template) for subject, template in places]


def _sentence(domain: str, subject: int, template: int) -> str:
    templates = DRAWN_TEMPLATES if domain == "anime" else TEMPLATES
    return templates[template].format(SUBJECTS[domain][subject])
