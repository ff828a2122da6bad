"""`candidly bench`: from options to jobs, and from results to text."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from candidly.bench import figures
from candidly.bench.grid import ROWS, TAUS, Cell, Job, Row, distinct, sweep_rows, table_jobs
from candidly.bench.problems import Source
from candidly.bench.results import Results, folder_results, load_results
from candidly.bench.runner import plan, require_sets, run_jobs, state
from candidly.bench.scales import SCALES, Scale, load_source
from candidly.bench.sources.catalogue import SETS
from candidly.bench.tables import FORMATS, as_markdown, make_table
from candidly.checks import one_of
from candidly.console.progress import duration
from candidly.errors import InputError, TrainingError
from candidly.kinds import KINDS
from candidly.methods.twins import warmup_epochs
from candidly.storage.store import write_atomically
from candidly.training.trainer import make_scheme

TABLES = ("table1", "table2", "params", "rivals", "candid", "earlier")
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
    """List the jobs that the options name; see `table_jobs`.

    `part`, such as "1/4", takes one of several equal parts of them.
    """
    one_of(table, TABLES, "table")
    chosen = SCALES[one_of(scale, SCALES, "scale")]
    found = table_jobs(table, chosen, cells=cells or ["*"], rows=rows or None, seeds=seeds, tau=tau)
    return found if part == "1/1" else _part(found, part)


def _part(found: list[Job], part: str) -> list[Job]:
    """Take one of N parts, each with as many jobs of every row as the others."""
    k, slash, n = part.partition("/")
    if not (slash and k.isdigit() and n.isdigit() and 1 <= int(k) <= int(n)):
        raise InputError(f"--part {part}: expected K/N with K from 1 to N, such as 1/4.")
    every = distinct(found)
    by_row = sorted(range(len(every)), key=lambda i: every[i].row.name)
    return [every[i] for i in sorted(by_row[int(k) - 1 :: int(n)])]


def run(
    chosen: list[Job], out: Path, data_dir: Path | None, retry: bool, device: str = "auto"
) -> str:
    """Run the jobs that are not finished, and say how many are.

    Raises
    ------
    TrainingError
        If jobs failed; raised after the others have run.
    """
    chosen = distinct(chosen)
    failures = run_jobs(chosen, out, data_dir, retry=retry, device=device)
    states = [state(job, out) for job in chosen]
    summary = f"{states.count('done')} of {len(chosen)} runs are done, in {out}."
    if busy := states.count("running"):
        summary += f" {busy} {'is' if busy == 1 else 'are'} being run by another process."
    if failures:
        listing = "".join(f"\n  {name}: {error}" for name, error in failures.items())
        failed = f"{len(failures)} failed (--retry tries them again):{listing}"
        raise TrainingError(f"{summary} {failed}")
    return summary


def planned(chosen: list[Job], out: Path, data_dir: Path | None = None) -> str:
    """Show the jobs, their states, how long the rest will take, and whether its data are there."""
    entries = plan(distinct(chosen), out, folder_results(out))
    lines = [
        f"{entry['key']}  {entry['state']:10}  {_time(entry['seconds']):>9}  {entry['name']}"
        for entry in entries
    ]
    left = [entry["seconds"] for entry in entries if entry["state"] != "done"]
    if not left:
        return "\n".join([*lines, f"All {len(entries)} runs are done."])
    known = [seconds for seconds in left if seconds is not None]
    estimate = "no estimate before a first run is done"
    if known:
        estimate = f"about {_time(sum(known) / len(known) * len(left))}"
    lines.append(f"{len(left)} of {len(entries)} runs are left: {estimate}.")
    if failed := sum(entry["state"] == "failed" for entry in entries):
        lines.append(f"{failed} of them failed, and wait for --retry.")
    try:
        require_sets([job for job in chosen if not (out / job.key).exists()], data_dir)
    except InputError as error:
        lines.append(f"They cannot be run: {error}")
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    return "?" if seconds is None else duration(seconds)


def scale_of(scale: str | None, found: Results, place: Path) -> str:
    """Return the scale that is named, or the only one with results in `place`."""
    if scale is not None:
        return scale
    scales = sorted({result["scale"] for result in found.values()})
    if len(scales) == 1:
        return scales[0]
    reason = f"there are no results in {place}"
    if scales:
        reason = f"there are results of {', '.join(scales)}"
    raise InputError(
        f"which scale? {reason}: name one by --scale (`candidly bench scales` lists them)."
    )


def show(chosen: list[Job], table: str, found: Results, style: str, details: bool) -> str:
    """Write a table as text, in one of `FORMATS`.

    Rows without any number, ours or the paper's, are left out, unless all are without.
    """
    write = FORMATS[one_of(style, FORMATS, "format")]
    entries = make_table(chosen, found, table)
    rows = {e["row"] for e in entries if e["mean"] is not None or e["paper"] is not None}
    entries = [entry for entry in entries if entry["row"] in rows] or entries
    return as_markdown(entries, details) if style == "md" else write(entries)


def notes(chosen: list[Job], table: str, found: Results, out: Path) -> list[str]:
    """List what readers of a table should know: missing runs, mixed data, incomplete sets."""
    wanted = distinct(chosen)
    absent = [job for job in wanted if job.key not in found]
    present = [found[job.key] for job in wanted if job.key in found]
    missing = [_absent(absent, len(wanted), table, out)] if absent else []
    return [*missing, *_mixed(present), *_incomplete(present)]


def _absent(absent: list[Job], wanted: int, table: str, out: Path) -> str:
    """Say how many runs are missing, and the command that makes them."""
    cells = "".join(f' --cells "{name}"' for name in dict.fromkeys(job.cell.name for job in absent))
    rows = "".join(f' --methods "{name}"' for name in dict.fromkeys(job.row.name for job in absent))
    seeds = 1 + max(job.seed for job in absent)
    cell = absent[0].cell
    tau = "" if (cell.tau1, cell.tau2) in TAUS else f" --tau {cell.tau1:g} {cell.tau2:g}"
    scale = f"--scale {absent[0].scale.name}"
    options = f"{scale}{tau}{cells}{rows} --seeds {seeds} --out {quote(str(out))}"
    present = f"{wanted - len(absent)} of {wanted} runs are there"
    return f"{present}; to train the missing runs: candidly bench run {table} {options}"


def _mixed(present: list[dict[str, Any]]) -> list[str]:
    """The methods of a cell should have trained on the same data; compare their fingerprints."""
    data: dict[str, set[str]] = {}
    for result in present:
        if result.get("data"):
            name = f"{Cell(**result['cell']).name} seed {result['seed']}"
            data.setdefault(name, set()).add(result["data"])
    return [
        f"{name}: results come from {len(seen)} versions of the data."
        for name, seen in data.items()
        if len(seen) > 1
    ]


def _incomplete(present: list[dict[str, Any]]) -> list[str]:
    """List the sets of which fewer images were read than they officially have."""
    read = {item for result in present for item in result.get("images", {}).items()}
    lines = []
    for name, n in sorted(read):
        if name in SETS and n < SETS[name].sizes["train"]:
            official = SETS[name].sizes["train"]
            lines.append(
                f"{name}: {n:,} images were read; its official training part has {official:,}."
            )
    return lines


def figure(
    kind: str,
    scale: str | None,
    open_set: str | None,
    out: Path,
    exported: Path | None,
    data_dir: Path | None,
    file: Path,
    train: bool = False,
) -> str:
    """Draw a figure from the runs of seed 0.

    Parameters
    ----------
    kind : str
        One of `FIGURES`.
    scale : str or None
        A key of `SCALES`; None: the only one with results.
    open_set : str or None
        Where the open examples come from; None: the first open set of the scale.
    out, exported : Path
        Where results are; see `load_results`.
    data_dir : Path or None
        Folder of the image sets, for "examples" and for training.
    file : Path
        The picture; its suffix decides the format.
    train : bool
        Train the missing runs first.

    Returns
    -------
    str
        A sentence on what was drawn.

    Raises
    ------
    InputError
        If an option is unknown, or runs are missing that are not to be trained.
    """
    one_of(kind, FIGURES, "figure")
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file} ends in {file.suffix!r}: expected one of {', '.join(SUFFIXES)}.")
    found = load_results(out, exported)
    name = scale_of(scale, found, exported or out)
    chosen = SCALES[one_of(name, SCALES, "scale")]
    opened = chosen.opens[0]
    if open_set is not None:
        opened = one_of(open_set, chosen.opens, "open set of this scale")
    if kind == "params" and opened != chosen.opens[0]:
        raise InputError(
            f"--open {opened}: at this scale, params are swept with {chosen.opens[0]} alone."
        )
    needed = _needed(kind, chosen, opened)
    missing = _missing(needed, found, kind)
    if train and missing:
        run(missing, out, data_dir, retry=True)
        found |= folder_results(out)
        missing = _missing(needed, found, kind)
    if missing:
        names = "; ".join(job.name for job in missing)
        raise InputError(
            f"this figure needs runs that are not there ({names}): `--run` trains them first."
        )
    by_row = {job.row.name: found[job.key] for job in needed}
    picture = _draw(kind, chosen, opened, by_row, data_dir)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, lambda temporary: _save(picture, temporary, file.suffix[1:].lower()))
    return f"{file} drawn."


def _needed(kind: str, scale: Scale, opened: str) -> list[Job]:
    """List the jobs of a figure."""
    if kind == "params":
        rows = [row for entries in sweep_rows(scale).values() for _, row in entries]
        return [Job(scale, Cell(scale.opens[0], 0.1, *TAUS[0]), row, 0) for row in rows]
    cell, name = {
        "losses": (Cell(opened, 0.3, *TAUS[0]), "ooc"),
        "precision": (Cell(opened, 0.1, *TAUS[1]), "ooc*"),
        "examples": (Cell(opened, 0.1, *TAUS[0]), "ooc, robust"),
    }[kind]
    return [Job(scale, cell, row, 0) for row in ROWS if fnmatch(row.name, name)]


def _missing(needed: list[Job], found: Results, kind: str) -> list[Job]:
    """List the jobs without a result, or without what this figure shows of it."""
    wanted = "figures" if kind in ("losses", "examples") else "score"
    return distinct(job for job in needed if wanted not in found.get(job.key, {}))


def _save(picture: Any, path: Path, form: str) -> None:
    """Save a picture, in PDF with fonts as journals want them."""
    import matplotlib

    with matplotlib.rc_context({"pdf.fonttype": 42}):
        picture.savefig(path, format=form, dpi=200)


def _draw(
    kind: str, scale: Scale, opened: str, by_row: dict[str, Any], data_dir: Path | None
) -> Any:
    if kind == "losses":
        return figures.losses_figure(by_row["ooc"]["figures"]["losses"])
    if kind == "precision":
        epochs = make_scheme(scale.scheme, **scale.changes).epochs
        warmup = warmup_epochs(scale.ooc_settings(0.1)["warmup"], epochs)
        curves = {name: result["curves"] for name, result in by_row.items()}
        return figures.precision_figure(curves, dict.fromkeys(curves, warmup))
    if kind == "params":
        return figures.params_figure(_sweeps(scale, by_row))
    examples = by_row["ooc, robust"]["figures"]["examples"]
    source = load_source(scale.known, scale.n_known, scale.n_test, opened, 0, data_dir)
    images = [_picture(source, example["source"]) for example in examples]
    return figures.examples_figure(examples, images, source.classes)


def _sweeps(scale: Scale, by_row: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    default = Job(scale, Cell(scale.opens[0], 0.1, *TAUS[0]), Row("ooc", "ooc"), 0).key
    return {
        letter: [_point(value, by_row[row.name], default) for value, row in entries]
        for letter, entries in sweep_rows(scale).items()
    }


def _point(value: float, result: dict[str, Any], default: str) -> dict[str, Any]:
    return {
        "value": value,
        "score": result["score"],
        "precision": {kind: result["curves"][f"precision_{kind}"][-1] for kind in KINDS},
        "default": result["key"] == default,
    }


def _picture(source: Source, row: int) -> np.ndarray:
    """Return an image of the known examples or, beyond them, of the pool of open ones."""
    image = source.X[row] if row < len(source.X) else source.pool[row - len(source.X)]
    if image.ndim == 1:
        side = int(len(image) ** 0.5)
        return image.reshape(side, side)
    return image
