"""All methods side by side on one data set: accuracy, precision of the selection, time per epoch; a Markdown table.

    python benchmarks/compare.py --data digits --tau 0.2 0.4 --seeds 5
    python benchmarks/compare.py --data fashion --tau 0 0 --data-dir FOLDER

Every (row, q, seed) is a RUN folder below --out: finished ones are skipped, so the same command goes on where it was
stopped. "fashion" is 10,000 images of Fashion-MNIST, with MNIST as the open world: the idx files of both stand in
FOLDER/fashion-mnist and FOLDER/mnist.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from candidly.bench.data import Problem, Source, digits, make_problem, supervised_problem, true_selection
from candidly.bench.oracle import Oracle
from candidly.corruption import KINDS
from candidly.data.images import idx_images
from candidly.methods import Method
from candidly.methods.settings import make_method
from candidly.metrics import final_score
from candidly.nets import build_net
from candidly.progress import bar
from candidly.store import read_metrics, writing
from candidly.train import fit

ROWS = ["supervised", "oracle", "cc", "proden", "lws", "cavl", "pico", "crdpll", "ooc", "ooc:paper", "ooc:robust"]
PLANS: dict[str, dict[str, Any]] = {
    "digits": {"net": "mlp", "net_settings": {}, "scheme": "fast", "epochs": 60},
    "fashion": {"net": "conv", "net_settings": {"widths": [16, 32, 64]}, "scheme": "fast", "epochs": 15},
}


def fashion(folder: Path, seed: int) -> Source:
    """10,000 training images of Fashion-MNIST, drawn by the seed; all of its test images; MNIST as the pool."""
    X, y = idx_images(folder / "fashion-mnist", "train")
    X_test, y_test = idx_images(folder / "fashion-mnist", "t10k")
    chosen = np.random.default_rng(seed).choice(len(X), 10_000, replace=False)
    pool, _ = idx_images(folder / "mnist", "train")
    return Source(X[chosen], y[chosen], pool, X_test, y_test, tuple(map(str, range(10))))


def method_of(row: str, problem: Problem, q: float) -> Method:
    """The method of a table row. Warm-up is a setting of the grid, longer where sets are wide, as in the paper."""
    settings = {"rates": problem.rates, "warmup": 0.4 if q >= 0.5 else 0.3}
    name, _, preset = row.partition(":")
    if name == "ooc":
        return make_method("ooc", preset or None, settings)
    if name == "oracle":
        return Oracle(true_selection(problem.truth), **settings)
    return make_method((preset or "cc") if name == "supervised" else name)


def train_row(row: str, source: Source, config: dict[str, Any], path: Path) -> None:
    tau1, tau2 = config["tau"]
    problem = make_problem(source, q=config["q"], tau1=tau1, tau2=tau2, seed=config["seed"])
    method = method_of(row, problem, config["q"])
    data = supervised_problem(problem) if row.startswith("supervised") else problem
    shape = data.X.shape[1:] if data.X.ndim == 2 else (1, *data.X.shape[1:3])
    model = build_net(config["net"], shape, len(source.classes), seed=config["seed"], **config["net_settings"])
    with writing(path, config) as run:
        plan = {key: config[key] for key in ("scheme", "epochs", "seed")}
        fit(model, data.X, data.candidates, method, test=data.test, truth=data.truth, run=run, progress=False, **plan)


def collect(runs: list[tuple[str, dict[str, Any], Path]]) -> list[dict[str, Any]]:
    """One result per run: score, last precision, median seconds per epoch."""
    results = []
    for row, config, path in runs:
        history = read_metrics(path)
        precision = [history[-1].get(f"precision_{kind}") for kind in KINDS]
        seconds = float(np.median([entry["seconds"] for entry in history]))
        score = 100 * final_score(history)
        results.append({**config, "row": row, "score": score, "precision": precision, "seconds": seconds})
    return results


def markdown(results: list[dict[str, Any]]) -> str:
    """Rows are methods; for each q mean ± standard deviation of the score, and mean precision normal/closed/open."""
    qs = sorted({r["q"] for r in results})
    lines = ["| |" + "".join(f" q = {q:g} |" for q in qs) + " s/epoch |", "|---|" + "---|" * (len(qs) + 1)]
    for row in dict.fromkeys(r["row"] for r in results):
        mine = [r for r in results if r["row"] == row]
        cells = [cell([r for r in mine if r["q"] == q]) for q in qs]
        seconds = np.median([r["seconds"] for r in mine])
        lines.append(f"| {row} | " + " | ".join(cells) + f" | {seconds:.2g} |")
    return "\n".join(lines)


def cell(results: list[dict[str, Any]]) -> str:
    if not results:
        return ""
    scores = [r["score"] for r in results]
    spread = f" ± {np.std(scores, ddof=1):.1f}" if len(scores) > 1 else ""
    found = [r["precision"] for r in results if r["row"].startswith("ooc") and r["precision"][0] is not None]
    groups = [[p[k] for p in found if p[k] is not None] for k in range(3)]
    precision = "/".join(f"{np.mean(g):.2f}" if g else "–" for g in groups)
    return f"{np.mean(scores):.1f}{spread}" + (f" ({precision})" if found else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=PLANS, default="digits")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--q", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    parser.add_argument("--tau", type=float, nargs=2, default=[0.2, 0.4])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--rows", nargs="+", default=ROWS, help=f"of {', '.join(ROWS)}; supervised:METHOD: on true labels"
    )
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--scheme")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"))
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    chosen = parser.parse_args()
    given = {key: getattr(chosen, key) for key in ("epochs", "scheme") if getattr(chosen, key)}
    plan = {"data": chosen.data, "tau": chosen.tau, **PLANS[chosen.data], **given}
    runs = []
    total = chosen.seeds * len(chosen.q) * len(chosen.rows)
    with bar(total, f"{chosen.data}, tau = {chosen.tau}") as advance:
        for seed in range(chosen.seeds):
            source = digits(seed) if chosen.data == "digits" else fashion(chosen.data_dir, seed)
            for q in chosen.q:
                for row in chosen.rows:
                    config = {**plan, "row": row, "q": q, "seed": seed}
                    path = chosen.out / hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]
                    if not path.exists():
                        train_row(row, source, config, path)
                    runs.append((row, config, path))
                    advance(f"{row} q={q:g} seed={seed}")
    results = collect(runs)
    print(markdown(results))
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
