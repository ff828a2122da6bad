"""File formats: one object per format (recognise, read, write), all in one registry."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from candidly.data.columns.scan import Scan as Scan
    from candidly.data.columns.scan import scan_table as scan_table
    from candidly.data.formats.base import Format as Format
    from candidly.data.formats.base import TableFormat as TableFormat
    from candidly.data.formats.registry import FORMATS as FORMATS
    from candidly.data.formats.registry import find_format as find_format

_HOMES = {
    "FORMATS": "formats.registry",
    "Format": "formats.base",
    "Scan": "columns.scan",
    "TableFormat": "formats.base",
    "find_format": "formats.registry",
    "scan_table": "columns.scan",
}
__all__ = ["FORMATS", "Format", "Scan", "TableFormat", "find_format", "scan_table"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'candidly.data.formats' has no attribute {name!r}")
    return getattr(import_module(f"candidly.data.{_HOMES[name]}"), name)
