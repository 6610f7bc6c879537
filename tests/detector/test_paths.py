import os
from pathlib import Path

import pytest

from detector.paths import printable, visible


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"plain.jpg", "plain.jpg"),
        ("Füße 猫.png".encode(), "Füße 猫.png"),
        (b"caf\xe9.jpg", "caf\\xe9.jpg"),
        (b"\xff\xfe\x80", "\\xff\\xfe\\x80"),
        (b"two\nlines.jpg", "two\nlines.jpg"),
    ],
)
def test_names_become_valid_unicode(name, expected):
    assert printable(Path(os.fsdecode(name))) == expected
    assert printable(os.fsdecode(name)).encode("utf-8")


def test_a_lone_surrogate_from_json_is_escaped_too():
    assert printable("a\ud800b") == "a\\ud800b"


def test_control_characters_cannot_reach_the_terminal():
    assert visible("a\x1b[31m\nb\r\tc\u202e") == "a\\x1b[31m\\nb\\r\\tc\\u202e"
    assert visible("Füße 猫.png") == "Füße 猫.png"
