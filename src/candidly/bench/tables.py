"""Tables 1 and 2 from results, with the paper's numbers beside ours."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.grid import ROWS, Cell, Job, Row
from candidly.bench.results import Results
from candidly.data.formats.delimited import UnixLines
from candidly.kinds import KINDS

PAPER = Path(__file__).parent / "paper"
OURS = tuple(row.name for row in ROWS if row.method == "ooc" and row.reference is None)

PRECISIONS = tuple(f"precision_{kind}" for kind in KINDS)
COLUMNS = (
    *("row", "given", "cell", "open", "q", "tau1", "tau2", "mean", "spread", "n", "wanted"),
    *("best", "paper", "paper_spread", "difference", *PRECISIONS, "epoch_seconds"),
)

Numbers = dict[tuple[Any, ...], tuple[float, float]]


def paper_numbers(table: str) -> Numbers:
    """Read the paper's numbers.

    Returns
    -------
    dict
        (open set, q, tau1, tau2, row) -> (mean, spread). The paper's row OOC is compared with all
        of `OURS`. Only Tables 1 and 2 have numbers, and "earlier" has those of Table 1.
    """
    numbers: Numbers = {}
    file_name = {"table1": "table1", "earlier": "table1", "table2": "table2"}.get(table)
    if file_name is None:
        return numbers
    with (PAPER / f"{file_name}.csv").open() as file:
        for line in csv.DictReader(file):
            name = line["method"] if file_name == "table1" else line["variant"]
            cell = (line["open"], *(float(line[key]) for key in ("q", "tau1", "tau2")))
            for row in OURS if name == "OOC" else (name,):
                numbers[(*cell, row)] = float(line["mean"]), float(line["std"])
    return numbers


def make_table(jobs: list[Job], found: Results, table: str) -> list[dict[str, Any]]:
    """Make one entry per row and cell, from the seeds that are done.

    Returns
    -------
    list of dict
        Mean, spread and number of the results, the paper's number, mean precision of the selected
        groups, seconds per epoch, and whether the mean is the best of its cell.
    """
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.row.name, job.cell.name), []).append(job)
    numbers = paper_numbers(table)
    entries = []
    for group in groups.values():
        done = [found[job.key] for job in group if job.key in found]
        entries.append(_entry(group, done, numbers))
    return _mark_best(entries)


def _entry(group: list[Job], done: list[dict[str, Any]], numbers: Numbers) -> dict[str, Any]:
    job = group[0]
    cell = job.cell
    scores = [result["score"] for result in done]
    seconds = [result["seconds"] / len(result["curves"]["accuracy"]) for result in done]
    curves = [result["curves"] for result in done]
    paper = paper_spread = None
    if job.scale.known == "cifar10":
        paper, paper_spread = numbers.get((*_place(cell), _paper_name(job.row)), (None, None))
    return {
        "row": job.row.name,
        "cell": cell.name,
        "open": cell.open_set,
        "q": cell.q,
        "tau1": cell.tau1,
        "tau2": cell.tau2,
        "given": job.row.given,
        "reference": job.row.reference is not None,
        "mean": float(np.mean(scores)) if scores else None,
        "spread": float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
        "n": len(scores),
        "wanted": len(group),
        "paper": paper,
        "paper_spread": paper_spread,
        "precision": [_last_mean(curves, f"precision_{kind}") for kind in KINDS],
        "epoch_seconds": float(np.median(seconds)) if seconds else None,
    }


def _place(cell: Cell) -> tuple[Any, ...]:
    return cell.open_set, cell.q, cell.tau1, cell.tau2


def _paper_name(row: Row) -> str:
    """Name the paper's row that a row is compared with: "PiCO" for "PiCO, own"."""
    return row.name if row.reference else row.name.partition(", ")[0]


def _last_mean(curves: list[dict[str, list[float | None]]], key: str) -> float | None:
    """Average the last value of a curve over the seeds that have one."""
    last = [value for curve in curves if (value := curve.get(key, [None])[-1]) is not None]
    return float(np.mean(last)) if last else None


def _mark_best(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the highest mean of each cell, references aside; none if the numbers of runs differ."""
    rivals: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if entry["n"] and not entry["reference"]:
            rivals.setdefault(entry["cell"], []).append(entry)
    highest = {
        cell: max(entry["mean"] for entry in group)
        for cell, group in rivals.items()
        if len({entry["n"] for entry in group}) == 1
    }
    return [{**entry, "best": _is_best(entry, highest.get(entry["cell"]))} for entry in entries]


def _is_best(entry: dict[str, Any], highest: float | None) -> bool:
    return highest is not None and not entry["reference"] and entry["mean"] == highest


def as_markdown(entries: list[dict[str, Any]], details: bool = False) -> str:
    """Write a table in Markdown.

    `details` adds the precision of the normal/closed/open groups, and the seconds per epoch.
    """
    rows, cells = _names(entries)
    heads = ["given", *cells, *(["s/epoch"] if details else [])]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    counted = _runs_missing(entries)
    for row in rows:
        found = [_find(entries, row, cell) for cell in cells]
        texts = [_text(entry, "**{}**", counted) for entry in found]
        if details:
            texts = [text + _precision(entry) for text, entry in zip(texts, found, strict=True)]
        times = [entry["epoch_seconds"] for entry in found if entry["epoch_seconds"] is not None]
        extra = [_seconds(float(np.median(times))) if times else ""] if details else []
        lines.append("| " + " | ".join([row, found[0]["given"], *texts, *extra]) + " |")
    return "\n".join(lines)


def _runs_missing(entries: list[dict[str, Any]]) -> bool:
    return any(entry["n"] < entry["wanted"] for entry in entries)


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"


def _precision(entry: dict[str, Any]) -> str:
    if entry["reference"] or all(value is None for value in entry["precision"]):
        return ""
    values = ["–" if value is None else f"{value:.2f}" for value in entry["precision"]]
    return f" [{'/'.join(values)}]"


def as_latex(entries: list[dict[str, Any]]) -> str:
    """Write a table in LaTeX, for the package booktabs."""
    rows, cells = _names(entries)
    counted = _runs_missing(entries)
    head = " & ".join(["", "given", *(cell.replace("_", r"\_") for cell in cells)])
    body = []
    for row in rows:
        found = [_find(entries, row, cell) for cell in cells]
        texts = [_text(entry, r"\textbf{{{}}}", counted, r" $\pm$ ") for entry in found]
        body.append(" & ".join([row, found[0]["given"], *texts]) + r" \\")
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{ll{'c' * len(cells)}}} \toprule",
        head + r" \\ \midrule",
        *body,
        r"\bottomrule \end{tabular}",
    ]
    return "\n".join(lines)


def as_csv(entries: list[dict[str, Any]]) -> str:
    """Write a table as CSV, one line per row and cell."""
    text = io.StringIO()
    writer = csv.DictWriter(UnixLines(text), COLUMNS, extrasaction="ignore")
    writer.writeheader()
    for entry in entries:
        precision = zip(PRECISIONS, entry["precision"], strict=True)
        values = {**entry, **dict(precision), "difference": _difference(entry)}
        writer.writerow({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()})
    return text.getvalue().rstrip("\n")


FORMATS = {"md": as_markdown, "csv": as_csv, "latex": as_latex}


def _names(entries: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    rows = dict.fromkeys(entry["row"] for entry in entries)
    cells = dict.fromkeys(entry["cell"] for entry in entries)
    return list(rows), list(cells)


def _find(entries: list[dict[str, Any]], row: str, cell: str) -> dict[str, Any]:
    return next(e for e in entries if e["row"] == row and e["cell"] == cell)


def _difference(entry: dict[str, Any]) -> float | None:
    """Subtract the numbers as they are printed."""
    if entry["mean"] is None or entry["paper"] is None:
        return None
    return round(round(entry["mean"], 1) - entry["paper"], 1) + 0.0  # + 0.0: no minus before a zero


def _text(entry: dict[str, Any], bold: str, counted: bool, plus_minus: str = " ± ") -> str:
    """Write `91.2 ± 0.3 (3 runs; paper 91.30, -0.1)`, the runs only if `counted`."""
    if entry["mean"] is None:
        return "" if entry["paper"] is None else f"(paper {entry['paper']:.2f})"
    text = f"{entry['mean']:.1f}"
    if entry["spread"] is not None:
        text += f"{plus_minus}{entry['spread']:.1f}"
    text = bold.format(text) if entry["best"] else text
    runs = [f"{entry['n']} run{'s' * (entry['n'] > 1)}"] if counted else []
    paper = []
    if entry["paper"] is not None:
        paper = [f"paper {entry['paper']:.2f}, {_difference(entry):+.1f}"]
    return f"{text} ({'; '.join([*runs, *paper])})" if runs or paper else text
