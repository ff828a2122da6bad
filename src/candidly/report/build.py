"""From findings to a page: one HTML file with its data, scripts and styles, that asks the network for nothing."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from candidly.auditing.findings import LEAST
from candidly.console.terminal import counted
from candidly.report.charts import charts
from candidly.storage.store import read_json, write_atomically

REPORT, FINDINGS = "report.html", "findings.json"
# What findings hold that are not of a file.
UNTOLD = {
    "file": "these rows",
    "inputs": "none",
    "remarks": [],
    "history": [],
    "made": {},
    "no_rows": False,
}
PRIVATE = ("row", "id", "candidates", "suggestion")  # of a point


def write_report(folder: str | Path, *, rows: bool = True) -> Path:
    """`report.html` of a RUN from its `findings.json`. Not `rows`: as `without_rows` leaves them."""
    path = Path(folder) / REPORT
    page = render(read_json(Path(folder) / FINDINGS), rows=rows)
    write_atomically(path, lambda temporary: temporary.write_text(page, encoding="utf-8"))
    return path


def render(findings: dict[str, Any], *, rows: bool = True) -> str:
    """The page of what `candidly.auditing.findings.gather` found, and of where it came from (see `UNTOLD`)."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    shown = UNTOLD | (findings if rows else without_rows(findings))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {"percent": percent, "thousands": lambda n: f"{n:,.0f}"}
    environment.filters |= {
        "rows": lambda n: counted(n, "row"),
        "errors": lambda n: counted(round(n), "error"),
    }
    template = environment.get_template("template.html")
    given = {"f": shown, "rows": not shown["no_rows"], "least": LEAST, "charts": charts(shown)}
    return template.render(**given, javascript=javascript()).lstrip()


def without_rows(findings: dict[str, Any]) -> dict[str, Any]:
    """The findings without what is private: ids, inputs, candidates and suggestions of rows, names of annotators."""
    points = [
        {key: value for key, value in point.items() if key not in PRIVATE}
        for point in findings["points"]
    ]
    people = findings["annotators"] and [
        {**entry, "name": f"annotator {number}"}
        for number, entry in enumerate(findings["annotators"], 1)
    ]
    suspects: dict[str, list[Any]] = {kind: [] for kind in findings["suspects"]}
    return {
        **findings,
        "points": points,
        "annotators": people,
        "suspects": suspects,
        "no_rows": True,
    }


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def javascript() -> str:
    """Vega, Vega-Lite and vega-embed as one script. Bundling takes seconds, so it is kept in the cache folder."""
    import altair as alt
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    folder = Path(os.environ.get("CANDIDLY_CACHE") or "~/.cache/candidly").expanduser()
    path = folder / f"vega-lite-{version}-{metadata.version('vl-convert-python')}.js"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    bundle = vl_convert.javascript_bundle(None, version)  # type: ignore[arg-type] # None: sets window.vegaEmbed
    script = bundle.replace("</script", r"<\/script")
    with suppress(OSError):  # a cache that cannot be written only costs time
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: temporary.write_text(script, encoding="utf-8"))
    return script
