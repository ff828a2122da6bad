"""Accuracy after so many minutes, on 5,000 validation rows cut from CIFAR-10's training set.

    python benchmarks/curve.py --data-dir DIR --out results/curve.jsonl
    python benchmarks/curve.py --show results/curve.jsonl --file docs/images/curve.png

Clean: all true labels. Corrupted: candidate sets at q = 0.1, a fifth of them without the truth,
and as many SVHN images as 0.4 of the known ones, learnt by `ooc`, preset `gradual`, which is given
the true shares. Minutes of one core are those of its own clock; minutes of several (`--threads`)
are those of the wall, so that the machine must do nothing else. Both include the evaluation on
validation rows after each epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from candidly.bench.grid import ROWS, Cell, Job
from candidly.bench.scales import SCALES, Scale
from candidly.storage.store import versions
from pairs import processor
from tune import train, validation_problem

MINUTES = (5, 10, 20, 40)
CELL = Cell("svhn", 0.1, 0.2, 0.4)
KINDS = {"clean": "supervised", "corrupted": "ooc, gradual"}


def scale_for(widths: list[int], precision: str) -> Scale:
    """The scale `cpu` with another net."""
    scale = SCALES["cpu"]
    changes = {**scale.changes, "precision": precision}
    return dataclasses.replace(scale, net_settings={"widths": widths}, changes=changes)


def run(
    kinds: Iterable[str],
    minutes: Iterable[float],
    scale: Scale,
    seed: int,
    data_dir: Path | None,
    out: Path,
) -> None:
    problem = validation_problem(scale, CELL, seed, data_dir)
    about = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "net": scale.net_settings,
        **scale.changes,
    }
    revision = versions()["revision"]  # of the code as it was loaded
    for each in minutes:
        for kind in kinds:
            row = next(row for row in ROWS if row.name == KINDS[kind])
            found = train(Job(scale, CELL, row, seed), problem, each)
            line = {"kind": kind, "minutes": each, **about, "seed": seed, **found}
            line |= {"revision": revision, "date": datetime.now(UTC).date().isoformat()}
            print(json.dumps(line), flush=True)
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")


def spent(line: dict[str, Any]) -> float:
    """Minutes that a training took."""
    return line["cpu" if line["threads"] == 1 else "seconds"] / 60


def table(lines: list[dict[str, Any]]) -> str:
    given = {row.name: row.given for row in ROWS}
    shown = [
        "| labels | given | cores | minutes | net | epochs | PFLOP | accuracy |",
        "|---" * 8 + "|",
    ]
    for line in sorted(lines, key=lambda line: (line["kind"], line["threads"], line["minutes"])):
        cells = [
            line["kind"],
            given[KINDS[line["kind"]]],
            line["threads"],
            f"{spent(line):.1f}",
            "-".join(map(str, line["net"]["widths"])),
            line["epochs"],
            f"{line['pflop']:.3f}",
            f"{line['last']:.1f}",
        ]
        shown.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(shown)


def plot(lines: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6, 2.6), layout="constrained")
    axis = figure.subplots()
    for kind, colour, marker in zip(KINDS, ("#0072b2", "#d55e00"), "os", strict=True):
        cores = sorted({line["threads"] for line in lines if line["kind"] == kind})
        for threads, style in zip(cores, "-:", strict=False):
            chosen = [line for line in lines if (line["kind"], line["threads"]) == (kind, threads)]
            points = sorted((spent(line), line["last"]) for line in chosen)
            label = f"{kind} labels, {threads} core{'s' * (threads > 1)}"
            axis.plot(*zip(*points, strict=True), style + marker, color=colour, ms=4, label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks(MINUTES, [str(m) for m in MINUTES])
    axis.set_xlabel("minutes", fontsize=8)
    axis.set_ylabel("accuracy on validation rows, %", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--minutes", nargs="+", type=float, default=MINUTES)
    parser.add_argument("--widths", nargs=3, type=int, default=SCALES["cpu"].net_settings["widths"])
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("curve.jsonl"))
    parser.add_argument("--show", type=Path, help="train nothing, print the table of this file")
    parser.add_argument("--file", type=Path, help="with --show: the picture")
    options = parser.parse_args()
    if options.show is None:
        torch.set_num_threads(options.threads)
        scale = scale_for(options.widths, options.precision)
        run(options.kinds, options.minutes, scale, options.seed, options.data_dir, options.out)
        return
    lines = list(map(json.loads, options.show.read_text().splitlines()))
    print(table(lines))
    if options.file is not None:
        plot(lines, options.file)


if __name__ == "__main__":
    main()
