"""From findings to a page: one HTML file with its data, scripts and styles, without any network."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from candidly.auditing.findings import LEAST
from candidly.console.terminal import counted
from candidly.report.charts import make_charts
from candidly.storage.atomic import write_atomically
from candidly.storage.files import read_json

REPORT = "report.html"
FINDINGS = "findings.json"
# What a page shows of the file and the training, for findings that have neither.
DEFAULTS: dict[str, Any] = {
    "file": "these rows",
    "inputs": "none",
    "remarks": [],
    "history": [],
    "made": {},
    "no_rows": False,
}
# Krippendorff's alpha of reliable labels, and of labels for tentative conclusions.
RELIABLE = 0.8
TENTATIVE = 0.667
# What a point says about its row beside its losses and probabilities.
PRIVATE = ("row", "id", "candidates", "suggestion")


def write_report(folder: str | Path, *, rows: bool = True) -> Path:
    """Write `report.html` of a RUN from its `findings.json`.

    Parameters
    ----------
    folder : str or Path
        The RUN folder.
    rows : bool
        Show rows and names of annotators; if not, the page can be shared (`without_rows`).

    Returns
    -------
    Path
        The page.
    """
    path = Path(folder) / REPORT
    page = render_page(read_json(Path(folder) / FINDINGS), rows=rows)
    write_atomically(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return path


def render_page(findings: dict[str, Any], *, rows: bool = True) -> str:
    """Return the report as HTML.

    Parameters
    ----------
    findings : dict
        What `candidly.auditing.findings` gathered, and what `DEFAULTS` lists.
    rows : bool
        Show rows and names of annotators.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    shown = DEFAULTS | (findings if rows else without_rows(findings))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "thousands": lambda n: f"{n:,.0f}",
        "rows": lambda n: counted(n, "row"),
        "errors": lambda n: counted(round(n), "error"),
        "agreed": describe_alpha,
    }
    page = environment.get_template("template.html").render(
        f=shown,
        rows=not shown["no_rows"],
        least=LEAST,
        charts=make_charts(shown),
        javascript=javascript(),
    )
    return page.lstrip()


def without_rows(findings: dict[str, Any]) -> dict[str, Any]:
    """Return the findings without private data.

    Ids, inputs, candidates and suggestions of rows are left out; annotators are numbered.

    Parameters
    ----------
    findings : dict
        They are not changed.
    """
    points = [
        {key: value for key, value in point.items() if key not in PRIVATE}
        for point in findings["points"]
    ]
    number = _numbers(findings)
    people = findings["annotators"] and [
        {**entry, "name": number[entry["name"]]} for entry in findings["annotators"]
    ]
    private = {
        "points": points,
        "annotators": people,
        "agreement": _without_names(findings["agreement"], number),
        "suspects": [],
        "open_suspects": [],
    }
    return {**findings, **private, "no_rows": True}


def _numbers(findings: dict[str, Any]) -> dict[Any, str]:
    """Number the annotators, in the order of their table."""
    names = [entry["name"] for entry in findings["annotators"] or []]
    agreement = findings["agreement"] or {}
    pairs = [pair for end in ("lowest", "highest") if (pair := agreement.get(end))]
    names += [pair[key] for pair in pairs for key in ("first", "second")]
    return {name: f"annotator {number}" for number, name in enumerate(dict.fromkeys(names), 1)}


def _without_names(
    agreement: dict[str, Any] | None, number: dict[Any, str]
) -> dict[str, Any] | None:
    if agreement is None:
        return None
    pairs = {
        end: pair and {**pair, "first": number[pair["first"]], "second": number[pair["second"]]}
        for end in ("lowest", "highest")
        for pair in [agreement[end]]
    }
    return {**agreement, **pairs}


def percent(share: float | None) -> str:
    """Return a share as text; nothing for None.

    Examples
    --------
    >>> percent(0.1234)
    '12.3 %'
    """
    return "" if share is None else f"{100 * share:.1f} %"


def describe_alpha(alpha: float) -> str:
    """Say what a value of Krippendorff's alpha means, by Krippendorff's own limits.

    Examples
    --------
    >>> describe_alpha(0.7)
    'enough agreement for tentative conclusions'
    """
    if alpha >= RELIABLE:
        return "annotators agree well"
    if alpha >= TENTATIVE:
        return "enough agreement for tentative conclusions"
    if alpha > 0:
        return "annotators agree little: the labels are hard, or the instructions unclear"
    return "annotators agree no more than by chance"


def javascript() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script.

    Bundling them takes seconds, so the script is kept in the cache folder.
    """
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    folder = Path(os.environ.get("CANDIDLY_CACHE") or "~/.cache/candidly").expanduser()
    path = folder / f"vega-lite-{version}-{metadata.version('vl-convert-python')}.js"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    # Without a snippet of its own, the bundle sets window.vegaEmbed.
    bundle = vl_convert.javascript_bundle(None, version)  # type: ignore[arg-type]
    script = bundle.replace("</script", r"<\/script")
    # A cache that cannot be written only costs time.
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: temporary.write_text(script, encoding="utf-8"))
    return script
