"""Learn from candidate labels, even when the truth is not among them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from candidly.corruption import Truth as Truth
    from candidly.corruption import corrupt as corrupt
    from candidly.estimator import PartialLabelClassifier as PartialLabelClassifier
    from candidly.rates import RatesEstimate as RatesEstimate
    from candidly.rates import estimate_rates as estimate_rates
    from candidly.selection import Rates as Rates
    from candidly.sets import CandidateSets as CandidateSets
    from candidly.train import fit as fit
    from candidly.verdicts import audit as audit

_HOMES = {
    "CandidateSets": "sets",
    "PartialLabelClassifier": "estimator",
    "Rates": "selection",
    "Truth": "corruption",
    "RatesEstimate": "rates",
    "audit": "verdicts",
    "corrupt": "corruption",
    "estimate_rates": "rates",
    "fit": "train",
}
__all__ = [
    "CandidateSets",
    "PartialLabelClassifier",
    "Rates",
    "RatesEstimate",
    "Truth",
    "audit",
    "corrupt",
    "estimate_rates",
    "fit",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that torch loads only for training."""
    if name not in _HOMES:
        raise AttributeError(f"module 'candidly' has no attribute {name!r}")
    return getattr(import_module(f"candidly.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
