import json
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typer.testing import CliRunner

from moe_core import commands
from moe_core.catalogue import Method, Paper, method
from moe_core.errors import ConfigError
from moe_core.registry import Registry
from moe_core.report import Claim, Report, Table, provenance


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, description="of everything")
    rate: float = Field(default=0.5, gt=0, description="share kept")
    mode: Literal["fast", "exact"] = Field(default="fast", description="how")
    sizes: tuple[int, ...] = Field(default=(1, 2), description="sides")
    quiet: bool = Field(default=False, description="whether to say less")
    model: str | None = Field(default=None, description="path")


def run(config: Settings) -> Report:
    return Report(
        method="toy",
        metrics={"rate": config.rate, "sum": float(sum(config.sizes))},
        tables={"modes": Table(columns=("mode", "quiet"), rows=((config.mode, config.quiet),))},
        claims=(Claim(statement="It runs.", holds=True, evidence="It did."),),
        timings_s={"all": 1.0},
        provenance=provenance(config),
    )


@pytest.fixture
def toy(monkeypatch) -> CliRunner:
    known: Registry[Method] = Registry("method")
    paper = Paper("A toy", "2601.00001")
    known.register("toy")(Method("toy", "Plays", paper, "theory", Settings, run, Settings(rate=0.1)))
    monkeypatch.setattr(commands, "catalogue", lambda: known)
    return CliRunner()


def test_list_and_help_come_from_the_registry(toy):
    listed = toy.invoke(commands.app, ["list"])
    assert "toy" in listed.output and "2601.00001" in listed.output
    shown = toy.invoke(commands.app, ["toy", "--help"]).output
    assert "share kept (default 0.5)" in shown and "A toy, ICML 2026, arXiv 2601.00001" in shown


def test_options_file_and_smoke_settings_are_laid_over_one_another(toy, tmp_path):
    (tmp_path / "s.yaml").write_text("rate: 0.2\nsizes: [3, 4]\n", "utf-8")
    command = ["toy", "--smoke", "--config", str(tmp_path / "s.yaml"), "--mode", "exact", "--quiet"]
    answer = toy.invoke(commands.app, [*command, "--sizes", "[5, 6]", "--out", str(tmp_path / "out")])
    assert answer.exit_code == 0, answer.output
    report = Report.model_validate_json((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert report.metrics == {"rate": 0.2, "sum": 11.0}
    assert report.tables["modes"].rows == (("exact", True),)
    assert answer.output == (tmp_path / "out" / "report.md").read_text("utf-8")
    assert "- **holds**: It runs. It did." in answer.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rate", "-1"], r"toy: rate: Input should be greater than 0 \(given: -1.0\)"),
        (["--sizes", "many"], "toy: sizes: "),
        (["--config", "none.yaml"], "none.yaml cannot be read: No such file"),
    ],
)
def test_wrong_settings_are_one_sentence(toy, arguments, sentence):
    answer = toy.invoke(commands.app, ["toy", *arguments])
    assert isinstance(answer.exception, ConfigError)
    assert answer.exception.args[0].count("\n") == 0
    with pytest.raises(ConfigError, match=sentence):
        raise answer.exception


def test_reports_keep_infinity_and_compare_without_timings():
    first = run(Settings()).model_copy(update={"metrics": {"ratio": float("inf")}})
    again = Report.model_validate_json(first.model_dump_json())
    assert again == first
    assert json.loads(first.model_dump_json())["metrics"]["ratio"] == "Infinity"
    later = first.model_copy(update={"timings_s": {"all": 9.0}})
    assert later != first and later.repeatable() == first.repeatable()


def test_a_table_with_a_crooked_row_is_refused():
    with pytest.raises(ValueError, match="a row has 1 cells; the table has 2 columns"):
        Table(columns=("a", "b"), rows=((1,),))


def test_a_method_must_say_what_it_takes():
    def untyped(config):
        return None

    with pytest.raises(ConfigError, match="must annotate config"):
        method("x", summary="", paper=Paper("t", "2601.00001"), family="llm", smoke=Settings())(untyped)
    with pytest.raises(ConfigError, match="family 'art' is unknown"):
        method("x", summary="", paper=Paper("t", "2601.00001"), family="art", smoke=Settings())
