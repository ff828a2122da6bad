"""Which score finds closed and open rows best? Average precision, beside naive rule and cleanlab.

    python benchmarks/audit_find.py --data digits lost msrcv2 --out FILE.jsonl
    python benchmarks/audit_find.py --out FILE.jsonl --picture FILE.png    # only what is in a file

Closed: `p_closed` against 1 - mass of the candidates, and cleanlab's label quality with the best
candidate as label and its multilabel variant. Open: `p_open` against the same mass, and cleanlab's
out-of-distribution scores on the outputs and on the features. Outside: both together. Also the
calibration of the two probabilities (error over 15 bins of equal count; counts for a reliability
diagram), and what calibration on injected rows would change (audit_injection.py; seed 0 only, as it
takes longer). Appends and skips like audit_rates.py; `--cache` also holds the rivals' results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

import audit_injection
from audit_data import REAL, SOURCES, Case, case, cells
from audit_injection import calibration_error
from audit_rates import add_row, outputs, read_rows
from candidly import audit
from candidly.kinds import CLOSED, NORMAL, OPEN
from candidly.scores import log_softmax

KINDS = ("closed", "open", "outside")
BINS = 10  # of the reliability diagram, of equal width
OURS = ("probs", "logits", "features")
# Safe for colour-blind readers.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")


def rivals(chosen: Case) -> dict[str, np.ndarray]:
    """Compute scores that rise with suspicion: the naive rule and cleanlab's."""
    from cleanlab.multilabel_classification import get_label_quality_scores as multilabel
    from cleanlab.outlier import OutOfDistribution
    from cleanlab.rank import get_label_quality_scores

    probs = np.exp(log_softmax(chosen.logits.astype(np.float64)))
    masked = np.where(chosen.candidates, probs, 0)
    best = masked.argmax(axis=1)
    lists = [np.flatnonzero(row).tolist() for row in chosen.candidates]
    scorer = OutOfDistribution()
    typical = scorer.fit_score(pred_probs=probs, labels=best, verbose=False)
    near = OutOfDistribution().fit_score(features=chosen.features, verbose=False)
    return {
        "mass outside": 1 - masked.sum(axis=1),
        "cleanlab label": 1 - get_label_quality_scores(best, probs),
        "cleanlab margin": 1 - get_label_quality_scores(best, probs, method="normalized_margin"),
        "cleanlab multilabel": 1 - multilabel(lists, probs),
        "cleanlab ood outputs": 1 - typical,
        "cleanlab ood features": 1 - near,
    }


def precisions(
    chosen: Case, scores: dict[str, dict[str, np.ndarray]]
) -> dict[str, dict[str, float]]:
    """Return the average precision of each score, for each kind that there is."""
    return {
        kind: {name: float(average_precision_score(true, s[kind])) for name, s in scores.items()}
        for kind, true in truth(chosen).items()
        if true.any()
    }


def truth(chosen: Case) -> dict[str, np.ndarray]:
    return {
        "closed": chosen.kinds == CLOSED,
        "open": chosen.kinds == OPEN,
        "outside": chosen.kinds != NORMAL,
    }


def of_rivals(chosen: Case, path: Path) -> dict[str, dict[str, float]]:
    """Return the rivals' average precisions, from `path` if they are there."""
    if not path.exists():
        scores = {name: dict.fromkeys(KINDS, s) for name, s in rivals(chosen).items()}
        path.write_text(json.dumps(precisions(chosen, scores)))
    return json.loads(path.read_text())


def measure(chosen: Case, cached: Path) -> dict[str, Any]:
    true = truth(chosen)
    found = of_rivals(chosen, cached)
    calibration = {}
    reliability = {}
    for inputs in OURS:
        table = audit(chosen.candidates, **outputs(chosen, inputs))
        ours = {"closed": table.p_closed, "open": table.p_open, "outside": -table.p_normal}
        ours = {kind: p.to_numpy() for kind, p in ours.items()}
        for kind, ap in precisions(chosen, {f"audit, {inputs}": ours}).items():
            found[kind] |= ap
        errors = {kind: calibration_error(ours[kind], true[kind]) for kind in KINDS[:2]}
        calibration[inputs] = errors | {"suggestions right": suggestions_right(chosen, table)}
        if inputs == "logits":
            reliability = {kind: bins(ours[kind], true[kind]) for kind in KINDS[:2]}
    return {
        "n": len(chosen.kinds),
        "found": found,
        "calibration": calibration,
        "reliability": reliability,
    }


def suggestions_right(chosen: Case, table: Any) -> float | None:
    """Return the share of right suggestions among the closed rows that are called closed."""
    known = (chosen.kinds == CLOSED) & (table.verdict == "closed").to_numpy()
    right = table.suggested_label.astype(float).to_numpy() == chosen.labels
    return float(right[known].mean()) if known.any() else None


def bins(p: np.ndarray, true: np.ndarray) -> list[list[float]]:
    """Count for each bin: rows, sum of the probabilities, rows of the kind."""
    where = np.minimum((p * BINS).astype(int), BINS - 1)
    counts = [np.bincount(where, weights, BINS) for weights in (None, p, true)]
    return [
        [int(n), round(float(stated), 1), int(of)] for n, stated, of in zip(*counts, strict=True)
    ]


def summary(rows: list[dict[str, Any]]) -> str:
    return "\n".join([*finding(rows), *calibrating(rows), *injecting(rows)])


def finding(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for kind in KINDS:
        with_kind = [row for row in rows if kind in row["found"]]
        data = sorted({row["data"] for row in with_kind})
        names = list(with_kind[0]["found"][kind])
        lines += [
            f"\nAverage precision, {kind}:\n",
            "| score | " + " | ".join([*data, "all"]) + " |",
            "|---" * (len(data) + 2) + "|",
        ]
        for name in names:
            means = by_data(with_kind, lambda row: row["found"][kind][name])  # noqa: B023
            lines.append(f"| {name} | " + " | ".join(f"{m:.3f}" for m in means) + " |")
        lines.append("\n" + _paired(with_kind, kind, names))
    return lines


def by_data(rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> list[float]:
    """Average over the cells of each data set, and over all."""
    data = sorted({row["data"] for row in rows})
    each = [[value(row) for row in rows if row["data"] == d] for d in data]
    return [float(np.mean(values)) for values in [*each, [v for values in each for v in values]]]


def calibrating(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["\nCalibration error (mean over cells):\n"]
    lines += ["| data | input | p_closed | p_open | suggestions right |", "|---" * 5 + "|"]
    for d in sorted({row["data"] for row in rows}):
        for inputs in OURS:
            parts = [row["calibration"][inputs] for row in rows if row["data"] == d]
            right = [p["suggestions right"] for p in parts if p["suggestions right"] is not None]
            errors = " | ".join(f"{np.mean([p[k] for p in parts]):.3f}" for k in ("closed", "open"))
            share = np.mean(right) if right else np.nan
            lines.append(f"| {d} | {inputs} | {errors} | {share:.3f} |")
    return lines


def injecting(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for kind in KINDS[:2]:
        with_kind = [row for row in rows if kind in row.get("injected", {})]
        shown = {
            "auroc": "AUROC, injected / real",
            "error": "error, as it is / calibrated",
            "found": "AP, as it is / after",
        }
        lines += [
            f"\nSelf-injection, {kind}:\n",
            "| data | " + " | ".join(shown.values()) + " |",
            "|---" * 4 + "|",
        ]
        for d in [*sorted({row["data"] for row in with_kind}), "all"]:
            mine = [row["injected"][kind] for row in with_kind if d in (row["data"], "all")]
            pairs = [
                np.array([m[what] for m in mine if None not in m[what]]).mean(axis=0)
                for what in shown
            ]
            lines.append(f"| {d} | " + " | ".join(f"{a:.3f} / {b:.3f}" for a, b in pairs) + " |")
    return lines


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw stated against true frequency: one panel per probability, one line per data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    styles = zip(sorted({row["data"] for row in rows}), COLOURS, "os^Dv*", strict=False)
    for d, colour, marker in styles:
        for axis, kind in zip(axes, KINDS[:2], strict=True):
            total = np.sum([row["reliability"][kind] for row in rows if row["data"] == d], axis=0)
            n, stated, of = total[total[:, 0] >= 50].T
            axis.plot(stated / n, of / n, color=colour, marker=marker, ms=5, lw=1.2, label=d)
    for axis, kind in zip(axes, KINDS[:2], strict=True):
        axis.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--", zorder=0)
        axis.set(title=f"p_{kind}", xlabel="stated probability", aspect="equal")
    axes[0].set_ylabel("true frequency")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    figure.savefig(path, dpi=150)


def _paired(rows: list[dict[str, Any]], kind: str, names: list[str]) -> str:
    """Compare the audit with the best rival, cell by cell; list where it is behind in all seeds."""
    lines = []
    for inputs in ("logits", "features"):
        fair = [name for name in names if inputs in name or "features" not in name]
        others = [name for name in fair if not name.startswith("audit")]
        rival = max(others, key=lambda name: np.mean([row["found"][kind][name] for row in rows]))
        gaps: dict[tuple[Any, ...], list[float]] = {}
        for row in rows:
            gap = row["found"][kind][f"audit, {inputs}"] - row["found"][kind][rival]
            gaps.setdefault((row["data"], row["q"], *row["tau"]), []).append(gap)
        behind = {key: float(np.mean(g)) for key, g in gaps.items() if max(g) < 0}
        worst = sorted(behind.items(), key=lambda item: item[1])[:6]
        listed = "; ".join(f"{key} {gap:+.3f}" for key, gap in worst)
        mean = np.mean([gap for g in gaps.values() for gap in g])
        lines.append(
            f"Audit on {inputs} minus {rival}: {mean:+.3f}; "
            f"behind in all seeds: {len(behind)}/{len(gaps)}. {listed}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", default=[], choices=[*SOURCES, *REAL])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("audit_find.jsonl"))
    parser.add_argument("--cache", type=Path, default=Path("audit_cache"))
    parser.add_argument("--picture", type=Path)
    chosen = parser.parse_args()
    done = {(r["data"], r["q"], *r["tau"], r["seed"]) for r in read_rows(chosen.out)}
    for name, q, tau in cells(chosen.data):
        for seed in chosen.seeds:
            if tau == (0, 0) or (name, q, *tau, seed) in done:
                continue
            cell = f"{name}-q{q:g}-tau{tau[0]:g},{tau[1]:g}-seed{seed}"
            problem = case(name, q, tau, seed, chosen.cache)
            row = measure(problem, chosen.cache / f"rivals-{cell}.json")
            if seed == 0:
                row["injected"] = audit_injection.measure(problem)
            add_row(chosen.out, {"data": name, "q": q, "tau": tau, "seed": seed} | row)
    print(summary(read_rows(chosen.out)))
    if chosen.picture:
        picture(read_rows(chosen.out), chosen.picture)


if __name__ == "__main__":
    main()
