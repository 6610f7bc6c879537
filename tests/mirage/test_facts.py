from datetime import date
from pathlib import Path

import pytest

from mirage.declarations import FactRules, Splits
from mirage.errors import RecipeError
from mirage.facts import UnusableFacts, facts_of, is_wanted, split_of
from mirage.sources import Candidate
from mirage.sources.folder import FolderSource


def source(**fields) -> FolderSource:
    given = {
        "kind": "folder",
        "name": "here",
        "path": "x",
        "licence": "CC0",
        "label": "real",
        "generator": "camera",
    }
    return FolderSource.model_validate(given | fields)


def facts(candidate: Candidate, folder: Path = Path(), **fields):
    return facts_of(source(**fields), candidate, folder)


def test_what_nothing_tells_is_the_sources_own():
    found = facts(Candidate("a.png"), domain="scene", group="g")
    assert (found.label, found.generator, found.domain, found.group) == ("real", "camera", "scene", "g")


def test_a_path_tells_label_and_generator_and_values_translate_them():
    rules = {
        "path": "^(?P<label>fake|nature)/(?P<generator>[^/]+)/",
        "values": {"label": {"fake": "ai", "nature": "real"}},
    }
    found = facts(Candidate("fake/glide/1.png"), facts=rules, label=None, generator=None)
    assert (found.label, found.generator) == ("ai", "glide")
    with pytest.raises(UnusableFacts, match="its label is ''; it must be one of real, ai"):
        facts(Candidate("other/1.png"), facts=rules, label=None, generator=None)


def test_columns_win_over_a_table_and_the_path():
    rules = {"columns": {"prompt": "text", "licence": "rights"}, "path": r"(?P<prompt>\w+)\.png"}
    found = facts(Candidate("cat.png", columns={"text": "a cat", "rights": ""}), facts=rules)
    assert (found.prompt, found.licence) == ("a cat", "CC0")
    assert facts(Candidate("cat.png"), facts=rules).prompt == "cat"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.csv", "path,class\na.png,1\nb.png,0\n"),
        ("labels.tsv", "path\tclass\na.png\t1\nb.png\t0\n"),
        ("labels.jsonl", '{"path": "a.png", "class": 1}\n{"path": "b.png", "class": 0}\n'),
    ],
)
def test_a_table_beside_the_recipe_tells_labels(tmp_path, name, content):
    (tmp_path / name).write_text(content, "utf-8")
    rules = {"table": name, "columns": {"label": "class"}, "values": {"label": {"1": "ai", "0": "real"}}}
    labels = [facts(Candidate(p), tmp_path, facts=rules, label=None).label for p in ("a.png", "b.png")]
    assert labels == ["ai", "real"]
    with pytest.raises(UnusableFacts, match="its label is ''"):
        facts(Candidate("c.png"), tmp_path, facts=rules, label=None)


def test_a_table_without_paths_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("file,class\na,1\n", "utf-8")
    rules = {"table": "t.csv", "columns": {"label": "class"}}
    with pytest.raises(RecipeError, match=r"t\.csv needs a column `path`"):
        facts(Candidate("a"), tmp_path, facts=rules)
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        facts(Candidate("a"), tmp_path, facts=rules | {"table": "none.csv"})


def test_filters_look_at_path_and_columns():
    wanted = source(exclude="thumb", where={"quality": ("good", "fair")})
    assert is_wanted(wanted, Candidate("a.png", columns={"quality": "fair"}))
    assert not is_wanted(wanted, Candidate("a.png", columns={"quality": "bad"}))
    assert not is_wanted(wanted, Candidate("thumb/a.png", columns={"quality": "good"}))


def split(
    group: str, *, generator: str = "camera", label: str = "real", released: str = "", seed: int = 0, **rules
):
    found = facts(Candidate("x"), group=group, generator=generator, label=label)
    return split_of(source(), found, released, Splits(**rules), seed)


def test_a_group_has_one_split_whatever_else_there_is():
    names = [f"group-{number}" for number in range(2000)]
    first = {name: split(name) for name in names}
    assert first == {name: split(name) for name in reversed(names)}
    shares = {part: list(first.values()).count(part) / 2000 for part in ("train", "calibration", "devtest")}
    assert shares == pytest.approx({"train": 0.8, "calibration": 0.1, "devtest": 0.1}, abs=0.03)
    assert first != {name: split(name, seed=1) for name in names}


def test_held_out_and_later_generators_go_to_devtest():
    train = {"shares": {"train": 1.0}}
    assert split("g", generator="new", label="ai", **train) == "train"
    assert split("g", generator="new", label="ai", hold_out=("new",), **train) == "devtest"
    later = {"released_after": date(2025, 1, 1), **train}
    assert split("g", generator="new", label="ai", released="2025-03-25", **later) == "devtest"
    assert split("g", generator="old", label="ai", released="2022-08-22", **later) == "train"
    assert split("g", label="real", released="2025-03-25", **later) == "train"


def test_shares_must_sum_to_one():
    with pytest.raises(ValueError, match=r"sum to 1, not 0\.5"):
        Splits(shares={"train": 0.5})


def test_rules_know_what_they_tell():
    rules = FactRules(path="(?P<label>x)", columns={"prompt": "text"})
    assert [rules.give(fact) for fact in ("label", "prompt", "generator")] == [True, True, False]
