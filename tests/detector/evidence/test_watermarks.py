import gzip

import numpy as np
import pytest
from PIL import Image

from detector.evidence import examine
from detector.evidence.stealth import read_stealth
from detector.evidence.watermarks import MESSAGES, block_scores, correlate, count_votes, find_watermarks
from tests.detector.evidence.files import A1111, encode, structured

STEP = 36.0


def embed(image, bits):
    """`image` with a message, written by quantising the blue difference as the reference embedder does."""
    pixels = np.asarray(image, dtype=np.float64).copy()
    luma = pixels @ (0.299, 0.587, 0.114)
    difference = 0.492 * (pixels[..., 2] - luma) + 128
    rows, columns = image.height // 8, image.width // 8
    for number in range(rows * columns):
        y, x = number // columns * 8, number % columns * 8
        low = difference[y : y + 8, x : x + 8].reshape(4, 2, 4, 2).sum(axis=(1, 3)) / 2
        at = int(np.abs(low.ravel()[1:]).argmax()) + 1
        wanted = (low.flat[at] // STEP + 0.25 + 0.5 * bits[number % len(bits)]) * STEP
        shift = (wanted - low.flat[at]) / 2
        row, column = y + at // 4 * 2, x + at % 4 * 2
        # Blue alone moves the difference by 0.492 * (1 - 0.114) per step.
        pixels[row : row + 2, column : column + 2, 2] += shift / (0.492 * 0.886)
    return Image.fromarray(pixels.round().clip(0, 255).astype(np.uint8))


def muted(seed=0):
    """A picture whose colours leave room for the mark."""
    return Image.fromarray((np.asarray(structured(seed, 512, 512)) * 0.3 + 90).astype(np.uint8))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.tool)
def test_each_known_message_is_read(message):
    (row,) = find_watermarks(embed(muted(), message.bits))
    assert (row.claim, row.confidence, row.details["tool"]) == ("made_by_ai", "embedded", message.tool)


def test_an_unmarked_picture_has_none():
    for seed in range(6):
        assert find_watermarks(structured(seed, 512, 384)) == []
    assert find_watermarks(Image.new("RGB", (512, 512), "grey")) == []


def test_a_moved_grid_loses_the_mark():
    marked = embed(muted(), MESSAGES[2].bits)
    assert find_watermarks(marked.crop((3, 5, 512, 512))) == []


def test_messages_have_the_published_lengths():
    assert [len(message.bits) for message in MESSAGES] == [136, 32, 48, 46]


def test_small_pictures_are_left_alone():
    assert find_watermarks(structured(0, 200, 200)) == []


def test_votes_do_not_depend_on_a_last_incomplete_round():
    bits = MESSAGES[2].bits
    scores = np.array([bits[index % len(bits)] for index in range(500)], dtype=bool)
    assert (count_votes(scores, len(bits)) == bits).all()
    assert correlate(scores, bits) == pytest.approx(1)
    assert correlate(~scores, bits) == pytest.approx(-1)
    assert correlate(scores[:100], bits) == 0


def test_every_reading_has_one_score_per_block():
    readings = block_scores(np.asarray(structured(0, 260, 131)))
    assert {len(scores) for scores in readings.values()} == {260 // 8 * (131 // 8)}


def hide(text, signature=b"stealth_pngcomp", zipped=True):
    """An RGBA picture with a text in the lowest bits of its alpha, column by column."""
    body = gzip.compress(text.encode()) if zipped else text.encode()
    bits = np.unpackbits(np.frombuffer(signature + (len(body) * 8).to_bytes(4, "big") + body, np.uint8))
    pixels = np.full((96, 64, 4), 255, dtype=np.uint8)
    alpha = pixels[..., 3].T.ravel()
    alpha[: len(bits)] = 254 | bits
    pixels[..., 3] = alpha.reshape(64, 96).T
    return pixels


def test_hidden_parameters_are_read():
    assert read_stealth(hide(A1111), 10_000) == A1111
    assert read_stealth(hide(A1111, b"stealth_pnginfo", zipped=False), 10_000) == A1111
    evidence = examine(encode(Image.fromarray(hide(A1111)), "PNG"))
    (row,) = evidence.findings
    assert (row.kind, row.confidence, row.details["tool"]) == ("watermark", "embedded", "AUTOMATIC1111")


def test_damaged_hidden_text_is_nothing():
    assert read_stealth(hide("x", b"stealth_pngcomp", zipped=False), 1000) is None
    assert read_stealth(np.full((4, 4, 4), 255, np.uint8), 1000) is None
