import csv
import io
import os

import pytest

from detector.card import ModelCard, Thresholds
from detector.errors import DetectorError
from detector.output import (
    CsvWriter,
    Format,
    JsonlWriter,
    TableWriter,
    csv_columns,
    open_output,
    strongest,
)
from detector.preprocess import Preprocessing
from detector.report import ImageReport, ModelIdentity

CARD = ModelCard(
    name="m",
    version="1",
    sha256="ab",
    experts=("human", "object", "artifact"),
    preprocessing=Preprocessing(),
    temperature=1.0,
    thresholds=Thresholds(ai=0.9, real=0.1, false_positive_rate=0, false_negative_rate=0, how="by hand"),
)
OK = ImageReport(
    path="a.jpg",
    sha256="00" * 32,
    status="ok",
    verdict="ai",
    probability=0.98765,
    threshold=0.9,
    threshold_real=0.1,
    gates={"human": 0.39, "object": 0.61, "artifact": 1.0},
    view_probabilities={"global": 0.9, "native": 0.99},
    model=ModelIdentity(name="m", version="1", sha256="ab"),
    width=640,
    height=480,
    format="JPEG",
    warnings=("first warning", "second warning"),
)
BAD = ImageReport(path="b.jpg", status="error", error="the file is empty (0 bytes)")
NASTY = 'new\nline,"quote"\r=1+1\x1b[2J[red]\'.jpg'


def written(writer, *reports):
    stream = io.StringIO(newline="")
    out = writer(stream, CARD)
    for report in reports:
        out.write(report)
    return stream.getvalue()


def test_jsonl_is_one_full_report_per_line():
    reports = [OK, BAD, OK.model_copy(update={"path": NASTY})]
    lines = written(JsonlWriter, *reports).split("\n")
    assert lines.pop() == ""
    assert [ImageReport.model_validate_json(line) for line in lines] == reports


def test_csv_columns_are_stable():
    assert csv_columns(CARD) == [
        "path", "status", "verdict", "probability", "calibrated", "threshold", "threshold_real",
        "width", "height", "format", "sha256", "gate_human", "gate_object", "gate_artifact",
        "view_global", "view_native", "model_name", "model_version", "model_sha256",
        "warnings", "error", "schema_version",
        "reasons", "threshold_source", "view_spread", "interval_low", "interval_high",
        "stability_spread", "stability_flips",
    ]  # fmt: skip


def test_csv_holds_every_field_of_the_report():
    flat = {"gates", "view_probabilities", "model", "interval", "stability"}
    assert set(ImageReport.model_fields) - flat <= set(csv_columns(CARD))


def test_csv_rows_survive_nasty_names_and_errors():
    text = written(CsvWriter, OK, BAD, OK.model_copy(update={"path": NASTY}))
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["path"] for row in rows] == ["a.jpg", "b.jpg", NASTY]
    assert float(rows[0]["probability"]) == 0.98765
    assert float(rows[0]["gate_object"]) == 0.61
    assert float(rows[0]["view_native"]) == 0.99
    assert rows[0]["warnings"] == "first warning; second warning"
    assert rows[0]["model_sha256"] == "ab"
    assert (rows[1]["status"], rows[1]["probability"], rows[1]["gate_human"]) == ("error", "", "")
    assert all(None not in row and None not in row.values() for row in rows)


def test_table_row_on_80_columns():
    lines = written(TableWriter, OK, BAD).splitlines()
    assert lines[1] == "ai             0.988  object 0.61, human 0.39   a.jpg"
    assert lines[2].split() == ["first", "warning"]
    assert lines[4].split() == ["error", "b.jpg"]
    assert lines[5].strip() == "the file is empty (0 bytes)"
    assert max(map(len, lines)) <= 80


def test_table_keeps_one_line_per_picture_and_never_prints_control_characters():
    text = written(TableWriter, OK.model_copy(update={"path": NASTY, "warnings": ()}))
    assert len(text.splitlines()) == 2
    assert "new\\nline" in text and "\\x1b[2J[red]" in text
    assert "\x1b" not in text


def test_a_long_path_is_never_cut_or_broken():
    path = "folder/" * 40 + "x.jpg"
    assert path in written(TableWriter, OK.model_copy(update={"path": path}))


def test_strongest_experts_leave_out_the_one_that_is_always_on():
    assert strongest(OK.gates) == "object 0.61, human 0.39"
    assert strongest({}) == ""


def test_a_file_appears_whole(tmp_path):
    out = tmp_path / "report.jsonl"
    with open_output(out, Format.JSONL) as stream:
        stream.write("half")
        assert not out.exists()
        stream.write(" and half\n")
    assert out.read_text() == "half and half\n"
    assert list(tmp_path.iterdir()) == [out]


def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path):
    out = tmp_path / "report.csv"
    out.write_text("old")
    with pytest.raises(KeyboardInterrupt), open_output(out, Format.CSV) as stream:
        stream.write("new")
        raise KeyboardInterrupt
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_symbolic_link_keeps_pointing_at_the_new_content(tmp_path):
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    with open_output(link, Format.TABLE) as stream:
        stream.write("new")
    assert link.is_symlink() and real.read_text() == "new"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "exists and is not a regular file"),
        ("fifo", "exists and is not a regular file"),
        ("absent/report.csv", "does not exist"),
        ("photo.JPG", "is named like a picture"),
    ],
)
def test_refused_targets(tmp_path, name, reason):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(DetectorError, match=reason), open_output(tmp_path / name, Format.CSV):
        pytest.fail("it was opened")
    assert [path.name for path in tmp_path.iterdir()] == ["fifo"]


def test_a_device_is_never_replaced(tmp_path):
    """Renaming over /dev/null as root would break the machine."""
    link = tmp_path / "out.csv"
    link.symlink_to("/dev/null")
    with pytest.raises(DetectorError, match="not a regular file"), open_output(link, Format.CSV):
        pytest.fail("it was opened")


def test_a_full_disk_is_one_sentence(tmp_path):
    with (
        pytest.raises(DetectorError, match=r"report\.jsonl cannot be written: no space left"),
        open_output(tmp_path / "report.jsonl", Format.JSONL) as stream,
    ):
        os.dup2(os.open("/dev/full", os.O_WRONLY), stream.fileno())
        stream.write("x")
    assert list(tmp_path.iterdir()) == []
