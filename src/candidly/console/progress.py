"""Progress on the terminal: what is done, a note and the time left; nothing at all when the output is piped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from candidly.console.terminal import printable

if TYPE_CHECKING:
    from rich.progress import Progress

_open: list[
    Progress
] = []  # the display that is there: a bar within a bar becomes another line of it


@contextmanager
def bar(
    total: int, label: str, *, done: int = 0, shown: bool | None = None
) -> Iterator[Callable[..., None]]:
    """Yields `advance(note, steps=1)`. `shown=None`: only on a terminal."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda note, steps=1: None
        return
    inner = bool(_open)
    with _display() as progress:
        task = progress.add_task(printable(label), total=total, completed=done, note="")
        try:
            yield lambda note, steps=1: progress.update(task, advance=steps, note=printable(note))
        finally:
            if inner:
                progress.remove_task(task)


@contextmanager
def _display() -> Iterator[Progress]:
    if _open:
        yield _open[-1]
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    label = TextColumn("{task.description}", markup=False)
    note = TextColumn("{task.fields[note]}", markup=False)
    columns = [label, BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn(compact=True), note]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        _open.append(progress)
        try:
            yield progress
        finally:
            _open.pop()
