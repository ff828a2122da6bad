"""`candidly bench`: from options to runs, and from results to text."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from candidly.bench import figures
from candidly.bench.grid import (
    ROWS,
    TAUS,
    Cell,
    Job,
    Row,
    distinct,
    is_result,
    plan,
    require_sets,
    results,
    run_jobs,
    sweep_rows,
    table_jobs,
)
from candidly.bench.problems import Source
from candidly.bench.scales import SCALES, Scale, load_source
from candidly.bench.sources.catalogue import SETS
from candidly.bench.tables import FORMATS, as_markdown, make_table
from candidly.checks import one_of
from candidly.errors import InputError, TrainingError
from candidly.kinds import KINDS
from candidly.methods.ooc import warmup_epochs
from candidly.storage.store import write_atomically
from candidly.training.trainer import make_scheme

TABLES = ("table1", "table2", "params")
FIGURES = ("losses", "precision", "params", "examples")
SUFFIXES = (".png", ".svg", ".pdf")


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
    one_of(table, TABLES, "table")
    chosen = SCALES[one_of(scale, SCALES, "scale")]
    found = table_jobs(table, chosen, cells=cells or ["*"], rows=rows or None, seeds=seeds, tau=tau)
    return found if part == "1/1" else _part(found, part)


def _part(found: list[Job], part: str) -> list[Job]:
    """One of N parts, with as many runs of each row as the others."""
    k, slash, n = part.partition("/")
    if not (slash and k.isdigit() and n.isdigit() and 1 <= int(k) <= int(n)):
        raise InputError(f"--part {part}: expected K/N with K from 1 to N, such as 1/4.")
    every = distinct(found)
    by_row = sorted(range(len(every)), key=lambda i: every[i].row.name)
    return [every[i] for i in sorted(by_row[int(k) - 1 :: int(n)])]


def run(
    chosen: list[Job], out: Path, data_dir: Path | None, retry: bool, device: str = "auto"
) -> str:
    """Run them; failures are told at the end."""
    chosen = distinct(chosen)
    failures = run_jobs(chosen, out, data_dir, retry=retry, device=device)
    states = [entry["state"] for entry in plan(chosen, out)]
    summary = f"{states.count('done')} of {len(chosen)} runs are done, in {out}."
    if busy := states.count("running"):
        summary += f" {busy} {'is' if busy == 1 else 'are'} being run by another process."
    if failures:
        listing = "".join(f"\n  {name}: {error}" for name, error in failures.items())
        raise TrainingError(
            f"{summary} {len(failures)} failed (--retry tries them again):{listing}"
        )
    return summary


def planned(chosen: list[Job], out: Path, data_dir: Path | None = None) -> str:
    """The runs, their states, how long the rest will take, and whether the data for it are there."""
    entries = plan(distinct(chosen), out)
    lines = [
        f"{entry['key']}  {entry['state']:10}  {_time(entry['seconds']):>9}  {entry['name']}"
        for entry in entries
    ]
    left = [entry["seconds"] for entry in entries if entry["state"] != "done"]
    if not left:
        return "\n".join([*lines, f"All {len(entries)} runs are done."])
    known = [seconds for seconds in left if seconds is not None]
    guess = (
        f"about {_time(sum(known) / len(known) * len(left))}"
        if known
        else "no estimate before a first run is done"
    )
    lines.append(f"{len(left)} of {len(entries)} runs are left: {guess}.")
    if failed := sum(entry["state"] == "failed" for entry in entries):
        lines.append(f"{failed} of them failed, and wait for --retry.")
    try:
        require_sets([job for job in chosen if not (out / job.key).exists()], data_dir)
    except InputError as error:
        lines.append(f"They cannot be run: {error}")
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def scale_of(scale: str | None, out: Path, exported: Path | None) -> str:
    """The scale that is named, or the only one that there are results of."""
    if scale is not None:
        return scale
    there = sorted({found["scale"] for found in _found(out, exported)})
    if len(there) != 1:
        told = (
            f"there are results of {', '.join(there)}"
            if there
            else f"there are no results in {exported or out}"
        )
        raise InputError(
            f"which scale? {told}: name one by --scale (`candidly bench scales` lists them)."
        )
    return there[0]


def _found(out: Path, exported: Path | None) -> list[dict[str, Any]]:
    return [*(_read(exported) if exported else []), *results(out)]


def notes(chosen: list[Job], table: str, out: Path, exported: Path | None) -> list[str]:
    """What one should know of a table beside its numbers."""
    by_key, jobs = {found["key"]: found for found in _found(out, exported)}, distinct(chosen)
    absent = [job for job in jobs if job.key not in by_key]
    there = [by_key[job.key] for job in jobs if job.key in by_key]
    told = [_absent(absent, len(jobs), table, out)] if absent else []
    return [*told, *_mixed(there), *_short(there)]


def _absent(absent: list[Job], wanted: int, table: str, out: Path) -> str:
    """How many runs are missing, and the command that makes them."""
    cells = "".join(f' --cells "{name}"' for name in dict.fromkeys(job.cell.name for job in absent))
    rows = "".join(f' --methods "{name}"' for name in dict.fromkeys(job.row.name for job in absent))
    seeds, cell = 1 + max(job.seed for job in absent), absent[0].cell
    tau = "" if (cell.tau1, cell.tau2) in TAUS else f" --tau {cell.tau1:g} {cell.tau2:g}"
    options = (
        f"--scale {absent[0].scale.name}{tau}{cells}{rows} --seeds {seeds} --out {quote(str(out))}"
    )
    there = f"{wanted - len(absent)} of {wanted} runs are there"
    return f"{there}; to train the missing runs: candidly bench run {table} {options}"


def _mixed(there: list[dict[str, Any]]) -> list[str]:
    """The methods of a cell should have learnt from the same examples; results tell by a fingerprint."""
    data: dict[str, set[str]] = {}
    for found in there:
        if found.get("data"):
            data.setdefault(f"{Cell(**found['cell']).name} seed {found['seed']}", set()).add(
                found["data"]
            )
    return [
        f"{name}: results come from {len(seen)} versions of the data."
        for name, seen in data.items()
        if len(seen) > 1
    ]


def _short(there: list[dict[str, Any]]) -> list[str]:
    """Sets of which fewer images were read than they officially have."""
    read = {item for found in there for item in found.get("images", {}).items() if item[0] in SETS}
    return [
        f"{name}: {n:,} images were read; its official training part has {whole:,}."
        for name, n in sorted(read)
        if n < (whole := SETS[name].sizes["train"])
    ]


def show(
    chosen: list[Job], table: str, out: Path, exported: Path | None, style: str, details: bool
) -> str:
    """The table as text."""
    render = FORMATS[one_of(style, FORMATS, "format")]
    entries = make_table(chosen, _found(out, exported), table)
    told = {e["row"] for e in entries if e["mean"] is not None or e["paper"] is not None}
    entries = [
        e for e in entries if e["row"] in told
    ] or entries  # rows with nothing to tell are left out
    return as_markdown(entries, details) if style == "md" else render(entries)


def figure(
    kind: str,
    scale: str,
    open_set: str | None,
    out: Path,
    exported: Path | None,
    data_dir: Path | None,
    file: Path,
    train: bool = False,
) -> str:
    """Draw a figure from the runs of seed 0, which are trained first if they are missing and `train` says so."""
    one_of(kind, FIGURES, "figure")
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file} ends in {file.suffix!r}: expected one of {', '.join(SUFFIXES)}.")
    chosen = SCALES[one_of(scale, SCALES, "scale")]
    opened = (
        chosen.opens[0]
        if open_set is None
        else one_of(open_set, chosen.opens, "open set of this scale")
    )
    if kind == "params" and opened != chosen.opens[0]:
        raise InputError(
            f"--open {opened}: at this scale, params are swept with {chosen.opens[0]} alone."
        )
    needed = _needed(kind, chosen, opened)
    if train and (absent := _not_in(needed, _usable(kind, out, exported))):
        run(absent, out, data_dir, retry=True)
    by_key = _usable(kind, out, exported)
    if absent := _not_in(needed, by_key):
        names = "; ".join(job.name for job in absent)
        raise InputError(
            f"this figure needs runs that are not there ({names}): `--run` trains them first."
        )
    picture = _draw(
        kind, chosen, opened, {job.row.name: by_key[job.key] for job in needed}, data_dir
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, lambda temporary: _save(picture, temporary, file.suffix[1:].lower()))
    return f"{file} drawn."


def _needed(kind: str, scale: Scale, opened: str) -> list[Job]:
    """The runs of a figure."""
    if kind == "params":
        rows = [row for entries in sweep_rows(scale).values() for _, row in entries]
        return [Job(scale, Cell(scale.opens[0], 0.1, *TAUS[0]), row, 0) for row in rows]
    cell, name = {
        "losses": (Cell(opened, 0.3, *TAUS[0]), "ooc"),
        "precision": (Cell(opened, 0.1, *TAUS[1]), "ooc*"),
        "examples": (Cell(opened, 0.1, *TAUS[0]), "ooc, robust"),
    }[kind]
    return [Job(scale, cell, row, 0) for row in ROWS if fnmatch(row.name, name)]


def _usable(kind: str, out: Path, exported: Path | None) -> dict[str, Any]:
    found = _found(out, exported)
    return {
        one["key"]: one for one in found if "figures" in one or kind not in ("losses", "examples")
    }


def _not_in(jobs: list[Job], by_key: dict[str, Any]) -> list[Job]:
    return distinct([job for job in jobs if job.key not in by_key])


def _save(picture: Any, path: Path, form: str) -> None:
    """PDF with fonts as journals want them."""
    import matplotlib

    with matplotlib.rc_context({"pdf.fonttype": 42}):
        picture.savefig(path, format=form, dpi=200)


def _draw(
    kind: str, scale: Scale, opened: str, found: dict[str, Any], data_dir: Path | None
) -> Any:
    if kind == "losses":
        return figures.losses_figure(found["ooc"]["figures"]["losses"])
    if kind == "precision":
        epochs = make_scheme(scale.scheme, **scale.changes).epochs
        curves = {name: result["curves"] for name, result in found.items()}
        return figures.precision_figure(
            curves, warmup_epochs(scale.ooc_settings(opened, 0.1)["warmup"], epochs)
        )
    if kind == "params":
        return figures.params_figure(_sweeps(scale, found))
    examples = found["ooc, robust"]["figures"]["examples"]
    source = load_source(scale.known, scale.n_known, scale.n_test, opened, 0, data_dir)
    images = [_picture(source, example["source"]) for example in examples]
    return figures.examples_figure(examples, images, source.classes)


def _sweeps(scale: Scale, found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    default = Job(scale, Cell(scale.opens[0], 0.1, *TAUS[0]), Row("ooc", "ooc"), 0).key
    return {
        letter: [_point(value, found[row.name], default) for value, row in entries]
        for letter, entries in sweep_rows(scale).items()
    }


def _point(value: float, found: dict[str, Any], default: str) -> dict[str, Any]:
    precision = {kind: found["curves"][f"precision_{kind}"][-1] for kind in KINDS}
    return {
        "value": value,
        "score": found["score"],
        "precision": precision,
        "default": found["key"] == default,
    }


def _picture(source: Source, row: int) -> np.ndarray:
    image = source.X[row] if row < len(source.X) else source.pool[row - len(source.X)]
    if image.ndim == 1:
        side = int(len(image) ** 0.5)
        return image.reshape(side, side)
    return image


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        found = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError as error:
        reason = (
            "is missing"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read ({error.strerror})"
        )
        raise InputError(
            f"{path} {reason}: expected a file written by `candidly bench export`."
        ) from error
    except ValueError as error:  # no JSON, or no text at all
        raise InputError(f"{path} is not a file of JSON lines ({error}).") from error
    if not all(map(is_result, found)):
        raise InputError(
            f"{path} has lines that are no results: expected what `candidly bench export` writes."
        )
    return found


def export(path: Path, out: Path) -> str:
    """All finished results as JSON lines, those already in the file included."""
    kept = {result["key"]: result for result in (_read(path) if path.exists() else [])}
    kept |= {result["key"]: result for result in results(out)}
    lines = "".join(json.dumps(result, sort_keys=True) + "\n" for result in kept.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(lines))
    return f"{len(kept)} results in {path}."
