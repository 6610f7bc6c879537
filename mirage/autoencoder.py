"""A small convolutional variational autoencoder, trained on a data set's own photographs.

Its reconstructions make twins for the artifact expert without any weights from elsewhere. Training
is seeded and goes on where it stopped, to the same bits; the result is one ONNX file.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from mirage.autoencoder_crops import PHOTOGRAPH, SPLIT, read_crops
from mirage.autoencoder_network import FACTOR
from mirage.autoencoder_trainer import Progress, Trainer, Training
from mirage.errors import BuildError
from mirage.extras import need
from mirage.shards import TEMPORARY, publish, write_atomically

OPSET = 18
TOLERANCE = 1e-4
LARGEST_SIDE_PX = 4096


def train_autoencoder(
    folder: Path,
    out: Path,
    training: Training | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> dict[str, Any]:
    """The facts of the trained autoencoder: settings, data, quality, and the file's sha256.

    Writes `out` and, beside it, `<stem>.json` with these facts. An interrupted training continues
    from `<stem>.checkpoint.pt`, to the same weights as one without interruption.

    Args:
        folder: a finished data set.
        out: the ONNX file: `pixels` (1, 3, H, W) float32 in 0..1 to `reconstruction`, any H and W
            divisible by 8.
        training: how to train; the defaults take one processor about twenty minutes.
        on_progress: called after every step.

    Raises:
        BuildError: the data set has not enough photographs, the checkpoint is of another training,
            or the exported file does not agree with torch.
        MissingExtra: torch is not installed.
    """
    training = training or Training()
    if out.suffix != ".onnx":
        raise BuildError(f"{out} must end in .onnx")
    torch = need("torch", "train")
    out.parent.mkdir(parents=True, exist_ok=True)
    crops = read_crops(folder, training.crops, training.seed)
    with _seeded(torch, training.seed):
        trainer = Trainer(training, crops, out.with_suffix(".checkpoint.pt"))
        trainer.run(on_progress)
        export(trainer.network, out)
        facts = _facts(trainer, out)
    write_atomically(out.with_suffix(".json"), json.dumps(facts, indent=1).encode("utf-8"))
    trainer.checkpoint.unlink(missing_ok=True)
    return facts


def read_training(path: Path) -> Training:
    """The settings of an earlier training, from the facts beside its file.

    Raises:
        BuildError: the file cannot be read or holds no such settings; names place and value.
    """
    try:
        return Training.model_validate(json.loads(path.read_text("utf-8"))["training"])
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise BuildError(f"{path}: training.{place}: {first['msg']} (given: {first['input']!r})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BuildError(f"{path} is no JSON file with the facts of a training") from error


@contextmanager
def _seeded(torch: Any, seed: int) -> Iterator[None]:
    """One thread and a known random state; the caller's own come back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def export(network: Any, path: Path) -> None:
    """Write the network as ONNX: `pixels` (1, 3, H, W) to `reconstruction`, both float32 in 0..1."""
    torch, onnx = need("torch", "train"), need("onnx", "train")
    need("onnxscript", "train")
    temporary = path.with_name(path.name + TEMPORARY)
    network = network.eval().to(memory_format=torch.contiguous_format)
    sides = {
        axis: FACTOR * torch.export.Dim(name, min=1, max=LARGEST_SIDE_PX // FACTOR)
        for axis, name in ((2, "rows"), (3, "columns"))
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(1, 3, 8 * FACTOR, 9 * FACTOR),),
            str(temporary),
            input_names=["pixels"],
            output_names=["reconstruction"],
            dynamic_shapes={"pixels": sides},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    graph = onnx.load(str(temporary))
    for node in graph.graph.node:  # where each node came from in the source: of no use, and full of paths
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(graph, str(temporary))
    publish(temporary, path)


def check_export(network: Any, path: Path) -> float:
    """The largest difference between torch and the exported file, over seeded noise of several sizes.

    Raises:
        BuildError: it is larger than 1e-4.
    """
    worst = 0.0
    for height, width in ((64, 64), (8, 40), (224, 136)):
        pixels = np.random.default_rng([height, width]).random((1, 3, height, width), np.float32)
        worst = max(worst, float(np.abs(_rebuild(network, pixels) - run_exported(path, pixels)).max()))
    if worst > TOLERANCE:
        raise BuildError(f"{path} differs from torch by {worst:.2e}; at most {TOLERANCE:g} is allowed")
    return worst


def run_exported(path: Path, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the exported file makes of (1, 3, H, W) pixels in 0..1, on one thread."""
    from mirage.reconstruct import open_network

    (reconstruction,) = open_network(str(path)).run(["reconstruction"], {"pixels": pixels})
    return reconstruction


def _rebuild(network: Any, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    torch = need("torch", "train")
    with torch.no_grad():
        return network(torch.from_numpy(pixels)).numpy()


def _facts(trainer: Trainer, path: Path) -> dict[str, Any]:
    crops = trainer.crops
    data = path.read_bytes()
    return {
        "file": path.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "weights": sum(weight.numel() for weight in trainer.network.parameters()),
        "torch": trainer.torch.__version__,
        "export_difference": check_export(trainer.network, path),
        "data": {
            "photographs": crops.pictures,
            "crops": len(crops.train),
            "held_out": len(crops.held_out),
            "split": SPLIT,
            "generators": f"{PHOTOGRAPH}*",
            "digest": crops.digest,
        },
        "quality": measure(path, crops.held_out),
        "training": trainer.training.model_dump(),
    }


def measure(path: Path, pictures: NDArray[np.uint8]) -> dict[str, float]:
    """How near the exported file comes to pictures it has not learnt from.

    Args:
        path: the ONNX file.
        pictures: (M, S, S, 3) uint8, S divisible by 8.

    Returns:
        `psnr_db`, the mean over pictures, and `psnr_db_worst_tenth`; `detail`, the mean difference of
        neighbouring pixels over that of the originals, 1 when nothing is blurred; `grid`, the share of
        such differences across the edges of 8 x 8 cells over its share in the originals, 1 when no
        grid shows.
    """
    before = pictures.transpose(0, 3, 1, 2).astype(np.float32) / 255
    rebuilt = np.concatenate([run_exported(path, picture[None]) for picture in before])
    after = (rebuilt * 255).round() / 255
    error = np.square(after - before).mean(axis=(1, 2, 3)).clip(1e-12)
    psnr = -10 * np.log10(error)
    steps, original = (np.abs(np.diff(values, axis=3)).mean(axis=(0, 1, 2)) for values in (after, before))
    edge = slice(FACTOR - 1, None, FACTOR)
    return {
        "psnr_db": round(float(psnr.mean()), 2),
        "psnr_db_worst_tenth": round(float(np.quantile(psnr, 0.1)), 2),
        "detail": round(float(steps.mean() / original.mean()), 3),
        "grid": round(
            float(steps[edge].mean() / steps.mean() / (original[edge].mean() / original.mean())), 3
        ),
    }
