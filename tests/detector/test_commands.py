from collections import Counter

import pytest
import typer
from typer.testing import CliRunner

from detector.commands import FailOn, exit_code, register, summary
from detector.errors import DetectorError


@pytest.fixture(scope="module")
def app():
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command("other")(lambda: None)  # typer drops the command's name when there is only one
    register(app)
    return app


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["."], r"^no image files found in \.$"),
        ([".", ".", ".", "."], r"^no image files found in \., \., \., \.\.\.$"),
        (["x.jpg", "--model", "none.onnx"], "^model file none.onnx does not exist$"),
        (
            ["x.jpg", "--out", "no/where.csv"],
            "^--out no/where.csv cannot be written: folder .* does not exist$",
        ),
        (["x.jpg", "--out", "y.jpg"], "^--out y.jpg is named like a picture"),
    ],
)
def test_what_a_person_got_wrong_is_one_sentence(app, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DetectorError, match=reason):
        CliRunner().invoke(app, ["scan", *arguments], catch_exceptions=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--batch-size", "0"],
        ["x", "--threads", "0"],
        ["x", "--format", "xml"],
        ["x", "--fail-on", "real"],
    ],
)
def test_wrong_usage_is_exit_code_2(app, arguments):
    assert CliRunner().invoke(app, ["scan", *arguments]).exit_code == 2


def test_help_documents_the_exit_codes_and_every_option(app):
    text = CliRunner().invoke(app, ["scan", "--help"], env={"COLUMNS": "100"}).output
    for word in ("Exit codes", "--format", "--out", "--model", "--batch-size", "--threads", "--fail-on"):
        assert word in text


@pytest.mark.parametrize(
    ("counts", "fail_on", "expected"),
    [
        ({"real": 3}, None, 0),
        ({"real": 3, "ai": 1}, None, 0),
        ({"real": 3, "ai": 1}, FailOn.AI, 1),
        ({"real": 3, "uncertain": 1}, FailOn.AI, 0),
        ({"ai": 1, "error": 1}, FailOn.AI, 3),
        ({"real": 1, "error": 1}, None, 3),
    ],
)
def test_exit_codes(counts, fail_on, expected):
    assert exit_code(Counter(counts), fail_on) == expected


def test_summary_names_every_count():
    counts = Counter({"ai": 2, "error": 1})
    assert summary(counts, 1.26) == "scanned 3: 2 ai, 0 real, 0 uncertain, 0 out_of_scope, 1 error (1.3 s)"
