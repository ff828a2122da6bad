"""Tables 1 and 2 from results, with the paper's numbers beside ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.grid import Job

PAPER = Path(__file__).parent / "paper"
OPENS = {"svhn": "C+S", "cifar100": "C+C", "imagenet32": "C+I"}


def paper_numbers(table: str) -> dict[tuple[Any, ...], float]:
    """(open set, q, tau1, tau2, row) -> the paper's mean; the method is OOC in Table 1 and "full" in Table 2."""
    numbers = {}
    with (PAPER / f"{table}.csv").open() as file:
        for line in csv.DictReader(file):
            name = line["method"] if table == "table1" else line["variant"]
            cell = (line["open"], *(float(line[key]) for key in ("q", "tau1", "tau2")))
            for row in ("ooc", "ooc, paper", "ooc, robust") if name == "OOC" else (name,):
                numbers[(*cell, row)] = float(line["mean"])
    return numbers


def make_table(jobs: list[Job], found: Iterable[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    """One entry per (row, cell): mean, spread and number of the seeds that are done, the paper's number, `best`."""
    scores: dict[tuple[str, str], list[float]] = {}
    by_key = {result["key"]: result for result in found}
    for job in jobs:
        values = scores.setdefault((job.row.name, job.cell.name), [])
        if job.key in by_key:
            values.append(by_key[job.key]["score"])
    numbers = paper_numbers(table)
    entries = []
    for job in {(j.row.name, j.cell.name): j for j in jobs}.values():
        values, cell = scores[(job.row.name, job.cell.name)], job.cell
        comparable = job.scale.known == "cifar10"
        paper = numbers.get((cell.open_set, cell.q, cell.tau1, cell.tau2, job.row.name)) if comparable else None
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        mean = float(np.mean(values)) if values else None
        kind = {"row": job.row.name, "cell": cell.name, "reference": job.row.reference is not None}
        entries.append({**kind, "mean": mean, "spread": spread, "n": len(values), "paper": paper})
    return _mark_best(entries)


def _mark_best(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best mean of each cell, references aside."""
    best: dict[str, float] = {}
    for entry in entries:
        if entry["mean"] is not None and not entry["reference"]:
            best[entry["cell"]] = max(best.get(entry["cell"], -np.inf), entry["mean"])
    return [{**e, "best": not e["reference"] and e["mean"] == best.get(e["cell"], np.nan)} for e in entries]


def as_markdown(entries: list[dict[str, Any]]) -> str:
    rows, cells = _names(entries)
    lines = ["| | " + " | ".join(cells) + " |", "|---|" + "---|" * len(cells)]
    lines += [f"| {r} | " + " | ".join(_text(_find(entries, r, c), "**{}**") for c in cells) + " |" for r in rows]
    return "\n".join(lines)


def as_latex(entries: list[dict[str, Any]]) -> str:
    rows, cells = _names(entries)
    head = " & ".join(["", *(c.replace("_", r"\_") for c in cells)]) + r" \\ \midrule"
    body = [" & ".join([r, *(_text(_find(entries, r, c), r"\textbf{{{}}}", r" $\pm$ ") for c in cells)]) for r in rows]
    lines = [rf"\begin{{tabular}}{{l{'c' * len(cells)}}} \toprule", head, *(f"{b} \\\\" for b in body)]
    return "\n".join([*lines, r"\bottomrule \end{tabular}"])


def as_csv(entries: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    columns = ["row", "cell", "mean", "spread", "n", "paper", "difference"]
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        writer.writerow({**entry, "difference": _difference(entry)})
    return text.getvalue().rstrip("\n")


FORMATS = {"md": as_markdown, "csv": as_csv, "latex": as_latex}


def _names(entries: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(e["row"] for e in entries)), list(dict.fromkeys(e["cell"] for e in entries))


def _find(entries: list[dict[str, Any]], row: str, cell: str) -> dict[str, Any]:
    return next(e for e in entries if e["row"] == row and e["cell"] == cell)


def _difference(entry: dict[str, Any]) -> float | None:
    return None if entry["mean"] is None or entry["paper"] is None else entry["mean"] - entry["paper"]


def _text(entry: dict[str, Any], bold: str, plus_minus: str = " ± ") -> str:
    """`91.2 ± 0.3 (paper 91.3, -0.1)`; an empty cell while nothing is done."""
    if entry["mean"] is None:
        return "" if entry["paper"] is None else f"(paper {entry['paper']:.1f})"
    text = f"{entry['mean']:.1f}" + ("" if entry["spread"] is None else f"{plus_minus}{entry['spread']:.1f}")
    text = bold.format(text) if entry["best"] else text
    return text if entry["paper"] is None else f"{text} (paper {entry['paper']:.1f}, {_difference(entry):+.1f})"
