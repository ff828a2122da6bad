"""The methods, by name. To add one, write its file and its line here."""

from candidly.methods.base import Batch, Method
from candidly.methods.cavl import CAVL
from candidly.methods.cc import CC
from candidly.methods.crdpll import CRDPLL
from candidly.methods.lws import LWS
from candidly.methods.ooc import OOC
from candidly.methods.pico import PiCO
from candidly.methods.proden import PRODEN

METHODS: dict[str, type[Method]] = {
    "ooc": OOC,
    "cc": CC,
    "proden": PRODEN,
    "lws": LWS,
    "cavl": CAVL,
    "pico": PiCO,
    "crdpll": CRDPLL,
}

__all__ = ["METHODS", "Batch", "Method"]
