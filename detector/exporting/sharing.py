"""A second graph of the same weights, beside the first: it reads them out of the first one's file."""

from pathlib import Path
from typing import Any, NamedTuple

from detector.exporting.errors import ExportError

SHARE_FROM_BYTES = 1024


class Place(NamedTuple):
    """Where the bytes of a tensor lie in a file."""

    offset: int
    length: int


def share_weights(model: Any, donor: Path) -> int:
    """How many bytes of `model`'s weights are now read from `donor` instead of being held.

    An ONNX file may keep a tensor's bytes in any file of its folder, so also in another ONNX file.
    The two belong together from then on: the card names the donor and its sha256.

    Args:
        model: ONNX model whose weights are stored as the donor's are; changed in place. It must be saved
            into the donor's folder.
        donor: an ONNX file that holds its own weights.

    Raises:
        ExportError: the donor holds none of these weights.
    """
    places, shared = _places(donor), 0
    for item in model.graph.initializer:
        place = places.get((item.name, item.raw_data))
        if place is None:
            continue
        item.ClearField("raw_data")
        for key, value in (("location", donor.name), ("offset", place.offset), ("length", place.length)):
            item.external_data.add(key=key, value=str(value))
        item.data_location = 1
        shared += place.length
    if not shared:
        raise ExportError(
            f"{donor} holds none of this graph's weights; name the score graph of the same model"
        )
    return shared


def _places(donor: Path) -> dict[tuple[str, bytes], Place]:
    """The place of every larger tensor, by name and content."""
    import onnx

    try:
        whole = donor.read_bytes()
        tensors = onnx.load_model_from_string(whole).graph.initializer
    except Exception as error:  # protobuf's own error has no public class
        raise ExportError(f"{donor} cannot be read as an ONNX file: {error}") from error
    places: dict[tuple[str, bytes], Place] = {}
    cursor = 0
    for item in tensors:
        if len(item.raw_data) < SHARE_FROM_BYTES:
            continue
        # Tensors lie in the file in the graph's order.
        offset = whole.find(item.raw_data, cursor)
        if offset >= 0:
            places[item.name, item.raw_data] = Place(offset, len(item.raw_data))
            cursor = offset + len(item.raw_data)
    return places
