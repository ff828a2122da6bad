"""What commands print: coloured and as wide as the terminal, or plain into a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


def say(what: RenderableType) -> None:
    """Print; lines are not wrapped into a file."""
    import sys

    from rich.console import Console

    terminal = sys.stdout.isatty()
    Console(width=None if terminal else 120, soft_wrap=not terminal, highlight=False).print(what)


def printable(label: Any) -> str:
    """A name for the terminal: what would move the cursor or change colours is written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(label))


def counted(n: int, one: str, many: str | None = None) -> str:
    """ "1 row", "2,000 rows"."""
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"


def grid(rows: Iterable[Iterable[str]], justify: str) -> RenderableType:
    """Columns side by side; `justify` has a letter for each: l or r."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for letter in justify:
        table.add_column(justify="right" if letter == "r" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
