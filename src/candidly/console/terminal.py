"""Output of commands: coloured and as wide as the terminal, or plain text into a file or pipe.

All output passes through `say`, `echo` or `echo_json`. Names from files may contain characters
that would control the terminal; these are printed as escapes.
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
    """Print a rich renderable, such as a table; lines are only wrapped on a terminal."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 120, soft_wrap=not terminal, highlight=False)
    console.print(_Printable(what))


class _Printable:
    """A renderable whose text has its control characters escaped."""

    def __init__(self, what: RenderableType) -> None:
        self.what = what

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.what, options):
            text = segment.text if segment.control else printable_lines(segment.text)
            yield segment._replace(text=text)


def echo(text: Any, *, err: bool = False) -> None:
    """Print lines of text; `err`: on stderr."""
    import typer

    typer.echo(printable_lines(text), err=err)


def echo_json(value: Any) -> None:
    """Print a value as JSON; only characters that are not printable are escaped."""
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    echo("\n".join(_escaped(line, _json_escape) for line in lines))


def printable(label: Any) -> str:
    r"""Return a name for the terminal, with an escape for whatever would control it.

    Examples
    --------
    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    return _escaped(str(label), lambda c: c.encode("unicode_escape").decode())


def printable_lines(text: Any) -> str:
    """Return text for the terminal: as `printable`, but lines stay lines."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def _escaped(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else escape(c) for c in text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def counted(n: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun.

    Parameters
    ----------
    n : int
        The number.
    one : str
        The noun in the singular.
    many : str, optional
        The noun in the plural, if it is not `one` with an s.

    Examples
    --------
    >>> counted(1, "row"), counted(2000, "class", "classes")
    ('1 row', '2,000 classes')
    """
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"


def grid(rows: Iterable[Iterable[str]], justify: str) -> RenderableType:
    """Return columns side by side; `justify` has one letter per column: l or r."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for letter in justify:
        table.add_column(justify="right" if letter == "r" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
