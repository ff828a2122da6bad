"""Learn from candidate labels, even when the truth is not among them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from candidly.corruption import Truth as Truth
    from candidly.corruption import corrupt as corrupt
    from candidly.selection import Rates as Rates
    from candidly.sets import CandidateSets as CandidateSets
    from candidly.train import fit as fit

_HOMES = {
    "CandidateSets": "sets",
    "Rates": "selection",
    "Truth": "corruption",
    "corrupt": "corruption",
    "fit": "train",
}
__all__ = ["CandidateSets", "Rates", "Truth", "corrupt", "fit"]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that torch loads only for training."""
    if name not in _HOMES:
        raise AttributeError(f"module 'candidly' has no attribute {name!r}")
    return getattr(import_module(f"candidly.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
