"""How far does `ooc` lead? Each of its rows minus the strongest compared method, seed by seed.

    python benchmarks/leads.py features --cells "svhn*" --results results/features.jsonl

`--table earlier` compares the rows with the defaults of before.

Only seeds that both have count. The strongest method is the one with the smallest mean difference.
p: two-sided paired t-test, from two seeds on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from scipy.stats import ttest_1samp

from candidly.bench.grid import table_jobs
from candidly.bench.scales import SCALES

Scores = dict[tuple[str, str], dict[int, float]]  # (cell, row) -> seed -> accuracy


def read_scores(
    table: str, scale: str, cells: list[str], seeds: int, path: Path
) -> tuple[Scores, list[str], list[str]]:
    """Read the scores; also list the rows of `ooc`, and those of the compared methods."""
    stored = {line["key"]: line["score"] for line in map(json.loads, path.read_text().splitlines())}
    scores: Scores = {}
    ours: dict[str, None] = {}
    rivals: dict[str, None] = {}
    for job in table_jobs(table, SCALES[scale], cells=cells, seeds=seeds):
        if job.row.reference is None:
            (ours if job.row.method == "ooc" else rivals)[job.row.name] = None
            if job.key in stored:
                scores.setdefault((job.cell.name, job.row.name), {})[job.seed] = stored[job.key]
    return scores, list(ours), list(rivals)


def closest_rival(scores: Scores, rivals: list[str], cell: str, row: str) -> tuple[str, np.ndarray]:
    """(name, differences by seed) of the compared method that leaves `row` the smallest lead."""
    ours = scores[cell, row]
    differences = {}
    for rival in rivals:
        theirs = scores.get((cell, rival), {})
        if shared := sorted(ours.keys() & theirs.keys()):
            differences[rival] = np.array([ours[seed] - theirs[seed] for seed in shared])
    name = min(differences, key=lambda rival: differences[rival].mean())
    return name, differences[name]


def lead(scores: Scores, rivals: list[str], cell: str, row: str) -> str:
    """Describe the lead of a row as text; empty if it was not trained."""
    if (cell, row) not in scores:
        return ""
    rival, differences = closest_rival(scores, rivals, cell, row)
    n = len(differences)
    p = f", p = {ttest_1samp(differences, 0).pvalue:.2g}" if n > 1 else ""
    return f"{differences.mean():+.2f} {rival} ({n} run{'s' * (n > 1)}{p})"


def table(scores: Scores, ours: list[str], rivals: list[str]) -> str:
    lines = ["| | " + " | ".join(ours) + " |", "|---" * (1 + len(ours)) + "|"]
    for cell in dict.fromkeys(cell for cell, _ in scores):
        texts = [lead(scores, rivals, cell, row) for row in ours]
        lines.append("| " + " | ".join([cell, *texts]) + " |")
    return "\n".join(lines)


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("scale", choices=list(SCALES))
    parser.add_argument("--table", choices=("table1", "earlier"), default="table1")
    parser.add_argument("--cells", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, required=True, help="a file of `bench export`")
    chosen = parser.parse_args()
    options = (chosen.table, chosen.scale, chosen.cells, chosen.seeds, chosen.results)
    print(table(*read_scores(*options)))


if __name__ == "__main__":
    main()
