"""What does it cost `ooc` to estimate the shares of closed and open rows, instead of knowing them?

    python benchmarks/ooc_rates.py --seeds 0 1 2 3 4 --out FILE.jsonl
    python benchmarks/ooc_rates.py --out FILE.jsonl                     # only the table of the file

Test accuracy of pairs of trainings that differ in `rates` alone, over the grid of audit_rates.py.
`--validation` tests on a quarter of the training rows instead, to choose settings by. Appends and
skips like audit_rates.py. In the file, "told" is the accuracy with the true shares.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from audit_data import QS, TAUS
from audit_rates import add_row, read_rows
from candidly import fit
from candidly.bench.problems import Problem, Source, make_problem, reduced
from candidly.bench.scales import SCALES, Scale, load_source, moments
from candidly.methods.settings import make_method
from candidly.metrics import final_score
from candidly.tensors.nets import build_net
from candidly.tensors.views import make_views


def load(scale: Scale, q: float, tau: tuple[float, float], seed: int, validation: bool) -> Problem:
    opened = scale.opens[0]
    source = load_source(
        scale.known, scale.n_known, scale.n_test, opened, seed, None, scale.encoding
    )
    if validation:
        source = cut(source, seed)
    problem = make_problem(source, q=q, tau1=tau[0], tau2=tau[1], seed=seed)
    return problem if scale.encoding is None else reduced(problem, scale.encoding.components)


def cut(source: Source, seed: int) -> Source:
    """Replace the test set by a quarter of the training rows."""
    order = np.random.default_rng([seed, 17]).permutation(len(source.X))
    test, train = np.split(order, [len(order) // 4])
    held_out = {"X_test": source.X[test], "y_test": source.y[test]}
    return replace(source, X=source.X[train], y=source.y[train], **held_out)


def measure(
    scale: Scale, problem: Problem, q: float, seed: int, preset: str | None
) -> dict[str, Any]:
    """Accuracy with the true shares and with estimated ones, and the shares at the end."""
    row: dict[str, Any] = {"true": [problem.rates.closed, problem.rates.open]}
    for name, rates in (("told", problem.rates), ("auto", "auto")):
        views = make_views(problem.X, versions=scale.encoding is not None, **moments(scale))
        net = build_net(
            scale.net, views.shape, problem.candidates.n_classes, seed=seed, **scale.net_settings
        )
        method = make_method("ooc", preset, {"rates": rates, **scale.ooc_settings(q)})
        options = {
            "scheme": scale.scheme,
            "seed": seed,
            "test": problem.test,
            "progress": False,
            **scale.plan("ooc", q),
        }
        history = fit(net, views, problem.candidates, method, **options).history
        row[name] = final_score(history)
    return row | {"found": [history[-1]["rate_closed"], history[-1]["rate_open"]]}


def summary(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| scale | q | tau | runs | true shares: accuracy | estimated: difference (95 %) "
        "| error closed, open |",
        "|---" * 7 + "|",
    ]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["scale"], row["q"], tuple(row["tau"])), []).append(row)
    for scale in sorted({row["scale"] for row in rows}):
        groups[scale, "all", ""] = [row for row in rows if row["scale"] == scale]
    for (scale, q, tau), group in groups.items():
        differences = 100 * np.array([row["auto"] - row["told"] for row in group])
        found, true = (np.array([row[name] for row in group]) for name in ("found", "true"))
        closed, opened = np.abs(found - true).mean(axis=0)
        accuracy = 100 * np.mean([row["told"] for row in group])
        shown = f"{differences.mean():+.2f} ({_interval(differences)})"
        cells = [scale, q, tau, len(group), f"{accuracy:.1f}", shown, f"{closed:.3f}, {opened:.3f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _interval(values: np.ndarray) -> str:
    if len(values) < 2:
        return "one run"
    reach = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean() - reach:+.2f} to {values.mean() + reach:+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", default="digits", choices=[*SCALES])
    parser.add_argument("--preset", default="robust")
    parser.add_argument("--q", nargs="+", type=float, default=QS)
    parser.add_argument(
        "--tau", nargs="+", default=[f"{a},{b}" for a, b in TAUS], metavar="CLOSED,OPEN"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[])
    parser.add_argument("--validation", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("ooc_rates.jsonl"))
    chosen = parser.parse_args()
    done = {(r["scale"], r["q"], *r["tau"], r["seed"]) for r in read_rows(chosen.out)}
    for seed in chosen.seeds:
        for q in chosen.q:
            for tau in [tuple(map(float, text.split(","))) for text in chosen.tau]:
                if (chosen.scale, q, *tau, seed) in done:
                    continue
                problem = load(SCALES[chosen.scale], q, tau, seed, chosen.validation)
                cell = {"scale": chosen.scale, "q": q, "tau": tau, "seed": seed}
                row = measure(SCALES[chosen.scale], problem, q, seed, chosen.preset)
                add_row(chosen.out, cell | row)
    print(summary(read_rows(chosen.out)))


if __name__ == "__main__":
    main()
