"""What commands print: coloured and as wide as the terminal, or plain into a file.

All output passes through `say`, `echo` or `echo_json`. Names from files may hold characters that
would control the terminal; these are written out as escapes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment


def say(what: RenderableType) -> None:
    """Print; lines are not wrapped into a file."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 120, soft_wrap=not terminal, highlight=False)
    console.print(_Printable(what))


class _Printable:
    """Something to print, without the control characters of its text."""

    def __init__(self, what: RenderableType) -> None:
        self.what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.what, options):
            text = segment.text if segment.control else printable_lines(segment.text)
            yield segment._replace(text=text)


def echo(text: Any, *, err: bool = False) -> None:
    """Print lines of text."""
    import typer

    typer.echo(printable_lines(text), err=err)


def echo_json(value: Any) -> None:
    """Print JSON: names as they are, except for characters that are not printable."""
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    echo("\n".join(_escaped(line, _json_escape) for line in lines))


def printable(label: Any) -> str:
    """A name for the terminal: what would move the cursor or change colours is written out."""
    return _escaped(str(label), lambda c: c.encode("unicode_escape").decode())


def printable_lines(text: Any) -> str:
    """Text for the terminal: as `printable`, with the ends of lines kept."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else escape(c) for c in text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


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
