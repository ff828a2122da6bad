"""Data of the user: files into arrays, inputs for models, and corrected files back."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from candidly.data.dataset import Dataset as Dataset
    from candidly.data.dataset import Examples as Examples
    from candidly.data.files import read_examples as read_examples
    from candidly.data.files import read_file as read_file

_HOMES = {
    "Dataset": "dataset",
    "Examples": "dataset",
    "read_examples": "files",
    "read_file": "files",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'candidly.data' has no attribute {name!r}")
    return getattr(import_module(f"candidly.data.{_HOMES[name]}"), name)
