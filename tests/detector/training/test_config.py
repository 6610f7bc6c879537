"""The recipe's part for training on pixels."""

import pytest

from detector.errors import RecipeError
from detector.recipe import read_recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "version: '0'\nmode: streamed\nstreamed: {lane: 3}",
            "streamed.lane: Extra inputs are not permitted",
        ),
        ("version: '0'\nstreamed: {lanes: 3}", "streamed is given, but mode is cached; add mode: streamed"),
        ("version: '0'\nmode: live", "mode: Input should be 'cached' or 'streamed'"),
        ("version: '0'\nmode: streamed\nstreamed: {ema: 1}", "streamed.ema: Input should be less than 1"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, text, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        read_recipe(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_example_recipe_can_be_read():
    from pathlib import Path

    recipe = read_recipe(Path(__file__).parents[3] / "recipes" / "streamed-example.yaml")
    assert recipe.mode == "streamed"
    assert recipe.streamed is not None


def test_a_recipe_without_mode_trains_on_cached_features(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("version: '0'")
    assert read_recipe(path).mode == "cached"
