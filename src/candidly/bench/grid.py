"""The grid: rows, cells and seeds of the tables, and the jobs that they make."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import product
from typing import Any

from candidly.bench.scales import Scale, authors_settings
from candidly.errors import InputError
from candidly.kinds import Rates
from candidly.methods import METHODS
from candidly.methods.base import defaults
from candidly.methods.ooc import OOC
from candidly.methods.twins import WithRates, warmup_epochs
from candidly.training.trainer import make_scheme

QS = (0.1, 0.3, 0.5)
TAUS = ((0.2, 0.4), (0.3, 0.6))


@dataclass(frozen=True)
class Row:
    """A row of a table: a method with settings, or a reference.

    Parameters
    ----------
    name : str
        The name that the table shows.
    method : str
        A key of `candidly.METHODS`.
    preset : str, optional
        A preset of the method.
    settings : dict
        Settings of the method. `rates` may also be "true" (the true shares), or a number: a
        multiple of the true shares.
    reference : {"supervised", "oracle"}, optional
        What the row knows that no user knows: the true labels or the true kinds.
    """

    name: str
    method: str
    preset: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    reference: str | None = None

    @property
    def given(self) -> str:
        """What the row receives beside the candidate sets, and users do not have."""
        if self.reference is not None:
            return {"supervised": "true labels", "oracle": "true kinds"}[self.reference]
        if "rates" not in defaults(METHODS[self.method]):
            return "nothing"
        rates = self.settings.get("rates", "true")
        return "nothing" if rates == "auto" or isinstance(rates, Rates) else "true shares"


COMPARED = ("CC", "PRODEN", "LWS", "CAVL", "PiCO", "CRDPLL")
REFERENCES = (
    Row("supervised", "cc", reference="supervised"),
    Row("oracle", "ooc", reference="oracle"),
)
# Methods that have views of their own, beside those of all
OWN_VIEWS = tuple(
    Row(f"{name}, own", name.lower(), settings={"augmentation": "own"})
    for name in ("PiCO", "CRDPLL")
)
ROWS = (
    *REFERENCES,
    *(Row(name, name.lower()) for name in COMPARED),
    *OWN_VIEWS,
    Row("ooc", "ooc"),
    Row("ooc, paper", "ooc", "paper"),
    Row("ooc, robust", "ooc", "robust"),
    Row("ooc, gradual", "ooc", "gradual"),
)
# Methods for sets that may miss the truth, with the true shares and with estimated ones
ESTIMATED = {"rates": "auto"}
RIVALS = (
    Row("ALIM", "alim"),
    Row("ALIM, estimated", "alim", settings=ESTIMATED),
    Row("PiCO+", "pico_plus"),
    Row("PiCO+, estimated", "pico_plus", settings=ESTIMATED),
    Row("PALS", "pals"),
    Row("trimmed PRODEN", "trimmed"),
    Row("trimmed PRODEN, estimated", "trimmed", settings=ESTIMATED),
    Row("GCE", "gce"),
)
# `candid`, what it is made of, and what users would run otherwise
CANDID = (
    Row("PRODEN", "proden"),
    Row("ooc, estimated", "ooc", settings=ESTIMATED),
    Row("ooc, robust, estimated", "ooc", "robust", settings=ESTIMATED),
    Row("posterior", "posterior"),
    Row("candid, w/o neighbours", "candid", settings={"neighbours": 0}),
    Row("candid", "candid"),
)
# Settings of other methods than `ooc` that depend on q; the second value is for q >= 0.5.
BY_Q: dict[str, dict[str, tuple[float, float]]] = {
    "alim": {"start": (0.08, 0.14)},
    "pico_plus": {"prot_start": (0.10, 0.16), "knn_start": (0.12, 0.20)},
}
# What was given to the rows of `ooc` that have the window and alpha of q < 0.5 in all cells
NARROW = {"window": 5, "alpha": 1.0}
ON_TRUE_LABELS = tuple(
    Row(f"{name}, true labels", name.lower(), reference="supervised") for name in COMPARED
)
ABLATIONS = (
    Row("full", "ooc"),
    *(Row(name, "ooc", settings=values) for name, values in OOC.ABLATIONS.items()),
)
# The values of the paper's figure; phi as a share of the warm-up, gamma as a multiple of the
# true shares.
SWEEPS: dict[str, tuple[float, ...]] = {
    "alpha": (0.1, 0.5, 1.0, 3.0, 5.0),
    "beta": (0.1, 0.5, 1.0, 3.0, 5.0),
    "phi": (1 / 30, 1 / 6, 1 / 3, 2 / 3, 1),
    "eta": (0.0, 0.5, 0.9, 0.99, 1.0),
    "gamma": (0.25, 0.5, 1, 1.5, 2),
}


def earlier_rows(scale: Scale) -> tuple[Row, ...]:
    """List the rows of Table 1 with the defaults of before, which most stored results have.

    PiCO and CRDPLL had views of their own, of which PiCO's strong one was milder (a table has but
    one kind of strong views), and CRDPLL's ramp was a third of the training. `ooc` had the same
    window and alpha at all q.
    """
    pico = {"augmentation": "own" if scale.tabular else "mild"}
    crdpll = {"augmentation": "own", "ramp": 1 / 3}
    earlier = {
        "PiCO": Row(f"PiCO, {pico['augmentation']}", "pico", settings=pico),
        "CRDPLL": Row("CRDPLL, ramp 1/3", "crdpll", settings=crdpll),
        "ooc": Row("ooc, window 5", "ooc", settings=NARROW),
        "ooc, paper": Row("ooc, paper, window 5", "ooc", "paper", settings=NARROW),
    }
    return tuple(earlier.get(row.name, row) for row in ROWS if row not in OWN_VIEWS)


def sweep_rows(scale: Scale) -> dict[str, list[tuple[float, Row]]]:
    """List the rows of the paper's figure of hyper-parameters.

    Returns
    -------
    dict
        For each Greek letter of the figure, (value, row) in ascending order. The default is among
        the values.
    """
    epochs = make_scheme(scale.scheme, **scale.changes).epochs
    warmup = warmup_epochs(scale.ooc_settings(0.1)["warmup"], epochs)
    windows = {scale.window[0], *(max(1, round(share * warmup)) for share in SWEEPS["phi"])}
    settings: dict[str, list[tuple[float, dict[str, Any]]]] = {
        "alpha": [(v, {"alpha": v}) for v in SWEEPS["alpha"]],
        "beta": [(v, {"beta": v}) for v in SWEEPS["beta"]],
        "phi": [(v, {"window": v}) for v in sorted(windows) if v <= max(warmup, scale.window[0])],
        "eta": [(v, {"momentum": v}) for v in SWEEPS["eta"]],
        "gamma": [(v, {} if v == 1 else {"rates": v}) for v in SWEEPS["gamma"]],
    }
    return {
        letter: [
            (value, Row(f"{letter}={value:g}", "ooc", settings=given)) for value, given in entries
        ]
        for letter, entries in settings.items()
    }


@dataclass(frozen=True)
class Cell:
    """A column of a table: where the open examples come from, and how much is corrupted."""

    open_set: str
    q: float
    tau1: float
    tau2: float

    @property
    def name(self) -> str:
        return f"{self.open_set} q={self.q:g} tau={self.tau1:g},{self.tau2:g}"


@dataclass(frozen=True)
class Job:
    """One training: a row in a cell, with a seed, at a scale."""

    scale: Scale
    cell: Cell
    row: Row
    seed: int

    @property
    def data(self) -> Cell:
        """The cell that is trained on.

        Supervised learning has no ambiguity, so that one training serves all cells.
        """
        if self.row.reference == "supervised":
            return Cell(self.scale.opens[0], 0.0, 0.0, 0.0)
        return self.cell

    @property
    def plan(self) -> dict[str, Any]:
        """What the training changes in its scheme."""
        return self.scale.plan(self.row.method, self.data.q)

    @property
    def config(self) -> dict[str, Any]:
        """All that decides the result, with the defaults, as JSON.

        Names of rows and scales decide nothing.
        """
        scale = self.scale
        method = METHODS[self.row.method]
        preset = method.PRESETS.get(self.row.preset or "", {})
        scheme = dataclasses.asdict(make_scheme(scale.scheme, **self.plan))
        if scheme["precision"] == "float32":
            del scheme["precision"]  # keys of results from before there was a choice stay the same
        config: dict[str, Any] = {
            "known": scale.known,
            "n_known": scale.n_known,
            "n_test": scale.n_test,
            "net": scale.net,
            "net_settings": scale.net_settings,
            "scheme": scheme,
            "cell": dataclasses.asdict(self.data),
            "method": self.row.method,
            "settings": {**defaults(method), **preset, **self.settings},
            "reference": self.row.reference,
            "seed": self.seed,
        }
        if scale.encoding is not None:
            config["encoding"] = dataclasses.asdict(scale.encoding)
        return json.loads(json.dumps(config, default=str))

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the row, before the true shares are known.

        A method with the setting `rates` gets the true shares, as in the paper, or a multiple of
        them. `ooc` and its subclasses also get the settings of the scale that they accept, and
        other methods with rates its warm-up; for the rest, settings of the same names mean
        something else. Rows without preset are the authors' program.
        """
        method = METHODS[self.row.method]
        q = self.cell.q
        wide = q >= 0.5
        given: dict[str, Any] = {"rates": "true"}
        given |= {name: pair[wide] for name, pair in BY_Q.get(self.row.method, {}).items()}
        if issubclass(method, WithRates):
            given |= self.scale.ooc_settings(q)
        if issubclass(method, OOC) and self.row.reference is None:
            authors = authors_settings(self.cell.open_set, q)
            if self.row.preset == "paper":  # its text has one alpha
                authors.pop("alpha", None)
            given |= authors if self.row.preset in (None, "paper") else {}
        accepted = {name: value for name, value in given.items() if name in defaults(method)}
        return {**accepted, **self.row.settings}

    @property
    def key(self) -> str:
        """The name of the job's RUN folder, and of its result: a hash of `config`."""
        return config_key(self.config)

    @property
    def name(self) -> str:
        return f"{self.cell.name} {self.row.name} seed {self.seed}"


def config_key(config: dict[str, Any]) -> str:
    """Hash a job's config."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def table_jobs(
    table: str,
    scale: Scale,
    *,
    cells: Iterable[str] = ("*",),
    rows: Collection[str] | None = None,
    seeds: int | None = None,
    tau: tuple[float, float] | None = None,
) -> list[Job]:
    """List the jobs of a table.

    Parameters
    ----------
    table : {"table1", "table2", "params", "rivals", "candid", "earlier"}
        Comparison of the methods, ablations, or sweeps of hyper-parameters; the cells of Table 1
        with `RIVALS`, `CANDID`, or `earlier_rows`.
    scale : Scale
        How large the experiment is.
    cells, rows : iterable of str
        Names or patterns such as "svhn*". Table 1 also has rows that only a full name chooses:
        `RIVALS`, `CANDID`, any other method of `METHODS`, and "LWS, true labels" and the like,
        which show what a method reaches without ambiguity.
    seeds : int, optional
        Number of seeds; by default that of the scale.
    tau : (float, float), optional
        One pair of shares instead of the paper's two pairs.

    Raises
    ------
    InputError
        If a pattern matches nothing, or `tau` is not a pair of shares.
    """
    if tau is not None and not all(0 <= share <= 1 for share in tau):
        raise InputError(f"tau {tau[0]:g} {tau[1]:g}: expected two numbers from 0 to 1.")
    taus = TAUS if tau is None else (tau,)
    first = scale.opens[0]
    of_table1 = {
        "table1": ROWS,
        "rivals": RIVALS,
        "candid": CANDID,
        "earlier": earlier_rows(scale),
    }
    lines: tuple[Row, ...]
    if table in of_table1:
        columns = [Cell(o, q, *t) for o, q, t in product(scale.opens, QS, taus)]
        lines = of_table1[table]
    elif table == "table2":
        columns = [Cell(first, 0.1, *t) for t in taus]
        lines = ABLATIONS
    else:
        columns = [Cell(first, 0.1, *taus[0])]
        lines = tuple(row for entries in sweep_rows(scale).values() for _, row in entries)
    chosen_cells = _matching(columns, cells, "cell")
    chosen_rows: Collection[Row] = lines
    if rows is not None:
        extra = _extra_rows(rows) if table == "table1" else []
        chosen_rows = _matching((*lines, *extra), rows, "row")
    count = scale.seeds if seeds is None else seeds
    return [Job(scale, c, r, s) for s, c, r in product(range(count), chosen_cells, chosen_rows)]


def _extra_rows(names: Collection[str]) -> list[Row]:
    """Rows that Table 1 has only if they are named in full."""
    in_table = {row.method for row in (*ROWS, *RIVALS, *CANDID)}
    others = [Row(name, name) for name in METHODS if name not in in_table]
    named = {name.lower() for name in names}
    candid = [row for row in CANDID if row not in ROWS]
    extra = (*RIVALS, *candid, *others, *ON_TRUE_LABELS)
    return [row for row in extra if row.name.lower() in named]


def _matching(items: Iterable[Any], patterns: Iterable[str], what: str) -> list[Any]:
    items, patterns = list(items), list(patterns)
    for pattern in patterns:
        if not any(fnmatch(item.name.lower(), pattern.lower()) for item in items):
            names = "; ".join(item.name for item in items)
            raise InputError(f"no {what} matches {pattern!r}. There are: {names}.")
    return [item for item in items if any(fnmatch(item.name.lower(), p.lower()) for p in patterns)]


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """List each training once: supervised learning serves all cells, the default all sweeps."""
    first: dict[str, Job] = {}
    for job in jobs:
        first.setdefault(job.key, job)
    return list(first.values())
