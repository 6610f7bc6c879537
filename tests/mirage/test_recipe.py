from pathlib import Path

import pytest

from mirage.errors import RecipeError
from mirage.recipe import read_recipe

FOLDER = {"kind": "folder", "name": "here", "path": "pictures"}
GIT = {"kind": "git", "name": "there", "repo": "owner/name", "revision": "a" * 40, "select": "."}
TWINS = {"method": "realesrgan-x4"}


def test_a_full_recipe_is_read(write_recipe):
    recipe = read_recipe(
        write_recipe(
            FOLDER | {"split": None, "group": "g", "rules": {"crop": [0, 0, 1, 0.9]}},
            GIT | {"rules": {"reconstruct": {"method": "realesrgan-x4"}}, "cap": 7},
            {"kind": "generator", "name": "faces", "model": "mobile-stylegan", "count": 3, "label": "ai"},
            max_side_px=512,
        )
    )
    assert [source.kind for source in recipe.sources] == ["folder", "git", "generator"]
    assert recipe.max_side_px == 512


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (FOLDER | {"colour": 3}, r"sources\.0 \(here\)\.colour: Extra inputs are not permitted \(given: 3\)"),
        (FOLDER | {"label": "fake"}, r"0 \(here\)\.label: Input should be 'real' or 'ai' \(given: 'fake'\)"),
        (FOLDER | {"name": "a.b"}, r"sources\.0 \(a\.b\)\.name: .*\(given: 'a\.b'\)"),
        (FOLDER | {"cap": 0}, r"cap: .*greater than or equal to 1 \(given: 0\)"),
        (FOLDER | {"kind": "ftp"}, r"sources\.0 \(here\): .*'ftp'"),
        (FOLDER | {"split": {"train": 0.5}}, r"split: Input should be"),
        (FOLDER | {"label": None}, "label is neither given nor told by facts"),
        (FOLDER | {"facts": {"path": "(?P<colour>x)"}}, "'colour' is no fact; choose from label, generator"),
        (FOLDER | {"facts": {"path": "x"}}, r"no named group such as \(\?P<label>"),
        (FOLDER | {"rules": {"crop": [0.5, 0, 0.4, 1]}}, r"crop must be left < right"),
        (FOLDER | {"rules": {"grid": [2, 2], "reconstruct": TWINS}}, "on the same source"),
        (FOLDER | {"rules": {"reconstruct": TWINS}, "label": "ai"}, "needs a source of label real"),
        (GIT | {"select": "("}, r"not a regular expression: .* \(given: '\('\)"),
        (GIT | {"revision": "main"}, r"revision: .*\(given: 'main'\)"),
        (GIT | {"paths_file": "t.tsv", "paths_value": "x"}, "exactly one of select and paths_file"),
        ({"kind": "folder", "name": "here"}, r"sources\.0 \(here\)\.path: Field required"),
    ],
)  # fmt: skip
def test_a_wrong_source_is_one_sentence_with_file_place_and_value(write_recipe, source, sentence):
    path = write_recipe(source)
    with pytest.raises(RecipeError, match=sentence) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_equal_source_names_are_refused(write_recipe):
    with pytest.raises(RecipeError, match="used twice: here"):
        read_recipe(write_recipe(FOLDER, FOLDER))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("- 1\n", "holds list"),
        ("a: [", "is not YAML"),
        ("", "holds NoneType"),
        ("name: x\n", "sources: Field required"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, content, sentence):
    path = tmp_path / "recipe.yaml"
    path.write_text(content, "utf-8")
    with pytest.raises(RecipeError, match=sentence):
        read_recipe(path)


def test_a_missing_recipe_is_named(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"none\.yaml cannot be read: No such file"):
        read_recipe(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted(Path("recipes").glob("thin.yaml")))
def test_the_shipped_recipe_is_valid_and_calibrates_on_whole_repositories(path):
    recipe = read_recipe(path)
    splits: dict[str, set[str]] = {}
    for source in recipe.sources:
        if source.kind == "git":
            assert isinstance(source.split, str)
            splits.setdefault(source.repo, set()).add(source.split)
    divided = {repo for repo, names in splits.items() if len(names) > 1}
    assert divided == set()
