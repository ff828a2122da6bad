"""How well does the audit do on labels that people gave?

    python benchmarks/human.py --cells plain --out results/human.jsonl     # compute what is missing
    python benchmarks/human.py --show results/human.jsonl                  # print the tables

One line per cell and resample (`human_data.py` makes them): average precision (AP) of finding rows
whose truth is outside their set, accuracy of the consensus, the estimated share with its interval,
and calibration; for the audit and for its rivals on the same outputs. Rows are judged by models
that were not trained on them. The truth evaluates only; `given` says what each method is given.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score

import candidly
from candidly.bench.runner import machine
from candidly.storage.provenance import versions
from human_data import CELLS, Case, Cell, case

SEEDS = range(5)
BINS = 15


def measure(cell: Cell, seed: int, folder: Path) -> dict:
    """Audit one cell, and compare with the rivals."""
    made = case(cell, seed, folder)
    began = time.perf_counter()
    ours = _audit(made)
    ours["seconds"] = round(time.perf_counter() - began, 2)
    rivals = _rivals(made)
    return {
        "cell": cell.name,
        "seed": seed,
        "audit": ours,
        "rivals": rivals,
        "made": versions() | machine(),
    }


def _outside(made: Case, sets: candidly.CandidateSets) -> np.ndarray:
    return ~sets.contains(made.truth)


def _audit(made: Case) -> dict:
    answers = candidly.Answers(made.answers, made.logits.shape[1])
    audit = candidly.Audit(answers, logits=made.logits)
    table = audit.table
    outside = _outside(made, audit.outputs.sets)
    label = np.where(table.consensus_label.isna(), -1, table.consensus_label.cat.codes)
    found = audit.estimate
    is_open = made.truth < 0
    result = {
        "process": found.process,
        "ap": _ap(outside, table.p_outside),
        "consensus": float((label == made.truth).mean()),
        "outside": [float(outside.mean()), found.outside, *found.outside_interval],
        "calibration": _calibration(table.p_outside.to_numpy(), outside),
        "consensus_calibration": _calibration(
            table.consensus_probability.to_numpy(), label == made.truth
        ),
    }
    if is_open.any():
        result |= {
            "closed": [float((outside & ~is_open).mean()), found.closed, *found.closed_interval],
            "open": [float(is_open.mean()), found.open, *found.open_interval],
            "ap_closed": _ap(outside & ~is_open, table.p_closed),
            "ap_open": _ap(is_open, table.p_open),
            "consensus_known": float((label == made.truth)[~is_open].mean()),
        }
    return result


def _ap(positive: np.ndarray, score: np.ndarray) -> float:
    return float(average_precision_score(positive, score)) if positive.any() else float("nan")


def _calibration(stated: np.ndarray, true: np.ndarray) -> float:
    """Mean distance of stated and true frequency, over bins of equal count."""
    order = np.argsort(stated, kind="stable")
    parts = np.array_split(order, BINS)
    gaps = [len(part) * abs(stated[part].mean() - true[part].mean()) for part in parts]
    return float(sum(gaps) / len(stated))


def _rivals(made: Case) -> dict:
    """AP and consensus accuracy of other tools, from the same outputs."""
    from cleanlab.multilabel_classification.rank import get_label_quality_scores as multilabel
    from cleanlab.rank import get_label_quality_scores as label_quality

    c = made.logits.shape[1]
    probs = np.exp(made.logits - made.logits.max(axis=1, keepdims=True)).astype(np.float64)
    probs /= probs.sum(axis=1, keepdims=True)
    answers = candidly.Answers(made.answers, c)
    sets = answers.to_sets()
    mask = sets.dense()
    outside = _outside(made, sets)
    best = np.where(mask, probs, -1).argmax(axis=1)
    seen = np.bincount(best, minlength=c) > 0
    scores = {"mass outside": 1 - (probs * mask).sum(axis=1)}
    if seen.all():
        scores["cleanlab label"] = -label_quality(best, probs)
        scores["cleanlab margin"] = -label_quality(best, probs, method="normalized_margin")
    scores["cleanlab multilabel"] = -multilabel(
        [np.flatnonzero(row).tolist() for row in mask], probs
    )
    consensus = {"majority": _majority(answers, made.truth)}
    if made.answers.shape[1] > 1:
        labels, quality = _multiannotator(made.answers, probs)
        scores["cleanlab multiannotator"] = -quality
        consensus["cleanlab multiannotator"] = float((labels == made.truth).mean())
        consensus["Dawid-Skene"] = float((_dawid_skene(made.answers) == made.truth).mean())
    ap = {name: _ap(outside, score) for name, score in scores.items()}
    is_open = made.truth < 0
    if is_open.any():
        known = {"doubt": _ap(is_open, -probs.max(axis=1))}
        return {"ap": ap, "consensus": consensus, "ap_open": known}
    return {"ap": ap, "consensus": consensus}


def _majority(answers: candidly.Answers, truth: np.ndarray) -> float:
    """Accuracy of the majority vote, with ties broken at random."""
    votes = answers.votes().toarray()[:, :-1]
    tied = votes == votes.max(axis=1, keepdims=True)
    known = truth >= 0
    right = tied[np.flatnonzero(known), truth[known]] / tied[known].sum(axis=1)
    return float(right.sum() / len(truth))


def _multiannotator(answers: np.ndarray, probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd
    from cleanlab.multiannotator import get_label_quality_multiannotator

    with contextlib.redirect_stdout(io.StringIO()):
        found = get_label_quality_multiannotator(pd.DataFrame(answers), probs)["label_quality"]
    return found["consensus_label"].to_numpy(), found["consensus_quality_score"].to_numpy()


def _dawid_skene(answers: np.ndarray) -> np.ndarray:
    import pandas as pd
    from crowdkit.aggregation import DawidSkene

    n, k = answers.shape
    long = pd.DataFrame(
        {
            "task": np.repeat(np.arange(n), k),
            "worker": np.tile(np.arange(k), n),
            "label": answers.ravel(),
        }
    )
    return DawidSkene(n_iter=50).fit_predict(long).sort_index().to_numpy()


# ---- tables


def show(path: Path) -> str:
    """Make the tables of docs/audit.md from stored lines."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    parts = [_plain_table(lines), _shares_table(lines), _open_table(lines)]
    return "\n\n".join(part for part in parts if part)


def _groups(lines: list[dict], names: list[str]) -> list[tuple[str, list[dict]]]:
    found = [(name, [line for line in lines if line["cell"] == name]) for name in names]
    return [(name, group) for name, group in found if group]


def _best_rival(group: list[dict], what: str) -> tuple[str, np.ndarray]:
    """The rival with the best mean, and its values."""
    names = set.intersection(*(set(line["rivals"][what]) for line in group))
    values = {name: np.array([line["rivals"][what][name] for line in group]) for name in names}
    best = max(sorted(values), key=lambda name: values[name].mean())
    return best, values[best]


def _plain_table(lines: list[dict]) -> str:
    rows = [
        "| cell | process | AP | best rival | lead (sd) | consensus | best rival | lead (sd) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, group in _groups(lines, [cell.name for cell in CELLS["plain"]]):
        ap = np.array([line["audit"]["ap"] for line in group])
        right = np.array([line["audit"]["consensus"] for line in group])
        rival, theirs = _best_rival(group, "ap")
        voter, votes = _best_rival(group, "consensus")
        process = "/".join(sorted({line["audit"]["process"] for line in group}))
        rows.append(
            f"| {name} | {process} | {ap.mean():.3f} | {theirs.mean():.3f} ({rival}) "
            f"| {_lead(ap - theirs, 3)} | {right.mean():.4f} | {votes.mean():.4f} ({voter}) "
            f"| {_lead(right - votes, 4)} |"
        )
    return "\n".join(rows) if len(rows) > 2 else ""


def _lead(gaps: np.ndarray, digits: int) -> str:
    spread = gaps.std(ddof=1) if len(gaps) > 1 else float("nan")
    return f"{gaps.mean():+.{digits}f} ({spread:.{digits}f})"


def _shares_table(lines: list[dict]) -> str:
    rows = [
        "| cell | truly outside | estimate | 90 % interval | covered | too wide "
        "| calibration: p_outside, consensus |",
        "|---|---|---|---|---|---|---|",
    ]
    held = []
    names = [cell.name for cells in CELLS.values() for cell in cells]
    plain = {cell.name for cell in CELLS["plain"]}
    for name, group in _groups(lines, names):
        true, found, low, high = np.array([line["audit"]["outside"] for line in group]).T
        covered = (low <= true) & (true <= high)
        wide = high - low > 0.2
        if name in plain:
            held += (covered & ~wide).tolist()
        gaps = [
            np.mean([line["audit"][key] for line in group])
            for key in ("calibration", "consensus_calibration")
        ]
        rows.append(
            f"| {name} | {true.mean():.3f} | {found.mean():.3f} | {low.mean():.3f} to "
            f"{high.mean():.3f} | {covered.sum()} of {len(group)} | {wide.sum()} "
            f"| {gaps[0]:.3f}, {gaps[1]:.3f} |"
        )
    total = f"All cells without open rows: {sum(held)} of {len(held)} intervals hold the truth and "
    return "\n".join([*rows, "", total + "are at most 0.2 wide."])


def _open_table(lines: list[dict]) -> str:
    rows = [
        "| cell | open: true | estimate | 90 % interval | closed: true | estimate "
        "| AP open (doubt) | AP closed | AP outside (best rival) | consensus of known rows |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in _groups(lines, [c.name for key in ("open", "text") for c in CELLS[key]]):
        audits = [line["audit"] for line in group]
        open_, closed = (np.mean([a[key] for a in audits], axis=0) for key in ("open", "closed"))
        ap = {key: np.mean([a[key] for a in audits]) for key in ("ap", "ap_open", "ap_closed")}
        doubt = np.mean([line["rivals"]["ap_open"]["doubt"] for line in group])
        rival, theirs = _best_rival(group, "ap")
        known = np.mean([a["consensus_known"] for a in audits])
        rows.append(
            f"| {name} | {open_[0]:.3f} | {open_[1]:.3f} | {open_[2]:.3f} to {open_[3]:.3f} "
            f"| {closed[0]:.3f} | {closed[1]:.3f} | {ap['ap_open']:.3f} ({doubt:.3f}) "
            f"| {ap['ap_closed']:.3f} | {ap['ap']:.3f} ({theirs.mean():.3f}, {rival}) "
            f"| {known:.4f} |"
        )
    return "\n".join(rows) if len(rows) > 2 else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=list(CELLS))
    parser.add_argument("--inputs", nargs="+", default=["lite0", "pixels", "text"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("human-cache"))
    parser.add_argument("--show", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    if given.out is not None:
        run(given)
    if (shown := given.show or given.out) is not None:
        print(show(shown))


def run(given: argparse.Namespace) -> None:
    """Measure what is missing, one line per cell and resample."""
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    done = {(line["cell"], line["seed"]) for line in map(json.loads, lines)}
    for seed in given.seeds:
        for cell in (cell for name in given.cells for cell in CELLS[name]):
            if (cell.name, seed) in done or cell.inputs not in given.inputs:
                continue
            line = measure(cell, seed, given.cache)
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(cell.name, seed, json.dumps(line["audit"]["outside"]), flush=True)


if __name__ == "__main__":
    main()
