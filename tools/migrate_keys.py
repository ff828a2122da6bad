"""Give stored results the keys that their jobs have since settings of `ooc` were renamed.

A result is found by the hash of its job's config, in which `openness` is now `open_score`, and its
value "confidence" is now "doubt". For each line of the files, the job is made anew; if the line has
the key that this job had under the old names, it gets the new key. Folders of runs are renamed in
the same way, with `--runs`. Running it again changes nothing.

    python tools/migrate_keys.py results/digits.jsonl results/fashion.jsonl
    python tools/migrate_keys.py --runs runs/bench
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from candidly.bench.grid import (
    ABLATIONS,
    ON_TRUE_LABELS,
    ROWS,
    Cell,
    Job,
    Row,
    config_key,
    sweep_rows,
)
from candidly.bench.results import is_result
from candidly.bench.scales import SCALES
from candidly.methods import METHODS
from candidly.storage.atomic import file_hash
from candidly.storage.store import SUMS, read_json, write_atomically, write_json

NEW, OLD = "open_score", "openness"
OLD_VALUES = {"doubt": "confidence"}
# Results may come from earlier values of a scale's learning rates and precision.
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    *({"lr": lr} for lr in (0.01, 0.05, 0.1, 0.2)),
    {"precision": "bfloat16"},
)


def old_config(config: dict[str, Any]) -> dict[str, Any]:
    """Undo the renaming."""
    settings = dict(config["settings"])
    if NEW not in settings:
        return config
    value = settings.pop(NEW)
    return {**config, "settings": {**settings, OLD: OLD_VALUES.get(value, value)}}


def new_config(config: dict[str, Any]) -> dict[str, Any]:
    """Do the renaming."""
    settings = dict(config["settings"])
    if OLD not in settings:
        return config
    value = settings.pop(OLD)
    new_values = {old: new for new, old in OLD_VALUES.items()}
    return {**config, "settings": {**settings, NEW: new_values.get(value, value)}}


def jobs_of(result: dict[str, Any]) -> Iterator[Job]:
    """List the jobs that a result may come from, the most likely one first."""
    scale = SCALES.get(result["scale"])
    if scale is None:
        return
    sweeps = [row for entries in sweep_rows(scale).values() for _, row in entries]
    others = [Row(name, name) for name in METHODS]
    for row in (*ROWS, *ON_TRUE_LABELS, *ABLATIONS, *sweeps, *others):
        if row.name == result["row"]:
            for changes in VARIANTS:
                varied = replace(scale, changes={**scale.changes, **changes})
                yield Job(varied, Cell(**result["cell"]), row, result["seed"])


def new_key(result: dict[str, Any]) -> str | None:
    """Return the key of a result under the new names; None if no job has made it."""
    is_affected = True
    for job in jobs_of(result):
        config = job.config
        key = config_key(config)
        if result["key"] in (key, config_key(old_config(config))):
            return key
        is_affected = NEW in config["settings"]
    return None if is_affected else result["key"]


def migrate_file(path: Path) -> Counter[str]:
    """Rewrite the keys of an exported file."""
    counts: Counter[str] = Counter()
    lines = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        result = json.loads(line)
        if not is_result(result):
            raise SystemExit(f"{path}, line {number} is not a result of `candidly bench export`.")
        key = new_key(result)
        if key is None:
            counts["not placed"] += 1
            print(f"{path}, line {number}: no job has the key {result['key']} ({result['row']}).")
        elif key == result["key"]:
            counts["unchanged"] += 1
        else:
            counts["changed"] += 1
            line = json.dumps({**result, "key": key}, sort_keys=True)  # noqa: PLW2901
        lines.append(line)
    if counts["changed"]:
        text = "".join(f"{line}\n" for line in lines)
        write_atomically(path, lambda temporary: temporary.write_text(text))
    return counts


def migrate_runs(folder: Path) -> Counter[str]:
    """Rename the RUN folders of `candidly bench run`, by the configs that they hold."""
    counts: Counter[str] = Counter()
    for path in sorted(folder.glob("*/result.json")):
        run = path.parent
        if run.name.endswith(".partial"):
            continue
        note = read_json(run / "run.json")
        config = new_config(note["config"])
        key = config_key(config)
        if key == run.name:
            counts["unchanged"] += 1
        elif run.name != config_key(note["config"]) or (folder / key).exists():
            counts["not placed"] += 1
            print(f"{run}: its name is not the key of its config, or {key} exists already.")
        else:
            counts["changed"] += 1
            training = new_config(note["training"])
            write_json(run / "run.json", {**note, "config": config, "training": training})
            write_json(path, {**read_json(path), "key": key})
            update_sums(run)
            run.rename(folder / key)
    return counts


def update_sums(run: Path) -> None:
    """Hash the files of a run again."""
    names = [line.partition("  ")[2] for line in (run / SUMS).read_text().splitlines()]
    text = "".join(f"{file_hash(run / name)}  {name}\n" for name in names)
    write_atomically(run / SUMS, lambda temporary: temporary.write_text(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="files of `candidly bench export`")
    parser.add_argument("--runs", type=Path, help="a folder of `candidly bench run`")
    arguments = parser.parse_args()
    found = {path: migrate_file(path) for path in arguments.files}
    if arguments.runs:
        found[arguments.runs] = migrate_runs(arguments.runs)
    for path, counts in found.items():
        print(f"{path}: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
    sys.exit(any(counts["not placed"] for counts in found.values()))


if __name__ == "__main__":
    main()
