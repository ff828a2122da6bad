"""The layout of the package: old paths of modules keep working."""

import subprocess
import sys
from importlib import import_module

import pytest

from candidly._moved import NEW_PATHS


@pytest.mark.parametrize("old", NEW_PATHS)
def test_old_paths_are_views_of_the_new_ones(old):
    moved, here = import_module(old), import_module(NEW_PATHS[old])
    names = [name for name in vars(here) if not name.startswith("__")]
    assert names
    assert all(getattr(moved, name) is getattr(here, name) for name in names)
    with pytest.raises(AttributeError):
        moved.no_such_name  # noqa: B018


def test_old_paths_load_nothing_by_themselves():
    loaded = "print('torch' in sys.modules)"
    code = f"import candidly.train, sys; {loaded}; candidly.train.fit; {loaded}"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == [
        "False",
        "True",
    ]
