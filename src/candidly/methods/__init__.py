"""Ways to learn from candidate sets: the contract (`base`), the registry, one file per method."""

from candidly.methods.base import Batch, Method
from candidly.methods.registry import METHODS

__all__ = ["METHODS", "Batch", "Method"]
