"""The recipes of CONTRIBUTING.md: every Python example runs, and every file it names exists."""

import re

import pytest
from recipes import PAGE, RECIPES, ROOT, run_recipe

from candidly.cli.app import app
from candidly.methods import METHODS
from candidly.report.charts import CHARTS
from candidly.scores import OPEN_SCORES


def test_there_is_a_recipe_for_each_kind_of_addition():
    wanted = ["a method", "an open-set score", "a format", "a command", "a report chart"]
    assert list(RECIPES) == [f"Add {what}" for what in wanted]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_example_runs_and_leaves_no_trace(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [dict(METHODS), dict(OPEN_SCORES), dict(CHARTS), list(app.registered_commands)]
    run_recipe(recipe)
    METHODS.pop("tempered", None)
    OPEN_SCORES.pop("entropy", None)
    assert before == [METHODS, OPEN_SCORES, CHARTS, app.registered_commands]


def test_the_files_that_it_names_exist():
    for path in re.findall(r"`((?:src|tests|docs)/[\w./]+\.\w+)`", PAGE):
        assert (ROOT / path).exists() or path.endswith("yours.py"), path
    for path in re.findall(r"`((?:methods|cli|report|auditing|storage)/[\w./]*)`", PAGE):
        assert (ROOT / "src" / "candidly" / path).exists(), path
