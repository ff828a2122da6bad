"""How far off are the estimated shares of closed and open rows, and do their intervals hold?

    python benchmarks/audit_rates.py --data digits lost msrcv2 --out FILE.jsonl
    python benchmarks/audit_rates.py --out FILE.jsonl              # only the tables of the file

For each cell of the grid (data, q, tau, seed) and each kind of input (probabilities; logits; logits
and features) one line is appended to the file; cells that are there already are skipped. Then a
table of all lines is printed. Data other than digits are read from the folder named by
CANDIDLY_DATA; outputs of the model are cached in `--cache`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from audit_data import REAL, SOURCES, Case, case, cells
from candidly import estimate_rates
from candidly.auditing.rates import RatesEstimate
from candidly.kinds import CLOSED, OPEN
from candidly.scores import log_softmax

INPUTS = ("probs", "logits", "features")


def outputs(chosen: Case, inputs: str) -> dict[str, Any]:
    """Return the arguments of an audit beside the candidates."""
    if inputs == "probs":
        return {"probs": np.exp(log_softmax(chosen.logits))}
    if inputs == "logits":
        return {"logits": chosen.logits}
    return {"logits": chosen.logits, "features": chosen.features}


def measure(chosen: Case, inputs: str) -> dict[str, Any]:
    began = time.perf_counter()
    found: RatesEstimate = estimate_rates(chosen.candidates, **outputs(chosen, inputs))
    seconds = time.perf_counter() - began
    closed, open_ = ((chosen.kinds == kind).mean() for kind in (CLOSED, OPEN))
    truth = {"closed": closed, "open": open_}
    row: dict[str, Any] = {"n": len(chosen.kinds), "seconds": seconds, "notes": len(found.notes)}
    for name, true in truth.items():
        row[name] = {
            "true": float(true),
            "found": getattr(found, name),
            "interval": getattr(found, f"{name}_interval"),
        }
    return row


def summary(rows: list[dict[str, Any]]) -> str:
    """Write a table of the data that the mixture's constants were chosen on, and of the others."""
    parts = {"seeds and data that something was chosen on": [r for r in rows if not is_fresh(r)]}
    parts["nothing was chosen on"] = [r for r in rows if is_fresh(r)]
    return "\n\n".join(f"{title}:\n\n{table(part)}" for title, part in parts.items() if part)


def is_fresh(row: dict[str, Any]) -> bool:
    return row["data"] == "cifar10+cifar100" or row["seed"] > 2


def table(rows: list[dict[str, Any]]) -> str:
    """Write errors and coverage for each data set and input, and the worst cells."""
    lines = [
        "| data | input | cells | error closed | error open | covered closed, open | width "
        "| zero excluded at tau=0 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups = {(row["data"], row["input"]): [] for row in rows}
    for row in rows:
        groups[row["data"], row["input"]].append(row)
    for (data, inputs), group in sorted(groups.items()):
        lines.append(f"| {data} | {inputs} | {len(group)} | {_figures(group)} |")
    for inputs in INPUTS:
        drawn = [row for row in rows if row["input"] == inputs and row["data"] not in REAL]
        if drawn:
            lines.append(f"| all drawn by q | {inputs} | {len(drawn)} | {_figures(drawn)} |")
    drawn = [row for row in rows if row["data"] not in REAL]
    lines += ["", "Worst cells (true -> found [interval]):"]
    for row in sorted(drawn, key=_error, reverse=True)[:8]:
        cell = f"q={row['q']}, tau={tuple(row['tau'])}, seed {row['seed']}"
        shares = ", ".join(_share(row, name) for name in ("closed", "open"))
        lines.append(f"- {row['data']}, {row['input']}, {cell}: {shares}")
    return "\n".join(lines)


def _error(row: dict[str, Any]) -> float:
    """Return the larger error of the two shares."""
    return max(abs(row[kind]["found"] - row[kind]["true"]) for kind in ("closed", "open"))


def _figures(group: list[dict[str, Any]]) -> str:
    shown = []
    covered = []
    widths = []
    for kind in ("closed", "open"):
        found, true = (np.array([row[kind][name] for row in group]) for name in ("found", "true"))
        low, high = np.array([row[kind]["interval"] for row in group]).T
        error = np.abs(found - true)
        shown.append(f"{np.median(error):.3f} (mean {error.mean():.3f}, max {error.max():.3f})")
        covered.append(f"{np.mean((low <= true) & (true <= high)):.0%}")
        widths.append(f"{np.median(high - low):.3f}")
    clean = [row for row in group if tuple(row["tau"]) == (0, 0)]
    alarms = [any(row[kind]["interval"][0] > 0 for kind in ("closed", "open")) for row in clean]
    rate = np.mean(alarms) if alarms else np.nan
    return " | ".join([*shown, ", ".join(covered), ", ".join(widths), f"{rate:.0%}"])


def _share(row: dict[str, Any], name: str) -> str:
    low, high = row[name]["interval"]
    return f"{name} {row[name]['true']:.3f} -> {row[name]['found']:.3f} [{low:.3f}, {high:.3f}]"


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def add_row(path: Path, row: dict[str, Any]) -> None:
    """Append a line; numbers with four decimals."""
    rounded = json.loads(json.dumps(row), parse_float=lambda text: round(float(text), 4))
    with path.open("a") as file:
        file.write(json.dumps(rounded, separators=(",", ":")) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=[], choices=[*SOURCES, *REAL])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("audit_rates.jsonl"))
    parser.add_argument("--cache", type=Path, default=Path("audit_cache"))
    chosen = parser.parse_args()
    done = {(r["data"], r["q"], *r["tau"], r["seed"], r["input"]) for r in read_rows(chosen.out)}
    for name, q, tau in cells(chosen.data):
        for seed in chosen.seeds:
            for inputs in INPUTS:
                if (name, q, *tau, seed, inputs) in done:
                    continue
                row = measure(case(name, q, tau, seed, chosen.cache), inputs)
                cell = {"data": name, "q": q, "tau": tau, "seed": seed, "input": inputs}
                add_row(chosen.out, cell | row)
    print(summary(read_rows(chosen.out)))


if __name__ == "__main__":
    main()
