"""Descriptions of the methods, read from their classes."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from candidly.checks import one_of
from candidly.methods import METHODS
from candidly.methods.base import defaults
from candidly.methods.settings import show


def describe(name: str | None = None) -> list[dict[str, Any]]:
    """Describe one method, or all of them.

    Parameters
    ----------
    name : str, optional
        A name of `METHODS`.

    Returns
    -------
    list of dict
        With the keys name, title, description, settings and presets.

    Examples
    --------
    >>> describe("lws")[0]["settings"]
    {'leverage': '1'}
    """
    chosen = [one_of(name, METHODS, "method")] if name else list(METHODS)
    return [_describe(key) for key in chosen]


def _describe(name: str) -> dict[str, Any]:
    cls = METHODS[name]
    module = inspect.getdoc(inspect.getmodule(cls)) or ""
    return {
        "name": name,
        "title": module.split("\n")[0],
        "description": inspect.getdoc(cls) or "",
        "settings": _shown(defaults(cls)),
        "presets": {preset: _shown(values) for preset, values in cls.PRESETS.items()},
    }


def _shown(settings: dict[str, Any]) -> dict[str, str]:
    return {name: show(value) for name, value in settings.items()}


def as_text(found: list[dict[str, Any]], *, whole: bool = False) -> str:
    """Format descriptions as text for a terminal.

    Parameters
    ----------
    found : list of dict
        What `describe` returned.
    whole : bool, default=False
        Give all of each description, not only its first line.

    Returns
    -------
    str

    Examples
    --------
    >>> print(as_text(describe("lws")).split("\\n")[-1])
      settings:       leverage=1
    """
    return "\n\n".join(_entry(entry, whole) for entry in found)


def _entry(entry: dict[str, Any], whole: bool) -> str:
    text = entry["description"] if whole else entry["description"].split("\n")[0]
    lines = [
        f"{entry['name']}  {entry['title']}",
        *(f"  {line}".rstrip() for line in text.split("\n")),
    ]
    if entry["settings"]:
        lines.append(_assignments("settings:", entry["settings"]))
    lines += [_assignments(f"preset {name}:", values) for name, values in entry["presets"].items()]
    return "\n".join(lines)


def _assignments(label: str, values: dict[str, str]) -> str:
    """Format `  label  a=1  b=2`, wrapped under the first assignment."""
    text = "  ".join(f"{name}={value}" for name, value in values.items())
    head = f"  {label:<16}"
    return textwrap.fill(
        text, 110, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    )
