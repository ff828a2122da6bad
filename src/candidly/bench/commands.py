"""`candidly bench`: from options to runs, and from results to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from candidly.bench.grid import Job, plan, results, run_jobs, table_jobs
from candidly.bench.scales import SCALES
from candidly.bench.tables import FORMATS, as_markdown, make_table
from candidly.checks import one_of
from candidly.errors import InputError, TrainingError
from candidly.store import write_atomically


def jobs(
    table: str,
    scale: str,
    cells: list[str] | None,
    rows: list[str] | None,
    seeds: int | None,
    tau: tuple[float, float] | None,
    part: str = "1/1",
) -> list[Job]:
    """The runs that the options name."""
    one_of(table, ("table1", "table2"), "table")
    chosen = SCALES[one_of(scale, SCALES, "scale")]
    found = table_jobs(table, chosen, cells=cells or ["*"], rows=rows or None, seeds=seeds, tau=tau)
    k, slash, n = part.partition("/")
    if not (slash and k.isdigit() and n.isdigit() and 1 <= int(k) <= int(n)):
        raise InputError(f"--part {part}: expected K/N with K from 1 to N, such as 1/4.")
    return found[int(k) - 1 :: int(n)]


def run(chosen: list[Job], out: Path, data_dir: Path | None, retry: bool, device: str = "auto") -> str:
    """Run them; failures are told at the end."""
    failures = run_jobs(chosen, out, data_dir, retry=retry, device=device)
    done = sum((out / job.key).exists() for job in chosen)
    summary = f"{done} of {len(chosen)} runs are done, in {out}."
    if failures:
        listing = "".join(f"\n  {name}: {error}" for name, error in failures.items())
        raise TrainingError(f"{summary} {len(failures)} failed (--retry tries them again):{listing}")
    return summary


def planned(chosen: list[Job], out: Path) -> str:
    """The runs, their states, and how long the rest will take."""
    entries = plan(chosen, out)
    lines = [f"{entry['key']}  {entry['state']:10}  {_time(entry['seconds']):>9}  {entry['name']}" for entry in entries]
    left = [entry["seconds"] for entry in entries if entry["state"] != "done"]
    if not left:
        return "\n".join([*lines, f"All {len(entries)} runs are done."])
    known = [seconds for seconds in left if seconds is not None]
    guess = f"about {_time(sum(known) / len(known) * len(left))}" if known else "no estimate before a first run is done"
    return "\n".join([*lines, f"{len(left)} of {len(entries)} runs are left: {guess}."])


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def show(chosen: list[Job], table: str, out: Path, exported: Path | None, style: str, details: bool) -> str:
    """The table as text."""
    render = FORMATS[one_of(style, FORMATS, "format")]
    found = [*(_read(exported) if exported else []), *results(out)]
    entries = make_table(chosen, found, table)
    told = {e["row"] for e in entries if e["mean"] is not None or e["paper"] is not None}
    entries = [e for e in entries if e["row"] in told] or entries  # rows with nothing to tell are left out
    return as_markdown(entries, details) if style == "md" else render(entries)


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        found = [json.loads(line) for line in path.read_text().splitlines()]
        if not all({"key", "score", "seconds", "curves"} <= result.keys() for result in found):
            raise InputError(f"{path} has lines that are no results: expected what `candidly bench export` writes.")
        return found
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing: expected a file written by `candidly bench export`.") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not a file of JSON lines ({error}).") from error


def export(path: Path, out: Path) -> str:
    """All finished results as JSON lines, those already in the file included."""
    kept = {result["key"]: result for result in (_read(path) if path.exists() else [])}
    kept |= {result["key"]: result for result in results(out)}
    lines = "".join(json.dumps(result, sort_keys=True) + "\n" for result in kept.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(lines))
    return f"{len(kept)} results in {path}."
