"""How far off are the estimated shares of closed and open rows, and do their intervals hold?

    python benchmarks/audit_rates.py --data digits lost msrcv2 --out FILE.jsonl
    python benchmarks/audit_rates.py --out FILE.jsonl                          # only the tables of what is in the file

For each cell of the grid (data, q, tau, seed) and each kind of input (probabilities; logits; logits and features) one
line is appended to the file; cells that are there already are skipped. Then a table of all lines is printed. Data other
than digits are looked for in the folder named by CANDIDLY_DATA; outputs of the model are kept in `--cache`.
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
    """The arguments of an audit beside the candidates."""
    if inputs == "probs":
        return {"probs": np.exp(log_softmax(chosen.logits))}
    return {"logits": chosen.logits} | (
        {"features": chosen.features} if inputs == "features" else {}
    )


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
    """A table of what the mixture's constants were chosen on, and one of what they were not."""
    parts = {"seeds and data that something was chosen on": [r for r in rows if not is_fresh(r)]}
    parts["nothing was chosen on"] = [r for r in rows if is_fresh(r)]
    return "\n\n".join(f"{title}:\n\n{table(part)}" for title, part in parts.items() if part)


def is_fresh(row: dict[str, Any]) -> bool:
    return row["data"] == "cifar10+cifar100" or row["seed"] > 2


def table(rows: list[dict[str, Any]]) -> str:
    """Errors and coverage for each data set and input, and the worst cells."""
    lines = [
        "| data | input | cells | error closed | error open | covered closed, open | width | zero excluded at tau=0 |",
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
    worst = sorted(
        rows,
        key=lambda row: -max(abs(row[k]["found"] - row[k]["true"]) for k in ("closed", "open")),
    )
    lines += ["", "Worst cells (true -> found [interval]):"]
    for row in [row for row in worst if row["data"] not in REAL][:8]:
        told = ", ".join(_told(row, name) for name in ("closed", "open"))
        lines.append(
            f"- {row['data']}, {row['input']}, q={row['q']}, tau={tuple(row['tau'])}, seed {row['seed']}: {told}"
        )
    return "\n".join(lines)


def _figures(group: list[dict[str, Any]]) -> str:
    errors = {
        k: np.abs([row[k]["found"] - row[k]["true"] for row in group]) for k in ("closed", "open")
    }
    covered = {
        k: [row[k]["interval"][0] <= row[k]["true"] <= row[k]["interval"][1] for row in group]
        for k in errors
    }
    width = {
        k: np.median([row[k]["interval"][1] - row[k]["interval"][0] for row in group])
        for k in errors
    }
    clean = [row for row in group if tuple(row["tau"]) == (0, 0)]
    alarms = (
        np.mean([any(row[k]["interval"][0] > 0 for k in errors) for row in clean])
        if clean
        else np.nan
    )
    shown = [
        f"{np.median(e):.3f} (mean {e.mean():.3f}, max {e.max():.3f})" for e in errors.values()
    ]
    shares = ", ".join(f"{np.mean(c):.0%}" for c in covered.values())
    return " | ".join(
        [*shown, shares, ", ".join(f"{w:.3f}" for w in width.values()), f"{alarms:.0%}"]
    )


def _told(row: dict[str, Any], name: str) -> str:
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
                add_row(
                    chosen.out,
                    {"data": name, "q": q, "tau": tau, "seed": seed, "input": inputs} | row,
                )
    print(summary(read_rows(chosen.out)))


if __name__ == "__main__":
    main()
