"""Give stored results the keys and rows that their jobs have since settings changed.

A result is found by the hash of its job's config. There, `openness` is now `open_score`, and its
value "confidence" is now "doubt". PiCO's views of images were called `own`; they are `mild` since
`own` are the published ones. For each line of the files, the job is made anew; if the line has the
key that this job had before, it gets the new key. Rows made with other defaults than today's get
the name that says so, such as "CRDPLL, ramp 1/3" (see `earlier_rows`). Folders of runs are renamed
in the same way, with `--runs`. Running it again changes nothing.

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
    RIVALS,
    ROWS,
    Cell,
    Job,
    Row,
    config_key,
    earlier_rows,
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


def old_configs(config: dict[str, Any]) -> list[dict[str, Any]]:
    """List the configs that a job had before, if another one."""
    settings = dict(config["settings"])
    if settings.get("augmentation") == "mild":
        return [{**config, "settings": {**settings, "augmentation": "own"}}]
    if NEW not in settings:
        return []
    value = settings.pop(NEW)
    return [{**config, "settings": {**settings, OLD: OLD_VALUES.get(value, value)}}]


def new_config(config: dict[str, Any], row: str) -> dict[str, Any]:
    """Give the config of today; `row` is the name that the result was stored with."""
    settings = dict(config["settings"])
    of_images = config.get("known") != "digits" and "encoding" not in config
    if row == "PiCO" and settings.get("augmentation") == "own" and of_images:
        return {**config, "settings": {**settings, "augmentation": "mild"}}
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
    earlier = earlier_rows(scale)
    rows = [*ROWS, *RIVALS, *earlier, *ON_TRUE_LABELS, *ABLATIONS, *sweeps, *others]
    rows = [row for row in rows if row.name == result["row"]]
    rows += [row for row in earlier if row not in rows and _was(row) == _was_named(result["row"])]
    for row in rows:
        for changes in VARIANTS:
            varied = replace(scale, changes={**scale.changes, **changes})
            yield Job(varied, Cell(**result["cell"]), row, result["seed"])


def _was(row: Row) -> tuple[str, str | None, str | None]:
    return row.method, row.preset, row.reference


def _was_named(name: str) -> tuple[str, str | None, str | None] | None:
    """Return method, preset and reference of a row of Table 1."""
    return next((_was(row) for row in ROWS if row.name == name), None)


def placed(result: dict[str, Any]) -> dict[str, Any] | None:
    """Return a result with its key and row of today; None if no job has made it."""
    is_affected = True
    for job in jobs_of(result):
        config = job.config
        key = config_key(config)
        if result["key"] in (key, *map(config_key, old_configs(config))):
            return {**result, "key": key, "row": job.row.name}
        is_affected = NEW in config["settings"] or job.row.method in ("pico", "crdpll")
    return None if is_affected else result


def migrate_file(path: Path) -> Counter[str]:
    """Rewrite the keys of an exported file."""
    counts: Counter[str] = Counter()
    lines = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        result = json.loads(line)
        if not is_result(result):
            raise SystemExit(f"{path}, line {number} is not a result of `candidly bench export`.")
        found = placed(result)
        if found is None:
            counts["not placed"] += 1
            print(f"{path}, line {number}: no job has the key {result['key']} ({result['row']}).")
        elif found == result:
            counts["unchanged"] += 1
        else:
            counts["changed"] += 1
            line = json.dumps(found, sort_keys=True)  # noqa: PLW2901
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
        result = read_json(path)
        config = new_config(note["config"], result["row"])
        key = config_key(config)
        if key == run.name:
            counts["unchanged"] += 1
        elif run.name != config_key(note["config"]) or (folder / key).exists():
            counts["not placed"] += 1
            print(f"{run}: its name is not the key of its config, or {key} exists already.")
        else:
            counts["changed"] += 1
            training = new_config(note["training"], result["row"])
            write_json(run / "run.json", {**note, "config": config, "training": training})
            renamed = placed({**result, "key": key}) or {**result, "key": key}
            write_json(path, renamed)
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
