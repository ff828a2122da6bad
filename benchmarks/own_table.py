"""Print the table of docs/own-data.md: `candidly fit` on the files of own_data.py.

    python benchmarks/own_data.py FOLDER && python benchmarks/own_table.py FOLDER [FILE.mat ...]

Each command is a process of its own with one thread; time is its processor time, memory its peak. A
FILE.mat is fitted as it is, and again with the truth outside the sets in a tenth of its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import own_data

COMMANDS = {
    "1,245 images of digits": ["digits/digits.csv"],
    "the same, by their pixels": ["digits/digits.csv", "--encoder", "none"],
    "1,500 texts, three annotator columns": [
        *("reviews.csv", "--labels", "ann,bob,cy", "--text", "review"),
    ],
    "Label Studio, 600 tasks, three annotators": ["tasks.json", "--truth", "label"],
    "200,000 embeddings of 128 numbers": ["embeddings.parquet"],
}


def fit(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run `candidly fit --json`, and return what it says with the time and memory it took."""
    with tempfile.TemporaryDirectory() as out:
        program = [sys.executable, "-m", "candidly", "fit"]
        command = [*program, *arguments, "--json", "--out", f"{out}/run"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed.")
    spent = used.ru_utime + used.ru_stime
    return json.loads(said) | {"seconds": spent, "gigabytes": used.ru_maxrss / 2**20}


def row(name: str, arguments: list[str], found: dict[str, Any]) -> str:
    quality = found["evaluation"]
    seconds = found["seconds"]
    outside = found["shares"]["outside"]
    share, low, high = (100 * outside[key] for key in ("share", "low", "high"))
    cells = [
        name,
        f"`fit {' '.join([Path(arguments[0]).name, *arguments[1:]])}`",
        f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min",
        f"{found['gigabytes']:.2f} GB",
        f"{100 * quality['outside']:.1f} %",
        f"{share:.1f} % ({low:.1f} to {high:.1f})",
        f"{100 * quality['accuracy']:.1f} %",
        *precisions(quality),
    ]
    return f"| {' | '.join(cells)} |"


def precisions(quality: dict[str, Any]) -> list[str]:
    """Return the precision of the audit, in bold where it is behind, and of the naive rule."""
    if quality["ap_outside"] is None:
        return ["", ""]
    ours, naive = (f"{quality[key]:.3f}" for key in ("ap_outside", "ap_naive"))
    return [f"**{ours}**" if float(ours) < float(naive) else ours, naive]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("mats", nargs="*", type=Path, metavar="FILE.mat")
    options = parser.parse_args()
    jobs = dict(COMMANDS)
    (options.folder / "spoiled").mkdir(exist_ok=True)
    for path in options.mats:
        (options.folder / "spoiled" / path.name).unlink(missing_ok=True)
        own_data.spoiled(options.folder / "spoiled", path)
        jobs[path.stem] = [str(path.resolve())]
        jobs[f"{path.stem}, a tenth closed"] = [f"spoiled/{path.name}"]
    for name, arguments in jobs.items():
        print(row(name, arguments, fit(options.folder, arguments)), flush=True)


if __name__ == "__main__":
    main()
