"""Recipes: defaults, validation, unknown keys."""

from pathlib import Path

import pytest

from headlong.errors import RequestError
from headlong.train.recipe import Recipe, make_recipe, read_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.name)
def test_recipes_of_the_project_are_valid(path: Path) -> None:
    recipe = read_recipe(path)
    assert recipe.head.draft_vocab_size > 0


def test_missing_keys_have_their_defaults() -> None:
    recipe = make_recipe({"training": {"num_depths": 3}})
    assert recipe.training.num_depths == 3
    assert recipe.training.depth_decay == Recipe().training.depth_decay
    assert recipe.answers == Recipe().answers


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"training": {"depths": 3}}, "depths"),
        ({"trainings": {}}, "trainings"),
        ({"head": {"kind": "tree"}}, "tree"),
        ({"training": {"num_depths": 99}}, "99"),
        ({"training": {"num_depths": "three"}}, "three"),
        ({"training": {"optimiser": "sgd"}}, "sgd"),
        ({"answers": {"greedy_share": 2.0}}, "greedy_share"),
    ],
)
def test_invalid_values_are_refused_by_name(values: dict[str, object], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        make_recipe(values)


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("seed = = 1")
    with pytest.raises(RequestError, match=r"bad\.toml"):
        read_recipe(path)


def test_changes_override_the_file() -> None:
    recipe = read_recipe(None, ["training.seconds = 5", "training.num_depths=2", "seed=9"])
    assert (recipe.training.seconds, recipe.training.num_depths, recipe.seed) == (5, 2, 9)
    with pytest.raises(RequestError, match="not TOML"):
        read_recipe(None, ["training.seconds"])
