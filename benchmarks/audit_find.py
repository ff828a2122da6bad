"""Which score finds closed and open rows best? Average precision, beside the naive rule and cleanlab.

    python benchmarks/audit_find.py --data digits lost msrcv2 --out FILE.jsonl

Closed: `p_closed` against 1 - mass inside the candidates, and cleanlab's label quality with the best candidate as
label and its multilabel variant. Open: `p_open` against the same mass, and cleanlab's out-of-distribution scores on the
outputs and on the features. Outside: both together. Also the calibration error of the two probabilities (15 bins of
equal count), and how a rehearsal with injected rows compares with the real ones. Appends and skips like audit_rates.py.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from audit_data import REAL, SOURCES, Case, case, cells
from audit_rates import outputs, read_rows
from candidly import audit
from candidly.corruption import CLOSED, NORMAL, OPEN
from candidly.injection import rehearse
from candidly.metrics import auroc
from candidly.scores import log_softmax

OURS = ("probs", "logits", "features")


def rivals(chosen: Case) -> dict[str, np.ndarray]:
    """Scores that rise with suspicion: the naive rule and cleanlab's."""
    from cleanlab.multilabel_classification import get_label_quality_scores as multilabel
    from cleanlab.outlier import OutOfDistribution
    from cleanlab.rank import get_label_quality_scores

    probs = np.exp(log_softmax(chosen.logits.astype(np.float64)))
    inside = np.where(chosen.candidates, probs, 0)
    best, lists = inside.argmax(axis=1), [np.flatnonzero(row).tolist() for row in chosen.candidates]
    return {
        "mass outside": 1 - inside.sum(axis=1),
        "cleanlab label": 1 - get_label_quality_scores(best, probs),
        "cleanlab margin": 1 - get_label_quality_scores(best, probs, method="normalized_margin"),
        "cleanlab multilabel": 1 - multilabel(lists, probs),
        "cleanlab ood outputs": 1 - OutOfDistribution().fit_score(pred_probs=probs, labels=best, verbose=False),
        "cleanlab ood features": 1 - OutOfDistribution().fit_score(features=chosen.features, verbose=False),
    }


def calibration_error(p: np.ndarray, true: np.ndarray, bins: int = 15) -> float:
    """Mean distance between stated and true frequency, over bins of equal count."""
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    return float(sum(abs(p[part].mean() - true[part].mean()) * len(part) for part in parts) / len(p))


def measure(chosen: Case) -> dict[str, Any]:
    scores = {name: {"closed": s, "open": s, "outside": s} for name, s in rivals(chosen).items()}
    calibration = {}
    truth = {"closed": chosen.kinds == CLOSED, "open": chosen.kinds == OPEN, "outside": chosen.kinds != NORMAL}
    for inputs in OURS:
        table = audit(chosen.candidates, **outputs(chosen, inputs))
        ours = {"closed": table.p_closed, "open": table.p_open, "outside": 1 - table.p_normal}
        scores[f"audit, {inputs}"] = {kind: p.to_numpy() for kind, p in ours.items()}
        calibration[inputs] = {kind: calibration_error(ours[kind].to_numpy(), truth[kind]) for kind in truth}
        labels = table.suggested_label.astype(float).to_numpy()
        known = (chosen.kinds == CLOSED) & (table.verdict == "closed").to_numpy()
        calibration[inputs]["suggestions right"] = (
            float((labels == chosen.labels)[known].mean()) if known.any() else None
        )
    found = {
        kind: {name: float(average_precision_score(true, s[kind])) for name, s in scores.items()}
        for kind, true in truth.items()
        if true.any()
    }
    return {"n": len(chosen.kinds), "found": found, "calibration": calibration, "gap": gap(chosen)}


def gap(chosen: Case) -> dict[str, list[float | None]]:
    """AUROC of p_closed and of p_open, against normal rows: [of injected rows, of the real ones]."""
    rehearsal = rehearse(chosen.candidates, logits=chosen.logits)
    table, both = audit(chosen.candidates, logits=chosen.logits), {}
    for kind, name, rehearsed in ((CLOSED, "closed", rehearsal.closed_auroc), (OPEN, "open", rehearsal.open_auroc)):
        rows = (chosen.kinds == kind) | (chosen.kinds == NORMAL)
        both[name] = [rehearsed, auroc(table[f"p_{name}"].to_numpy()[rows], chosen.kinds[rows] == kind)]
    return both


def summary(rows: list[dict[str, Any]]) -> str:
    lines = []
    for kind in ("closed", "open", "outside"):
        with_kind = [row for row in rows if kind in row["found"]]
        if not with_kind:
            continue
        data, names = sorted({row["data"] for row in with_kind}), list(with_kind[0]["found"][kind])
        lines += [f"\nAverage precision, {kind}:\n", "| score | " + " | ".join([*data, "all"]) + " |"]
        lines.append("|---" * (len(data) + 2) + "|")
        for name in names:
            each = [[row["found"][kind][name] for row in with_kind if row["data"] == d] for d in data]
            means = [np.mean(values) for values in [*each, [v for values in each for v in values]]]
            lines.append(f"| {name} | " + " | ".join(f"{m:.3f}" for m in means) + " |")
        lines.append("\n" + _paired(with_kind, kind, names))
    lines.append(
        "\nCalibration error (mean over cells):\n\n| data | input | p_closed | p_open | suggestions right |\n"
        + "|---" * 5
        + "|"
    )
    for d in sorted({row["data"] for row in rows}):
        for inputs in OURS:
            parts = [row["calibration"][inputs] for row in rows if row["data"] == d]
            right = [p["suggestions right"] for p in parts if p["suggestions right"] is not None]
            errors = " | ".join(f"{np.mean([p[k] for p in parts]):.3f}" for k in ("closed", "open"))
            lines.append(f"| {d} | {inputs} | {errors} | {np.mean(right) if right else np.nan:.3f} |")
    lines += ["\nAUROC against normal rows, injected and real:\n", "| data | closed | open |", "|---|---|---|"]
    for d in sorted({row["data"] for row in rows}):
        shown = []
        for kind in ("closed", "open"):
            pairs = [row["gap"][kind] for row in rows if row["data"] == d and None not in row["gap"][kind]]
            shown.append(" / ".join(f"{m:.3f}" for m in np.nanmean(np.array(pairs, dtype=float), axis=0)))
        lines.append(f"| {d} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _paired(rows: list[dict[str, Any]], kind: str, names: list[str]) -> str:
    """The audit against the rival with the best mean, cell by cell: the gap, and where it is behind in every seed."""
    lines = []
    for inputs in ("logits", "features"):
        others = [name for name in names if not name.startswith("audit") and (inputs in name or "features" not in name)]
        rival = max(others, key=lambda name: np.mean([row["found"][kind][name] for row in rows]))
        gaps: dict[tuple[Any, ...], list[float]] = {}
        for row in rows:
            gap = row["found"][kind][f"audit, {inputs}"] - row["found"][kind][rival]
            gaps.setdefault((row["data"], row["q"], *row["tau"]), []).append(gap)
        behind = {key: float(np.mean(g)) for key, g in gaps.items() if max(g) < 0}
        told = "; ".join(f"{key} {gap:+.3f}" for key, gap in sorted(behind.items(), key=lambda item: item[1])[:6])
        mean = np.mean([gap for g in gaps.values() for gap in g])
        lines.append(
            f"Audit on {inputs} minus {rival}: {mean:+.3f}; behind in all seeds: {len(behind)}/{len(gaps)}. {told}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits"], choices=[*SOURCES, *REAL])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("audit_find.jsonl"))
    parser.add_argument("--cache", type=Path, default=Path("audit_cache"))
    chosen = parser.parse_args()
    done = {(r["data"], r["q"], *r["tau"], r["seed"]) for r in read_rows(chosen.out)}
    for name, q, tau in cells(chosen.data):
        for seed in chosen.seeds:
            if tau == (0, 0) or (name, q, *tau, seed) in done:
                continue
            row = {"data": name, "q": q, "tau": tau, "seed": seed} | measure(case(name, q, tau, seed, chosen.cache))
            with chosen.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(summary(read_rows(chosen.out)))


if __name__ == "__main__":
    main()
