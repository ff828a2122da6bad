"""Every speed measurement in one run, as JSON, as tables and as a plot: `python benchmarks/all.py --out FOLDER`.

    python benchmarks/all.py --out results --show    # the tables of what is already there

The parts take turns on one machine that should do nothing else. `--only` picks some; what the JSON already holds of the
others is kept.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import augmentation
import encoder
import growth
import overhead
import selection
import startup
import variants
from candidly.store import write_json

PARTS: dict[str, Callable[[], Any]] = {
    "methods": lambda: {name: overhead.measure(name) for name in overhead.CASES},
    "selection": selection.beside_a_pass,
    "augmentation": augmentation.throughput,
    "augmentation_share": augmentation.share_of_a_step,
    "growth": lambda: {job: growth.measure(job) for job in growth.JOBS},
    "imagenet": selection.imagenet_apart,
    "startup": startup.measure,
    "variants": variants.measure,
    "encoder": encoder.speed,
}


def ratio(found: dict[str, Any]) -> str:
    if "error" in found:
        return str(found["error"])
    return f"{found['ratio']:.3g} [{found['low']:.3g}, {found['high']:.3g}]"


def tables(results: dict[str, Any]) -> str:
    """Markdown: ratios with the intervals of their medians, and what grows with the rows."""
    lines = ["| | ratio [95 % interval] | at most |", "|---|---|---|"]
    for name, found in results["methods"].items():
        lines.append(f"| an epoch of {name} / bare loop | {ratio(found)} | {overhead.LIMITS[name]:.2f} |")
    lines.append(f"| selection, 1,000,000 x 100 / one pass | {ratio(results['selection'])} | 8 |")
    lines.append(f"| weak views of a batch / training step | {ratio(results['augmentation_share'])} | 0.05 |")
    lines.append(f"| plain eager PyTorch / the encoder | {ratio(results['encoder'])} | at least 1.5 |")
    lines += [f"| step, {name} / step as it is | {ratio(found)} | |" for name, found in results["variants"].items()]
    lines += ["", "| rows | " + " | ".join(f"{job}: s, MB" for job in results["growth"]) + " |"]
    lines.append("|---" * (1 + len(results["growth"])) + "|")
    for points in zip(*(found["points"] for found in results["growth"].values()), strict=True):
        cells = [f"{point['seconds']:.2f}, {point['peak_mb'] - point['inputs_mb']:.0f}" for point in points]
        lines.append(f"| {points[0]['rows']:,} | {' | '.join(cells)} |")
    lines.append(
        "| grows as | " + " | ".join(f"n^{found['exponent']:.2f}" for found in results["growth"].values()) + " |"
    )
    lines += ["", "| | seconds |", "|---|---|"]
    lines += [f"| `{name}` | {found['seconds']:.2f} |" for name, found in results["startup"].items()]
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """Ratios with their intervals and limits; growth of time with the rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for y, (name, found) in enumerate(reversed(results.get("methods", {}).items())):
        left.plot([found["low"], found["high"]], [y, y], color="#0072b2", lw=2)
        left.plot(found["ratio"], y, "o", color="#0072b2", ms=4)
        left.plot(overhead.LIMITS[name], y, "|", color="#d55e00", ms=10, mew=2)
        left.text(-0.02, y, name, ha="right", va="center", fontsize=7, transform=left.get_yaxis_transform())
    left.set_yticks([])
    left.axvline(1, color="black", lw=0.8)
    left.set_xlabel("time beside the bare loop (bar: limit)", fontsize=8)
    for marker, (job, found) in zip("os^", results.get("growth", {}).items(), strict=False):
        rows, seconds = zip(*((p["rows"], p["seconds"]) for p in found["points"]), strict=True)
        right.loglog(rows, seconds, f"-{marker}", ms=4, label=f"{job}: n^{found['exponent']:.2f}")
    right.set_xlabel("rows", fontsize=8)
    right.set_ylabel("seconds", fontsize=8)
    right.legend(fontsize=7, frameon=False)
    for axis in (left, right):
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of speed.json and speed.png")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--show", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "speed.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for part in () if options.show else options.only:
        results[part] = PARTS[part]()
        print(f"{part}: {json.dumps(results[part])}", flush=True)
        machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        write_json(path, {**results, "machine": machine})
    plot(results, options.out / "speed.png")
    if set(PARTS) <= set(results):
        print(tables(results))


if __name__ == "__main__":
    main()
