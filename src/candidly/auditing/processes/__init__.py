"""How candidate sets and answers arise: one short file per process."""

from __future__ import annotations

from candidly.auditing.processes.annotators import AnnotatorConfusion
from candidly.auditing.processes.base import Evidence, Process
from candidly.auditing.processes.confusion import Confusion
from candidly.auditing.processes.inclusion import Inclusion
from candidly.auditing.processes.union import Union

# The processes of `auditing.crowd`. "blind" has a form of its own: `auditing.mixture`.
PROCESSES: dict[str, type[Process]] = {
    cls.name: cls for cls in (Confusion, AnnotatorConfusion, Union, Inclusion)
}
NAMES = ("blind", *PROCESSES)

__all__ = ["NAMES", "PROCESSES", "Evidence", "Process"]
