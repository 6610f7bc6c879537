"""Decoder processes: a crash, a hang or a kill costs one answer at most."""

import os
import signal
import time

import pytest

from detector.preprocess import Preprocessing
from detector.report import ModelIdentity
from mirage.decode import Limits
from mirage.errors import UnreadableImage
from service.decoders import DecoderFailed, Decoders
from service.decoding import Terms, prepare
from service.pictures import thumbnail
from tests.service.conftest import picture

MIB = 2**20
TERMS = Terms(Preprocessing(), ModelIdentity(name="m", version="1", sha256="0" * 64), Limits(), 2048 * MIB)


@pytest.fixture(scope="module")
def decoders():
    opened = Decoders(1, timeout_s=60)
    yield opened
    opened.close()


def test_views_come_back(decoders):
    prepared = decoders.call(prepare, picture(), "a.png", TERMS)
    assert prepared.views.shape == (2, 3, 224, 224) and prepared.report.format == "PNG"


def test_what_is_no_picture_says_so(decoders):
    prepared = decoders.call(prepare, b"<html>", "a.png", TERMS)
    assert prepared.views is None and not prepared.is_picture and "not a picture" in prepared.report.error
    prepared = decoders.call(prepare, picture()[:200], "a.png", TERMS)
    assert prepared.views is None and prepared.is_picture


def test_the_functions_own_error_comes_through(decoders):
    with pytest.raises(UnreadableImage):
        decoders.call(thumbnail, b"nothing")


def test_a_crash_is_one_failure_and_the_next_picture_is_decoded(decoders):
    with pytest.raises(DecoderFailed, match=r"crashed .* twice"):
        decoders.call(os._exit, 7)
    assert decoders.call(prepare, picture(), "a.png", TERMS).views is not None


def test_a_process_that_is_killed_from_outside_costs_nothing(decoders):
    for _ in range(2):
        os.kill(decoders.call(os.getpid), signal.SIGKILL)
        assert decoders.call(prepare, picture(), "a.png", TERMS).views is not None


def test_memory_has_a_bound(decoders):
    decoders.call(prepare, picture(), "a.png", TERMS)
    with pytest.raises(DecoderFailed, match="out of memory twice"):
        decoders.call(bytearray, 4096 * MIB)


def test_a_hang_ends():
    hanging = Decoders(1, timeout_s=0.5)
    hanging.warm(abs, 1)
    try:
        start = time.monotonic()
        with pytest.raises(DecoderFailed, match=r"longer than 0\.5 s"):
            hanging.call(time.sleep, 600)
        assert time.monotonic() - start < 60
    finally:
        hanging.close()
