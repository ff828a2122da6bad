"""Docstrings: the examples are true, and public names are described well enough for a reference."""

import doctest
import inspect
import pkgutil
import re
from importlib import import_module

import pytest

import candidly
from candidly.methods import Method

MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages(candidly.__path__, "candidly.")
    if not info.name.endswith("__main__")
)
# Modules whose functions are described in full, whether `candidly` exports them or not.
DESCRIBED = (
    "agreement",
    "answers",
    "auditing.annotators",
    "auditing.evidence",
    "auditing.findings",
    "auditing.mixture",
    "auditing.posterior",
    "auditing.rates",
    "auditing.verdicts",
    "blocks",
    "corruption",
    "data.dataset",
    "data.export",
    "data.files",
    "kinds",
    "losses",
    "methods.base",
    "methods.listing",
    "metrics",
    "probabilities",
    "scores",
    "selection",
    "sets",
    "tensors.nets",
    "tensors.views",
    "training.checks",
    "training.estimator",
    "training.loop",
    "training.trainer",
)


def public_members(kind):
    """List (module, name) of the public functions or classes that these modules define."""
    modules = {name: import_module(f"candidly.{name}") for name in DESCRIBED}
    return [
        (module, name)
        for module, found in modules.items()
        for name, value in inspect.getmembers(found, kind)
        if not name.startswith("_") and value.__module__ == found.__name__
    ]


def section(text, title):
    """Return the lines of a section of a docstring; None if there is none."""
    found = re.search(
        rf"^{title}\n-{{{len(title)}}}\n(.*?)(?=\n\S+( \S+)?\n---|\Z)", text, re.M | re.S
    )
    return None if found is None else found.group(1)


def described_parameters(text):
    """Collect the names that begin the entries of the section of parameters."""
    lines = (section(text, "Parameters") or "").split("\n")
    entries = [line.split(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return [name.strip("* ") for entry in entries for name in entry.split(",")]


def parameters_of(function):
    """List the parameters; options of a TypedDict count one by one."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        options = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if options is None or name in described_parameters(inspect.getdoc(function)):
            names.append(name)
        else:
            names += function.__globals__[options.group(1)].__annotations__
    return names


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


@pytest.mark.parametrize(("module", "name"), public_members(inspect.isfunction))
def test_functions_describe_parameters_and_results(module, name):
    function = getattr(import_module(f"candidly.{module}"), name)
    text = inspect.getdoc(function) or ""
    assert described_parameters(text) == parameters_of(function)
    # A function that yields None is a context manager without a value.
    if inspect.signature(function).return_annotation not in ("None", "Iterator[None]", None):
        assert section(text, "Returns") or section(text, "Yields")


@pytest.mark.parametrize(("module", "name"), public_members(inspect.isclass))
def test_classes_have_a_short_summary(module, name):
    described = vars(getattr(import_module(f"candidly.{module}"), name))
    summary = (described["__doc__"] or "").strip().split("\n")[0]
    assert summary.endswith(".")
    assert len(summary) <= 100
    assert not summary.startswith(f"{name}(")


def test_sections_are_found():
    text = "Sum.\n\nParameters\n----------\na, b : int\n    Both.\n*c\n\nSee Also\n--------\nd : it"
    assert described_parameters(text) == ["a", "b", "c"]
    assert section(text, "Returns") is None
    assert section(text, "See Also") == "d : it"


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
