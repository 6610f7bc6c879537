"""The benchmark of a family of methods."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field
from typer.testing import CliRunner

from moe_core import commands
from moe_core.bench import Benchmark, bench, contrasts
from moe_core.catalogue import Method, Paper, method
from moe_core.errors import ConfigError
from moe_core.registry import Registry
from moe_core.report import Claim, Report, Table, provenance


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, description="of everything")
    shift: float = Field(default=1.0, description="how much better the method is")
    toys: Path | None = Field(default=None, description="folder")


class Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, description="of everything")


def run(config: Settings) -> Report:
    noise = np.random.default_rng(config.seed)
    base = noise.normal(size=30)
    own = base - config.shift + noise.normal(scale=0.1, size=30)
    rows = tuple((index, *map(float, pair)) for index, pair in enumerate(zip(own, base, base, strict=True)))
    return Report(
        method="good",
        metrics={"shift": config.shift, "seed": float(config.seed)},
        tables={"paired": Table(columns=("sequence", "good", "old", "older"), rows=rows)},
        claims=(Claim(statement="It is better.", holds=config.seed != 1, evidence=f"By {config.shift}."),),
        timings_s={"all": 0.5},
        notes=(f"Toys in {config.toys}.",),
        provenance=provenance(config),
    )


def fail(config: Plain) -> Report:
    raise ConfigError("the moon | is not full")


@pytest.fixture
def known():
    table: Registry[Method] = Registry("method")
    paper = Paper("A paper", "2601.00001")
    table.register("good")(
        Method("good", "Is good", paper, "theory", Settings, run, Settings(shift=0.1), Settings(shift=2.0))
    )
    table.register("bad")(Method("bad", "Fails", paper, "theory", Plain, fail, Plain(), None, Plain()))
    table.register("far")(Method("far", "Is elsewhere", paper, "llm", Plain, fail, Plain()))
    return table


def test_every_method_runs_with_every_seed_and_its_own_configuration(known, tmp_path):
    found = bench(known, "theory", (0, 1, 2), toys=tmp_path / "t")
    bad, good = found.entries
    assert [report.provenance.seed for report in good.reports] == [0, 1, 2]
    assert {report.provenance.config["shift"] for report in good.reports} == {2.0}
    assert good.reports[0].notes == (f"Toys in {tmp_path / 't'}.",)
    assert bad.failure == "the moon | is not full" and bad.reports == ()
    assert [c.baseline for c in good.contrasts] == ["old", "older"]
    contrast = good.contrasts[0]
    assert contrast.sequences == 90 and contrast.low < contrast.difference < contrast.high < 0
    assert contrast.difference == pytest.approx(-2, abs=0.05)


def test_pages_tell_of_everything_and_survive_json(known, tmp_path):
    found = bench(known, "theory", (0, 1), only=["good", "bad"])
    data, page = found.write(tmp_path)
    assert Benchmark.model_validate_json(data.read_text("utf-8")) == found
    text = page.read_text("utf-8")
    assert "| good | 2601.00001 | It is better. | 1 of 2 | By 2.0. |" in text
    assert "Did not run: the moon \\| is not full." in text
    assert "| shift | 2 | 0 |" in text and "| seed | 0.5 | 0.71 |" in text


def test_scales_choose_the_configuration(known):
    smoke = bench(known, "theory", (0,), scale="smoke", only=["good"]).entries[0]
    assert smoke.reports[0].metrics["shift"] == 0.1
    real = bench(known, "theory", (0,), scale="real", only=["good"]).entries[0]
    assert real.failure == "it has no configuration for a pretrained model"
    assert bench(known, "llm", (0,)).entries[0].failure == "the moon | is not full", (
        "defaults are the bench's"
    )


def test_the_interval_covers_a_true_zero_as_often_as_it_says():
    def table(seed):
        pairs = np.random.default_rng(seed).normal(size=(40, 2))
        rows = tuple((index, *map(float, pair)) for index, pair in enumerate(pairs))
        report = run(Settings())
        return report.model_copy(update={"tables": {"paired": Table(columns=("s", "a", "b"), rows=rows)}})

    covered = sum(c.low <= 0 <= c.high for seed in range(40) for c in contrasts([table(seed)]))
    assert 34 <= covered <= 40
    assert contrasts([run(Settings()).model_copy(update={"tables": {}})]) == ()


def test_wrong_names_are_said(known):
    with pytest.raises(ConfigError, match="group 'art' is unknown; there are: llm"):
        bench(known, "art", (0,))
    with pytest.raises(ConfigError, match="no method far in group theory; there are: bad, good"):
        bench(known, "theory", (0,), only=["far"])
    with pytest.raises(ConfigError, match="no method group federated; there are: none"):
        bench(known, "federated", (0,))
    with pytest.raises(ConfigError, match="at least one seed"):
        bench(known, "theory", ())


def test_a_configuration_of_another_method_is_refused():
    with pytest.raises(ConfigError, match="x: a Plain is given where run takes Settings"):
        method("x", summary="", paper=Paper("t", "2601.00001"), family="llm", smoke=Plain())(run)


def test_the_command_writes_the_page_and_fails_after_a_failure(known, monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "catalogue", lambda: known)
    arguments = ["bench", "theory", "--seeds", "2", "--out", str(tmp_path)]
    answer = CliRunner().invoke(commands.app, [*arguments, "--method", "good"])
    assert answer.exit_code == 0, answer.output
    assert (tmp_path / "theory.md").read_text("utf-8") in answer.output
    failed = CliRunner().invoke(commands.app, [*arguments, "--smoke"])
    assert isinstance(failed.exception, ConfigError) and str(failed.exception).startswith("did not run: bad")
    assert (tmp_path / "theory-smoke.json").is_file()
    both = CliRunner().invoke(commands.app, [*arguments, "--smoke", "--real"])
    assert "two different benchmarks" in str(both.exception)


def test_the_catalogue_is_a_markdown_table(known, monkeypatch):
    monkeypatch.setattr(commands, "catalogue", lambda: known)
    lines = CliRunner().invoke(commands.app, ["list", "--format", "markdown"]).output.splitlines()
    assert lines[2] == "| `omniaid moe far` | Is elsewhere | [A paper](https://arxiv.org/abs/2601.00001) |"
    assert len(lines) == 5
