"""Logs without prompts, drift, thresholds, the end of old data, and the table of settings."""

import json
import logging
import math
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from detector.card import Thresholds
from detector.report import ImageReport
from service.audit import AuditLog
from service.database import job_items, open_database
from service.jobs import Jobs, Source
from service.logs import JsonLines, TextLines, redact
from service.metrics import Drift, Metrics
from service.preview import preview_threshold, upper_rate
from service.reports import ReportCache
from service.retention import forget, purge
from service.schemas import PreviewRequest
from service.settings import Settings, settings_table

ROOT = Path(__file__).resolve().parents[2]
SECRET = "a portrait of my neighbour"
SHA = "a" * 64


@pytest.fixture
def engine(database_url):
    opened = open_database(database_url)
    yield opened
    opened.dispose()


@pytest.mark.parametrize("formatter", [JsonLines(), TextLines()])
def test_neither_messages_nor_exceptions_carry_a_prompt(formatter):
    try:
        raise ValueError(SECRET)
    except ValueError:
        trace = sys.exc_info()
    record = logging.LogRecord("omniaid", logging.ERROR, __file__, 1, "read Prompt: %s", (SECRET,), trace)
    line = formatter.format(record)
    assert SECRET not in line and "redacted" in line and "test_operation.py" in line and "\n" not in line


def test_a_json_line_has_only_named_fields():
    record = logging.makeLogRecord({"name": "omniaid", "levelname": "INFO", "msg": "answered", "status": 200})
    record.file_name = SECRET
    line = json.loads(JsonLines().format(record))
    assert line["status"] == 200 and set(line) == {"time", "level", "logger", "message", "status"}


def test_redaction_leaves_other_sentences_alone():
    assert redact("the server starts") == "the server starts"
    assert redact(f"parameters = {SECRET}\nmore") == "parameters: [redacted]"


def test_drift_is_unknown_then_small_then_large():
    drift = Drift(window=100)
    for number in range(200):
        drift.add(number % 100 / 100)
    assert math.isclose(drift.index(), 0, abs_tol=1e-9)
    for _ in range(100):
        drift.add(0.95)
    assert drift.index() > 1
    assert math.isnan(Drift().index())


def test_metrics_count_verdicts():
    metrics = Metrics()
    metrics.count(ImageReport(path="a", status="ok", verdict="ai", probability=0.9), 0.1)
    metrics.count(ImageReport(path="a", status="error", error="x"), 0.1)
    text = metrics.text().decode()
    assert 'omniaid_verdicts_total{verdict="ai"} 1.0' in text
    assert 'omniaid_verdicts_total{verdict="error"} 1.0' in text
    assert 'omniaid_score_bucket{le="0.8"} 0.0' in text


THRESHOLDS = Thresholds(ai=0.8, real=0.2, false_positive_rate=0, false_negative_rate=0, how="test")


def test_a_threshold_keeps_the_rate_on_the_callers_own_pictures():
    real = [number / 100 for number in range(100)]
    preview = preview_threshold(
        PreviewRequest(real=real, ai=[0.97, 0.99], false_positive_rate=0.02), THRESHOLDS
    )
    assert 0.97 < preview.threshold < 0.98 and preview.false_positive_rate == 0.02
    assert preview.true_positive_rate == 0.5 and preview.current_false_positive_rate == 0.2
    assert preview.warning is None


def test_too_few_pictures_are_said_to_be_too_few():
    preview = preview_threshold(PreviewRequest(real=[0.1] * 10, false_positive_rate=0.01), THRESHOLDS)
    assert preview.false_positive_rate == 0 and "take 100" in preview.warning


@pytest.mark.parametrize(("found", "count", "upper"), [(0, 10, 0.2589), (1, 20, 0.2161), (10, 10, 1.0)])
def test_the_upper_bound_agrees_with_published_tables(found, count, upper):
    assert math.isclose(upper_rate(found, count), upper, abs_tol=1e-4)


def test_old_data_goes_and_young_data_stays(engine):
    jobs, cache, audit = Jobs(engine, 60), ReportCache(engine, "m", 7), AuditLog(engine)
    old = jobs.create("me", [Source("a", data=b"x")])
    jobs.cancel(old, "me")
    running = jobs.create("me", [Source("a", data=b"x")])
    cache.put(ImageReport(path="a", sha256=SHA, status="ok"))
    audit.add("me", "score")
    settings = Settings(retention_days=1, cache_days=1, audit_days=1)
    assert sum(purge(engine, settings)) == 0
    import time

    removed = purge(engine, settings, now=time.time() + 2 * 86_400)
    assert removed == (1, 1, 1, 1)
    assert jobs.get(old, "me") is None and jobs.get(running, "me") is not None


def test_a_picture_is_forgotten_everywhere(engine):
    jobs, cache = Jobs(engine, 60), ReportCache(engine, "m", 7)
    cache.put(ImageReport(path="a", sha256=SHA, status="ok"))
    identity = jobs.create("me", [Source("name.png", data=b"x", url="http://x/")], keep_uploads=True)
    lease = jobs.claim(identity)
    jobs.store(identity, 0, ImageReport(path="name.png", sha256=SHA, status="ok"), lease)
    removed = forget(engine, SHA)
    assert (removed.reports, removed.items) == (1, 1)
    assert cache.get(SHA) is None
    with engine.connect() as connection:
        row = connection.execute(select(job_items)).one()
    assert row.data is None and row.url is None and row.name == "deleted" and SHA not in row.report
    assert next(iter(jobs.results(identity))).error == "the report was deleted on request"


def test_a_cached_report_has_no_name_and_is_for_one_method_only(engine):
    report = ImageReport(path="secret.png", sha256=SHA, status="ok", probability=0.5)
    ReportCache(engine, "m", 7).put(report)
    found = ReportCache(engine, "m", 7).get(SHA)
    assert found is not None and found.path == "" and found.probability == 0.5
    assert ReportCache(engine, "another", 7).get(SHA) is None
    assert ReportCache(engine, "m", 0).get(SHA) is None


def test_the_documented_settings_are_the_settings():
    documented = (ROOT / "docs" / "settings.md").read_text("utf-8")
    assert documented.endswith(settings_table()), (
        "run: omniaid settings, and put the table into docs/settings.md"
    )
