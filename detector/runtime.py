"""The torch-free runtime: an ONNX file and its card, checked against each other, run on the CPU."""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from detector.card import ModelCard, read_card
from detector.errors import ModelError
from detector.memory import trim_memory
from detector.operating_points import settle_thresholds
from detector.self_test import check_answers
from detector.threads import available_threads

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

INPUT = "pixels"
OUTPUTS = ("logits", "gates")


class Scores(NamedTuple):
    """What the model says of N views: logits (N, 2) float32 [real, ai] and gates (N, E) float32."""

    logits: NDArray[np.float32]
    gates: NDArray[np.float32]


def default_model_path() -> Path:
    """The model that ships with the package."""
    return Path(__file__).parent / "models" / "omniaid.onnx"


class Runtime:
    """One loaded model. `score_views` may be called from several threads at once."""

    def __init__(
        self,
        onnx_path: Path,
        threads: int | None = None,
        *,
        thresholds: Path | None = None,
        false_positive_rate: float | None = None,
    ) -> None:
        """Runtime for the model at `onnx_path`, whose card lies beside it as `<stem>.json`.

        Args:
            onnx_path: the ONNX file.
            threads: for one inference; None takes as many as affinity and cgroup quota allow.
            thresholds: file of `omniaid calibrate` whose thresholds replace the card's.
            false_positive_rate: of the card's operating point to use instead of its default.

        Raises:
            ModelError: file or card is missing or damaged, they do not belong together, or the model does
                not pass its self-test.
            DetectorError: the thresholds asked for cannot be had.
        """
        onnx_path = Path(onnx_path)
        if not onnx_path.is_file():
            raise ModelError(f"model file {onnx_path} does not exist")
        card = read_card(onnx_path.with_suffix(".json"))
        self.card: ModelCard = settle_thresholds(card, thresholds, false_positive_rate)
        _check_sha256(onnx_path, self.card)
        self._session = _session(onnx_path, threads or available_threads())
        _check_signature(onnx_path, self._session, self.card)
        check_answers(self.score_views, self.card)
        trim_memory()

    def score_views(self, views: NDArray[np.uint8]) -> Scores:
        """Raw logits and gates of (N, 3, S, S) uint8 RGB views, N >= 1.

        Raises:
            ModelError: the model answered with values that are not finite, or of a wrong shape.
        """
        logits, gates = self._session.run(OUTPUTS, {INPUT: views})
        rows, name = len(views), f"model {self.card.name} {self.card.version}"
        if logits.shape != (rows, 2) or gates.shape != (rows, len(self.card.experts)):
            raise ModelError(
                f"{name} gave logits {logits.shape} and gates {gates.shape} "
                f"for {rows} views; expected ({rows}, 2) and ({rows}, {len(self.card.experts)})"
            )
        if not (np.isfinite(logits).all() and np.isfinite(gates).all()):
            raise ModelError(f"{name} gave values that are not finite; no verdict is possible")
        return Scores(logits, gates)


def _check_sha256(path: Path, card: ModelCard) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != card.sha256:
        raise ModelError(
            f"{path} has sha256 {digest[:12]}..., but its card says {card.sha256[:12]}...; "
            "the file is damaged or the card belongs to another model"
        )


def _session(path: Path, threads: int) -> "InferenceSession":
    # Its telemetry writes files and names a remote collector; a scanner does neither.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # Pictures are decoded on the same CPUs: an idle inference thread must not burn them.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors share no public base class
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"{path} cannot be loaded as an ONNX model: {reason}") from error


def _check_signature(path: Path, session: "InferenceSession", card: ModelCard) -> None:
    """Refuse a model whose inputs and outputs are not what the card promises."""
    size_px, experts = card.preprocessing.size_px, len(card.experts)
    expected = {
        INPUT: ("tensor(uint8)", (None, 3, size_px, size_px)),
        "logits": ("tensor(float)", (None, 2)),
        "gates": ("tensor(float)", (None, experts)),
    }
    found = {node.name: (node.type, node.shape) for node in (*session.get_inputs(), *session.get_outputs())}
    inputs = [node.name for node in session.get_inputs()]
    if inputs != [INPUT]:
        raise ModelError(f"{path} has inputs {', '.join(inputs)}; exactly one, named {INPUT!r}, is expected")
    for name, (kind, shape) in expected.items():
        if name not in found:
            raise ModelError(f"{path} has no output {name!r}; it has: {', '.join(sorted(found))}")
        if found[name][0] != kind or not _fits(found[name][1], shape):
            raise ModelError(
                f"{path} has {name!r} as {found[name][0]} {_shape(found[name][1])}, "
                f"but its card ({experts} experts, {size_px} px) needs {kind} {_shape(shape)}"
            )


def _fits(found: "list[int | str | None]", expected: tuple[int | None, ...]) -> bool:
    """Whether declared dimensions agree: the batch free, a named dimension elsewhere anything."""
    if len(found) != len(expected) or isinstance(found[0], int):
        return False
    return all(
        not isinstance(have, int) or have == want for have, want in zip(found[1:], expected[1:], strict=True)
    )


def _shape(dimensions: "list[int | str | None] | tuple[int | None, ...]") -> str:
    return "(" + ", ".join(str(d) if isinstance(d, int) else "batch" for d in dimensions) + ")"
