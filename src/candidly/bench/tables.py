"""Tables 1 and 2 from results, with the paper's numbers beside ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.grid import ROWS, Job
from candidly.data.formats.delimited import UnixLines
from candidly.kinds import KINDS

PAPER = Path(__file__).parent / "paper"
OURS = tuple(row.name for row in ROWS if row.method == "ooc" and row.reference is None)


Numbers = dict[tuple[Any, ...], tuple[float, float]]


def paper_numbers(table: str) -> Numbers:
    """(open set, q, tau1, tau2, row) -> mean and spread of the paper; the method is OOC there, or "full" in Table 2."""
    numbers: Numbers = {}
    if table == "params":
        return numbers
    with (PAPER / f"{table}.csv").open() as file:
        for line in csv.DictReader(file):
            name = line["method"] if table == "table1" else line["variant"]
            cell = (line["open"], *(float(line[key]) for key in ("q", "tau1", "tau2")))
            for row in OURS if name == "OOC" else (name,):
                numbers[(*cell, row)] = float(line["mean"]), float(line["std"])
    return numbers


def make_table(
    jobs: list[Job], found: Iterable[dict[str, Any]], table: str
) -> list[dict[str, Any]]:
    """One entry per (row, cell), from the seeds that are done; see `_entry`."""
    by_key = {result["key"]: result for result in found}
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.row.name, job.cell.name), []).append(job)
    numbers = paper_numbers(table)
    done = {
        key: [by_key[job.key] for job in group if job.key in by_key]
        for key, group in groups.items()
    }
    return _mark_best([_entry(group, done[key], numbers) for key, group in groups.items()])


def _entry(group: list[Job], done: list[dict[str, Any]], numbers: Numbers) -> dict[str, Any]:
    """Mean, spread and number of the results, the paper's number, mean precision of the groups, seconds per epoch."""
    job = group[0]
    cell, scores = job.cell, [result["score"] for result in done]
    named = (cell.open_set, cell.q, cell.tau1, cell.tau2, job.row.name)
    paper, paper_spread = (
        numbers.get(named, (None, None)) if job.scale.known == "cifar10" else (None, None)
    )
    curves = [result["curves"] for result in done]
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
        "epoch_seconds": float(
            np.median([r["seconds"] / len(r["curves"]["accuracy"]) for r in done])
        )
        if done
        else None,
    }


def _last_mean(curves: list[dict[str, list[float | None]]], key: str) -> float | None:
    """Mean over the seeds of the last value of a curve, where there is one."""
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
    """`details`: also the precision of the normal/closed/open groups, and the seconds per epoch."""
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
    return (
        " ["
        + "/".join("–" if value is None else f"{value:.2f}" for value in entry["precision"])
        + "]"
    )


def as_latex(entries: list[dict[str, Any]]) -> str:
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
    text = io.StringIO()
    columns = [
        "row",
        "given",
        "cell",
        "open",
        "q",
        "tau1",
        "tau2",
        "mean",
        "spread",
        "n",
        "wanted",
        "best",
        "paper",
        "paper_spread",
        "difference",
    ]
    precisions = [f"precision_{kind}" for kind in KINDS]
    writer = csv.DictWriter(
        UnixLines(text), [*columns, *precisions, "epoch_seconds"], extrasaction="ignore"
    )
    writer.writeheader()
    for entry in entries:
        values = {
            **entry,
            **dict(zip(precisions, entry["precision"], strict=True)),
            "difference": _difference(entry),
        }
        writer.writerow({k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()})
    return text.getvalue().rstrip("\n")


FORMATS = {"md": as_markdown, "csv": as_csv, "latex": as_latex}


def _names(entries: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(e["row"] for e in entries)), list(
        dict.fromkeys(e["cell"] for e in entries)
    )


def _find(entries: list[dict[str, Any]], row: str, cell: str) -> dict[str, Any]:
    return next(e for e in entries if e["row"] == row and e["cell"] == cell)


def _difference(entry: dict[str, Any]) -> float | None:
    """Of the numbers as they are printed."""
    known = entry["mean"] is not None and entry["paper"] is not None
    return (
        round(round(entry["mean"], 1) - entry["paper"], 1) + 0.0 if known else None
    )  # no minus before a zero


def _text(entry: dict[str, Any], bold: str, counted: bool, plus_minus: str = " ± ") -> str:
    """Write `91.2 ± 0.3 (3 runs; paper 91.30, -0.1)`, the runs only if `counted`."""
    if entry["mean"] is None:
        return "" if entry["paper"] is None else f"(paper {entry['paper']:.2f})"
    text = f"{entry['mean']:.1f}" + (
        "" if entry["spread"] is None else f"{plus_minus}{entry['spread']:.1f}"
    )
    text = bold.format(text) if entry["best"] else text
    runs = [f"{entry['n']} run{'s' * (entry['n'] > 1)}"] if counted else []
    known = entry["paper"] is not None
    paper = [f"paper {entry['paper']:.2f}, {_difference(entry):+.1f}"] if known else []
    return f"{text} ({'; '.join([*runs, *paper])})" if runs or paper else text
