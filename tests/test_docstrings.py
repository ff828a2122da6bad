"""Docstrings: the examples are true, and public names are described well enough for a reference."""

import doctest
import inspect
import pkgutil
from importlib import import_module

import pytest

import candidly
from candidly.methods import Method

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(candidly.__path__, "candidly.")
    if not info.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_modules_say_what_they_hold(name):
    assert (import_module(name).__doc__ or "").strip()


@pytest.mark.parametrize("name", candidly.__all__)
def test_public_names_have_parameters_and_an_example(name):
    public = getattr(candidly, name)
    text = inspect.getdoc(public) or ""
    summary = text.split("\n")[0]
    assert summary.endswith(".")
    assert len(summary) <= 100
    sections = ["Attributes"] if name in ("RatesEstimate", "Truth") else ["Parameters", "Examples"]
    sections = ["Attributes", "Examples"] if name == "Audit" else sections
    for section in sections:
        assert f"{section}\n{'-' * len(section)}\n" in text, section
    if inspect.isfunction(public):
        assert "Returns\n-------\n" in text


@pytest.mark.parametrize("name", ["audit", "estimate_rates", "corrupt", "fit"])
def test_every_parameter_is_described(name):
    function = getattr(candidly, name)
    text = inspect.getdoc(function).split("Returns\n")[0]
    for parameter in inspect.signature(function).parameters:
        assert parameter in text, parameter


def test_the_contract_of_a_method_is_described():
    text = inspect.getdoc(Method)
    attributes = text.split("Attributes\n----------\n")[1].split("\nExamples\n--------\n")[0]
    for name in vars(Method)["__annotations__"]:
        assert f"{name} : " in attributes, name
    for name in ("setup", "epoch_start", "loss", "rows"):
        hook = getattr(Method, name)
        parameters = inspect.getdoc(hook).split("Parameters\n----------\n")[1]
        for parameter in list(inspect.signature(hook).parameters)[1:]:
            assert f"{parameter} : " in parameters, (name, parameter)
    assert "Returns\n-------\ntensor (b,)" in inspect.getdoc(Method.loss)
