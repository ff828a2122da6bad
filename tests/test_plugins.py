"""Classes of other packages: which are loaded, and why others are left out."""

import collections
import warnings
from importlib.metadata import EntryPoint

import pytest

from candidly.plugins import load_plugins


def load(*points, accept=lambda name, cls: (name, cls)):
    made = [EntryPoint(name, value, "some.group") for name, value in points]
    return load_plugins(made, dict, {"plain"}, "mapping", accept)


def test_what_is_accepted_is_registered_under_the_name_of_the_entry_point():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load(("a", "collections:OrderedDict"), ("b", "collections:Counter"))
    assert found == {"a": ("a", collections.OrderedDict), "b": ("b", collections.Counter)}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("plain", "collections:OrderedDict", "there is already a mapping of this name"),
        ("pi", "math:pi", r"3\.14\d* is not a subclass of builtins\.dict"),
        ("queue", "collections:deque", r"<class 'collections\.deque'> is not a subclass of"),
        ("gone", "no_such_package:X", "No module named 'no_such_package'"),
    ],
)
def test_others_are_left_out_with_a_warning_and_the_rest_is_loaded(name, value, reason):
    message = rf"the mapping '{name}' \({value}\) is left out: {reason}"
    with pytest.warns(UserWarning, match=message):
        assert list(load((name, value), ("fine", "collections:Counter"))) == ["fine"]


def test_a_name_is_given_once_and_a_refusal_is_quoted():
    with pytest.warns(UserWarning, match="already a mapping"):
        found = load(("a", "collections:OrderedDict"), ("a", "collections:Counter"))
    assert found == {"a": ("a", collections.OrderedDict)}

    def refuse(name, cls):
        raise RuntimeError(f"{name} is not wanted")

    with pytest.warns(UserWarning, match="left out: a is not wanted"):
        assert load(("a", "collections:OrderedDict"), accept=refuse) == {}
