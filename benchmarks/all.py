"""Measure all speeds in one run, and write them as JSON, as tables and as a plot.

    python benchmarks/all.py --out FOLDER
    python benchmarks/all.py --out results --show    # the tables of what is already there

The parts take turns on one machine that should do nothing else. `--only` picks some; results of
the others stay in the JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
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
from candidly.storage.store import write_json
from candidly.tensors.views import VIEWS
from pairs import processor

PARTS: dict[str, Callable[[], Any]] = {
    "methods": lambda: {name: overhead.measure(name) for name in overhead.CASES},
    "selection": selection.beside_a_pass,
    "augmentation": augmentation.throughput,
    "augmentation_share": lambda: {
        kind: augmentation.share_of_a_step(kind) for kind in VIEWS if kind != "plain"
    },
    "augmentation_alone": lambda: {
        kind: augmentation.share_of_a_step(kind, together=1) for kind in VIEWS if kind != "plain"
    },
    "growth": lambda: {job: growth.measure(job) for job in growth.JOBS},
    "imagenet": selection.imagenet_apart,
    "startup": startup.measure,
    "variants": variants.measure,
    "encoder": encoder.speed,
    "encoder_variants": encoder.variants,
}


def ratio(found: dict[str, Any]) -> str:
    if "error" in found:
        return str(found["error"]).splitlines()[0]
    return f"{found['ratio']:#.3g} [{found['low']:#.3g}, {found['high']:#.3g}]"


def rows(results: dict[str, Any]) -> list[tuple[str, dict[str, Any], str]]:
    """List (what, ratio with its interval, limit)."""
    listed = [
        (f"an epoch of {name} / bare loop", f, f"{overhead.LIMITS[name]:.2f}")
        for name, f in results["methods"].items()
    ]
    listed.append(
        ("selection, 1,000,000 x 100 / reading its bytes", results["selection"]["scores"], "8")
    )
    listed.append(("selection / the largest of each row", results["selection"]["rows"], ""))
    listed.append(
        (
            "selection between two epochs of `ooc` / reading its bytes",
            results["selection"]["training"],
            "",
        )
    )
    listed += [
        (f"{kind} views of a batch / training step", f, "0.05")
        for kind, f in results["augmentation_share"].items()
    ]
    listed += [
        (f"{kind} views, batch by batch / training step", f, "")
        for kind, f in results["augmentation_alone"].items()
    ]
    listed.append(("plain eager PyTorch / the encoder", results["encoder"], "at least 1.5"))
    listed += [
        (f"plain eager PyTorch / the same, {name}", found, "")
        for name, found in results["encoder_variants"].items()
    ]
    return listed + [
        (f"a step, {name} / as it is", found, "") for name, found in results["variants"].items()
    ]


def tables(results: dict[str, Any]) -> str:
    """Write Markdown: ratios with intervals, growth with the rows, throughput and start-up."""
    lines = ["| | ratio [95 % interval] | at most |", "|---|---|---|"]
    lines += [f"| {what} | {ratio(found)} | {limit} |" for what, found, limit in rows(results)]
    lines += ["", "| rows | " + " | ".join(f"{job}: s, MB" for job in results["growth"]) + " |"]
    lines.append("|---" * (1 + len(results["growth"])) + "|")
    for points in zip(*(found["points"] for found in results["growth"].values()), strict=True):
        cells = [f"{point['seconds']:.3g}, {point['megabytes']:.0f}" for point in points]
        lines.append(f"| {points[0]['rows']:,} | {' | '.join(cells)} |")
    laws = [
        f"n^{f['exponent']:.2f} [{f['exponent_low']:.2f}, {f['exponent_high']:.2f}]"
        for f in results["growth"].values()
    ]
    lines.append(f"| grows as | {' | '.join(laws)} |")
    lines += ["", "| views | images/s [quartiles] | distinct of 64 |", "|---|---|---|"]
    for f in results["augmentation"]:
        rate = f"{f['median']:,.0f} [{f['low']:,.0f}, {f['high']:,.0f}]"
        lines.append(f"| {f['program']} | {rate} | {f['distinct'] or ''} |")
    lines += ["", "| | seconds |", "|---|---|"]
    lines += [
        f"| `{name}` | {found['seconds']:.2f} |" for name, found in results["startup"].items()
    ]
    large = results["imagenet"]
    lines.append(
        f"| selection, {large['rows']:,} x {large['classes']:,} | {large['seconds']:.1f} |"
    )
    lines += ["", f"State of {large['state_gb']:.2f} GB, at most {large['peak_gb']:.2f} GB in use."]
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """Draw ratios with their intervals and limits, and the growth of time with the rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for y, (name, found) in enumerate(reversed(results.get("methods", {}).items())):
        left.plot([found["low"], found["high"]], [y, y], color="#0072b2", lw=2)
        left.plot(found["ratio"], y, "o", color="#0072b2", ms=4)
        left.plot(overhead.LIMITS[name], y, "|", color="#d55e00", ms=10, mew=2)
        style = {"ha": "right", "va": "center", "fontsize": 7}
        left.text(-0.02, y, name, transform=left.get_yaxis_transform(), **style)
    left.set_yticks([])
    left.axvline(1, color="black", lw=0.8)
    left.set_xlabel("time beside the bare loop (bar: limit)", fontsize=8)
    for marker, (job, found) in zip("os^", results.get("growth", {}).items(), strict=False):
        n, seconds = zip(*((p["rows"], p["seconds"]) for p in found["points"]), strict=True)
        right.loglog(n, seconds, f"-{marker}", ms=4, label=f"{job}: n^{found['exponent']:.2f}")
    right.set_xlabel("rows", fontsize=8)
    right.set_ylabel("seconds", fontsize=8)
    right.legend(fontsize=7, frameon=False)
    for axis in (left, right):
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)


def stamp() -> dict[str, Any]:
    """Describe when, where and how busy it was."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder of speed.json and speed.png"
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--show", action="store_true", help="measure nothing")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "speed.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    stamps: dict[str, Any] = results.pop("measured", {})
    if options.show:
        print(tables(results))
        return
    for part in options.only:
        stamps[part] = stamp()
        results[part] = PARTS[part]()
        print(f"{part}: {json.dumps(results[part])}", flush=True)
        write_json(path, {**results, "measured": stamps})
    plot(results, options.out / "speed.png")
    if set(PARTS) <= set(results):
        print(tables(results))


if __name__ == "__main__":
    main()
