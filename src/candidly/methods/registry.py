"""The methods by name: built-in ones, and those of other packages.

Other packages name their methods as entry points of the group `candidly.methods`.
"""

from __future__ import annotations

import warnings
from importlib.metadata import EntryPoint, entry_points

from candidly.methods.base import Method, check_settings
from candidly.methods.cavl import CAVL
from candidly.methods.cc import CC
from candidly.methods.crdpll import CRDPLL
from candidly.methods.lws import LWS
from candidly.methods.ooc import OOC
from candidly.methods.pico import PiCO
from candidly.methods.proden import PRODEN

GROUP = "candidly.methods"
METHODS: dict[str, type[Method]] = {
    "ooc": OOC,
    "cc": CC,
    "proden": PRODEN,
    "lws": LWS,
    "cavl": CAVL,
    "pico": PiCO,
    "crdpll": CRDPLL,
}


def add_methods(points: list[EntryPoint]) -> None:
    """Add methods of other packages; skip those that cannot be used, with a warning."""
    for point in points:
        try:
            METHODS[point.name] = _load(point)
        except Exception as error:  # another package may raise anything
            warnings.warn(
                f"the method {point.name!r} ({point.value}) is left out: {error}", stacklevel=2
            )


def _load(point: EntryPoint) -> type[Method]:
    if point.name in METHODS:
        raise ValueError("there is already a method of this name")
    cls = point.load()
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise TypeError(f"{cls!r} is not a subclass of candidly.methods.Method")
    check_settings(cls)
    return cls


add_methods(list(entry_points(group=GROUP)))
