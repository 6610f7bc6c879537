"""What every registered method must keep; a new file in `moe_core/methods` is tested the moment it exists."""

import re
import time

import pytest

from moe_core.bench import configuration, settled
from moe_core.catalogue import FAMILIES, load_methods
from moe_core.report import Report

METHODS = list(load_methods())
each_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def smoke_reports() -> dict[str, tuple[Report, float]]:
    return {}


def smoke(name: str, known: dict[str, tuple[Report, float]]) -> tuple[Report, float]:
    if name not in known:
        found = load_methods()[name]
        start = time.process_time()
        known[name] = (found.run(found.smoke), time.process_time() - start)
    return known[name]


@each_method
def test_the_smoke_configuration_takes_seconds_and_measures(name, smoke_reports):
    report, seconds = smoke(name, smoke_reports)
    assert seconds < 20, "ten seconds on an idle core, doubled for a busy one"
    assert report.method == name
    assert report.metrics and report.claims


@each_method
def test_the_same_seed_gives_the_same_report(name, smoke_reports):
    found = load_methods()[name]
    assert found.run(found.smoke).repeatable() == smoke(name, smoke_reports)[0].repeatable()


@each_method
def test_reports_survive_json(name, smoke_reports):
    report = smoke(name, smoke_reports)[0]
    assert Report.model_validate_json(report.model_dump_json()) == report
    assert report.provenance.config == load_methods()[name].smoke.model_dump(mode="json")
    assert report.markdown().startswith(f"# {name}\n")


@each_method
def test_the_paper_is_cited(name):
    found = load_methods()[name]
    assert re.fullmatch(r"\d{4}\.\d{5}", found.paper.arxiv)
    assert found.paper.title and found.summary.endswith((".", "")) and "\n" not in found.summary
    assert found.family in FAMILIES


@each_method
def test_losses_of_the_same_sequences_stand_side_by_side(name, smoke_reports):
    """What the benchmark compares: the method, then its baselines."""
    table = smoke(name, smoke_reports)[0].tables.get("paired")
    assert table is not None or load_methods()[name].family != "llm"
    if table is not None:
        assert len(table.columns) >= 3 and len(table.rows) >= 2
        assert all(isinstance(cell, float) for row in table.rows for cell in row[1:])


@each_method
def test_benchmarks_can_lay_a_seed_over_every_configuration(name):
    found = load_methods()[name]
    for scale in ("bench", "smoke", "real"):
        base = configuration(found, scale)
        if base is not None:
            assert settled(base, 7, None).model_dump()["seed"] == 7


@each_method
def test_configurations_are_frozen_seeded_and_refuse_unknown_keys(name):
    config = load_methods()[name].config
    assert config.model_config.get("frozen")
    assert config.model_config.get("extra") == "forbid"
    assert "seed" in config.model_fields
    assert all(field.description for field in config.model_fields.values()), "options need a help text"
