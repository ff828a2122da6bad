"""Learn from candidate labels, even when the truth is not among them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from candidly import _moved
from candidly._version import __version__ as __version__
from candidly.errors import naming_extras

if TYPE_CHECKING:
    from candidly.answers import Answers as Answers
    from candidly.auditing.rates import RatesEstimate as RatesEstimate
    from candidly.auditing.verdicts import Audit as Audit
    from candidly.auditing.verdicts import audit as audit
    from candidly.auditing.verdicts import estimate_rates as estimate_rates
    from candidly.cells import Not as Not
    from candidly.corruption import corrupt as corrupt
    from candidly.kinds import Rates as Rates
    from candidly.kinds import Truth as Truth
    from candidly.sets import CandidateSets as CandidateSets
    from candidly.training.estimator import PartialLabelClassifier as PartialLabelClassifier
    from candidly.training.trainer import fit as fit

_HOMES = {
    "Answers": "answers",
    "Audit": "auditing.verdicts",
    "CandidateSets": "sets",
    "Not": "cells",
    "PartialLabelClassifier": "training.estimator",
    "Rates": "kinds",
    "Truth": "kinds",
    "RatesEstimate": "auditing.rates",
    "audit": "auditing.verdicts",
    "corrupt": "corruption",
    "estimate_rates": "auditing.verdicts",
    "fit": "training.trainer",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605

_moved.install()


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that torch loads only for training."""
    if name not in _HOMES:
        raise AttributeError(f"module 'candidly' has no attribute {name!r}")
    with naming_extras(f"candidly.{name}"):
        return getattr(import_module(f"candidly.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
