"""Progress of long jobs on stderr: bars on a terminal, a line now and then when it is piped."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from candidly.console.terminal import echo, printable

if TYPE_CHECKING:
    from rich.progress import Progress

# Seconds between two lines when stderr is not a terminal; shorter jobs print nothing.
LOG_INTERVAL = 30.0

# The display on the terminal: a bar within a bar becomes another line of it.
_displays: list[Progress] = []
# The jobs of this thread that log lines, the outermost first.
_logging = threading.local()


@contextmanager
def bar(
    total: int, label: str, *, done: int = 0, shown: bool | None = None
) -> Iterator[Callable[..., None]]:
    """Show the progress of a job: what is done, a note and the time left.

    Parameters
    ----------
    total : int
        Number of steps.
    label : str
        Name of the job.
    done : int
        Steps that were done before, such as those of an interrupted run.
    shown : bool, optional
        Show a bar (True) or nothing (False). By default a bar on a terminal; otherwise a line at
        most every `LOG_INTERVAL` seconds.

    Yields
    ------
    callable
        `advance(note, steps=1)`.

    Examples
    --------
    >>> with bar(2, "training") as advance:
    ...     advance("epoch 1")
    ...     advance("epoch 2")
    """
    if shown is None and not sys.stderr.isatty():
        with _log_lines(total, label, done) as advance:
            yield advance
    elif shown is False:
        yield lambda note, steps=1: None
    else:
        with _terminal_bar(total, label, done) as advance:
            yield advance


@dataclass
class _LoggedJob:
    """A job whose progress is logged; `logged` of the outermost one counts for those within it."""

    label: str
    total: int
    done: int
    completed: int
    began: float
    logged: float

    def state(self, note: str, now: float) -> str:
        parts = [f"{self.completed:,} of {self.total:,}", note]
        if self.done < self.completed < self.total:
            steps = self.completed - self.done
            left = (now - self.began) * (self.total - self.completed) / steps
            parts.append(f"about {duration(left)} left")
        return f"{printable(self.label)}: " + ", ".join(printable(part) for part in parts if part)


@contextmanager
def _log_lines(total: int, label: str, done: int) -> Iterator[Callable[..., None]]:
    began = time.monotonic()
    job = _LoggedJob(label, total, done, done, began, began)
    outer = getattr(_logging, "jobs", ())
    outermost = (*outer, job)[0]

    def advance(note: str, steps: int = 1) -> None:
        job.completed += steps
        now = time.monotonic()
        if now - outermost.logged < LOG_INTERVAL:
            return
        outermost.logged = now
        states = [*(other.state("", now) for other in outer), job.state(note, now)]
        echo(f"candidly: {'; '.join(states)}", err=True)

    _logging.jobs = (*outer, job)
    try:
        yield advance
    finally:
        _logging.jobs = outer


def duration(seconds: float) -> str:
    """Return a duration for people.

    Examples
    --------
    >>> duration(80), duration(600), duration(9000)
    ('80 s', '10 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


@contextmanager
def _terminal_bar(total: int, label: str, done: int) -> Iterator[Callable[..., None]]:
    inner = bool(_displays)
    with _display() as progress:
        task = progress.add_task(printable(label), total=total, completed=done, note="")
        try:
            yield lambda note, steps=1: progress.update(task, advance=steps, note=printable(note))
        finally:
            if inner:
                progress.remove_task(task)


@contextmanager
def _display() -> Iterator[Progress]:
    """Return the display that is on the terminal, or a new one."""
    if _displays:
        yield _displays[-1]
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
        _displays.append(progress)
        try:
            yield progress
        finally:
            _displays.pop()
