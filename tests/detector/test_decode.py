import hashlib
import os
import socket
import sys

import numpy as np
import pytest
from PIL import Image

from detector.decode import decode_picture, read_bytes, read_picture
from detector.errors import UnscorableImage
from mirage.decode import Limits
from tests.golden.pictures import encoded, mixture

PNG = encoded(Image.fromarray(mixture(64, 48)), "PNG")


def refused(path, **options):
    with pytest.raises(UnscorableImage) as caught:
        read_bytes(path, **options)
    return str(caught.value)


def test_a_picture_is_read_with_the_hash_of_its_bytes(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(PNG)
    digest, picture = read_picture(path)
    assert digest == hashlib.sha256(PNG).hexdigest()
    assert (np.asarray(picture.image) == mixture(64, 48)).all()
    assert read_picture(PNG)[0] == digest


def test_bytes_are_counted_while_reading(tmp_path):
    path = tmp_path / "big"
    path.write_bytes(b"x" * 3_000_000)
    assert read_bytes(path, max_bytes=3_000_000) == b"x" * 3_000_000
    assert "more than 2,999,999 bytes" in refused(path, max_bytes=2_999_999)


def test_a_missing_file(tmp_path):
    assert refused(tmp_path / "absent.jpg") == "the file does not exist"


def test_a_dangling_link_names_its_target(tmp_path):
    link = tmp_path / "link.jpg"
    link.symlink_to("gone.jpg")
    assert refused(link) == "the symbolic link points to gone.jpg, which does not exist"


def test_a_link_to_itself(tmp_path):
    link = tmp_path / "link.jpg"
    link.symlink_to(link)
    assert "symbolic links" in refused(link)


def test_special_files_are_never_opened(tmp_path, monkeypatch):
    fifo, sock = tmp_path / "fifo.jpg", tmp_path / "s.jpg"
    os.mkfifo(fifo)
    server = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path)  # the address of a socket must be short
    server.bind(sock.name)
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("a special file was opened"))
    assert refused(fifo) == "it is a FIFO, not a regular file, and was not opened"
    assert "a socket" in refused(sock)
    assert "a character device" in refused("/dev/zero")
    assert "a folder" in refused(tmp_path)
    server.close()


def test_a_file_swapped_for_a_fifo_does_not_block(tmp_path, monkeypatch):
    fifo, regular = tmp_path / "fifo.jpg", tmp_path / "regular.jpg"
    os.mkfifo(fifo)
    regular.write_bytes(PNG)
    earlier = regular.stat()
    monkeypatch.setattr(os, "stat", lambda *_, **__: earlier)
    assert "a FIFO" in refused(fifo)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_endless_regular_file_stops_at_the_cap():
    assert "more than 10 bytes" in refused("/proc/self/status", max_bytes=10)


def test_a_null_byte_in_a_name():
    assert "null" in refused("a\0b.jpg")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"hello, this is text", "not a picture"),
        (PNG[: len(PNG) // 2], "cut short"),
        (encoded(Image.new("RGB", (1, 1)), "PNG"), "1 x 1 px"),
        (encoded(Image.new("RGB", (31, 400)), "PNG"), "31 x 400 px"),
    ],
    ids=["empty", "text", "truncated", "1x1", "31 px"],
)
def test_bad_bytes_are_one_sentence(data, reason):
    with pytest.raises(UnscorableImage, match=reason) as caught:
        decode_picture(data)
    assert "\n" not in str(caught.value)


def test_limits_are_the_callers(tmp_path):
    with pytest.raises(UnscorableImage, match="64 x 48"):
        decode_picture(PNG, Limits(max_pixels=64 * 48 - 1))
    assert decode_picture(PNG, Limits(max_pixels=64 * 48)).width == 64


def test_a_strip_is_refused_before_it_is_enlarged():
    """Enlarging 32 x 3,000,000 px to a shorter side of 224 px would take 19 GB."""
    strip = encoded(Image.new("1", (32, 3_201)), "PNG")
    with pytest.raises(UnscorableImage, match="32 x 3201 px; its longer side may be at most 100 times"):
        decode_picture(strip)
    assert decode_picture(encoded(Image.new("1", (32, 3_200)), "PNG")).height == 3_200
