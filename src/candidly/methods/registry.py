"""The methods by name: built-in ones, and those of other packages.

Other packages name their methods as entry points of the group `candidly.methods`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from candidly.methods.alim import ALIM
from candidly.methods.base import Method, check_settings
from candidly.methods.candid import Candid
from candidly.methods.cavl import CAVL
from candidly.methods.cc import CC
from candidly.methods.crdpll import CRDPLL
from candidly.methods.gce import GCE
from candidly.methods.lws import LWS
from candidly.methods.ooc import OOC
from candidly.methods.pals import PALS
from candidly.methods.pico import PiCO
from candidly.methods.pico_plus import PiCOPlus
from candidly.methods.posterior import Posterior
from candidly.methods.proden import PRODEN
from candidly.methods.trimmed import Trimmed
from candidly.plugins import load_plugins

GROUP = "candidly.methods"
METHODS: dict[str, type[Method]] = {
    "candid": Candid,
    "ooc": OOC,
    "cc": CC,
    "proden": PRODEN,
    "lws": LWS,
    "cavl": CAVL,
    "pico": PiCO,
    "crdpll": CRDPLL,
    "posterior": Posterior,
    "alim": ALIM,
    "pico_plus": PiCOPlus,
    "pals": PALS,
    "trimmed": Trimmed,
    "gce": GCE,
}


def add_methods(points: list[EntryPoint]) -> None:
    """Add methods of other packages; skip those that cannot be used, with a warning."""
    METHODS.update(load_plugins(points, Method, METHODS, "method", _accept))


def _accept(name: str, cls: type[Method]) -> type[Method]:
    check_settings(cls)
    return cls


add_methods(list(entry_points(group=GROUP)))
