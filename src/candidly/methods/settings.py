"""Settings of methods by name: for `--set name=value`, presets and the listing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from candidly.checks import one_of
from candidly.errors import InputError
from candidly.kinds import Rates
from candidly.methods import METHODS
from candidly.methods.base import Method, defaults

# The name that leaves the choice to `choose_method`, and what it chooses
AUTO = "auto"
DEFAULT = "candid"
# Types that are made from text
SCALARS = (bool, int, float, str)
WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def choose_method(name: str) -> str:
    """Choose the method if its name is "auto".

    Parameters
    ----------
    name : str
        A name of `METHODS`, or "auto".

    Returns
    -------
    str
        A name of `METHODS`.

    Raises
    ------
    InputError
        If the name is unknown.

    Examples
    --------
    >>> choose_method("auto"), choose_method("cc")
    ('candid', 'cc')
    """
    return DEFAULT if name == AUTO else one_of(name, METHODS, "method")


def make_method(
    name: str, preset: str | None = None, settings: dict[str, Any] | None = None
) -> Method:
    """Make a method by name.

    Parameters
    ----------
    name : str
        A name of `METHODS`.
    preset : str, optional
        A name of the method's `PRESETS`.
    settings : dict, optional
        Settings that override those of the preset.

    Returns
    -------
    Method

    Raises
    ------
    InputError
        If a name is unknown; the message suggests the closest one. If the method does not accept
        the settings of the preset, as a subclass may that does not pass `**settings` on.

    Examples
    --------
    >>> make_method("ooc", "robust", {"alpha": 0.5}).settings["open_score"]
    'doubt'
    """
    cls = METHODS[one_of(name, METHODS, "method")]
    allowed = defaults(cls)
    chosen: dict[str, Any] = {}
    if preset:
        chosen = cls.PRESETS[one_of(preset, cls.PRESETS, f"preset of {name}")]
    if refused := [key for key in chosen if key not in allowed]:
        raise InputError(
            f"the preset {preset!r} of {name} has settings that {name} does not accept: "
            f"{', '.join(refused)}. Use no preset, or let {cls.__name__} pass **settings on to its "
            "parent, or declare PRESETS of its own."
        )
    for key in settings or {}:
        one_of(key, allowed, f"setting of {name}")
    return cls(**{**chosen, **(settings or {})})


def parse_settings(name: str, assignments: Iterable[str]) -> dict[str, Any]:
    """Parse assignments into values of the types that the method's defaults have.

    Parameters
    ----------
    name : str
        A name of `METHODS`.
    assignments : iterable of str
        Such as "alpha=0.5" or "rates=0.1,0.2".

    Returns
    -------
    dict

    Raises
    ------
    InputError
        If a name is unknown, a value has another type, or the default is not a number, text, a
        bool or `Rates`, so that text cannot be read as its type.

    Examples
    --------
    >>> parse_settings("ooc", ["alpha=0.5", "overlap=no"])
    {'alpha': 0.5, 'overlap': False}
    """
    allowed = defaults(METHODS[one_of(name, METHODS, "method")])
    parsed = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            example = next(iter(allowed), "name")
            raise InputError(
                f"--set {assignment}: expected name=value, such as --set {example}=..."
            )
        default = allowed[one_of(key.strip(), allowed, f"setting of {name}")]
        parsed[key.strip()] = parse_value(assignment, text.strip(), default)
    return parsed


def parse_value(assignment: str, text: str, default: Any) -> Any:
    """Parse a text as a value of the type of `default`; errors quote the assignment."""
    if not isinstance(default, (*SCALARS, Rates)):
        raise InputError(
            f"--set {assignment}: its default is {default!r}, so that text cannot be read as its "
            "type; --set serves defaults of type bool, int, float, str and Rates. Set it in "
            "Python: PartialLabelClassifier(method, name=value)."
        )
    try:
        if isinstance(default, bool):
            return WORDS[text.lower()]
        if isinstance(default, Rates):
            if text == "auto":
                return text
            closed, open_ = map(float, text.split(","))
            return Rates(closed, open_)
        return type(default)(text)
    except InputError:
        raise
    except (KeyError, ValueError) as error:
        kinds = {bool: "true or false", Rates: "auto, or two shares of all examples: closed,open"}
        expected = kinds.get(type(default), f"a value of type {type(default).__name__}")
        raise InputError(
            f"--set {assignment}: expected {expected}, such as {show(default)}."
        ) from error


def show(value: Any) -> str:
    """Write a default as a user would type it.

    Parameters
    ----------
    value : object

    Returns
    -------
    str

    Examples
    --------
    >>> show(Rates(0.1, 0.25)), show(True), show(1e-05)
    ('0.1,0.25', 'True', '1e-05')
    """
    if isinstance(value, Rates):
        return f"{value.closed:g},{value.open:g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
