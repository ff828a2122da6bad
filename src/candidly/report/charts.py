"""The charts of the report as Vega-Lite specifications.

A chart is a function from the findings to a specification, registered in `CHARTS`. Text and lines
get their colours from the styles of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

Findings = dict[str, Any]
Spec = dict[str, Any]

# Colours that can be distinguished without colour vision, and shapes for the same purpose.
KINDS = {"normal": "#0072b2", "closed": "#d55e00", "open": "#009e73"}
SHAPES = {"normal": "circle", "closed": "triangle-up", "open": "square"}
GREY = "#7d7d7d"
# The font of the page: Vega needs it to measure texts.
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', Arial, sans-serif"
# Ticks of an axis, about.
TICKS = 6
# Larger losses are drawn at the edge.
CLIP = 20.0
# Classes and annotators with a bar each, and pixels of a bar.
BARS = 30
BAR = 22
# The answer "none of the classes" in a confusion matrix.
NONE = "(none)"
# Confusion matrices that are drawn, and pixels of one.
MATRICES = 12
SIDE = 230


def make_charts(findings: Findings) -> dict[str, Spec]:
    """Return the charts that there is something to draw for.

    Parameters
    ----------
    findings : dict
        What the page shows.

    Returns
    -------
    dict
        Specifications by the names of `CHARTS`.
    """
    made = {name: draw(findings) for name, draw in CHARTS.items()}
    return {name: spec for name, spec in made.items() if spec is not None}


def new_chart(
    name: str, values: list[dict[str, Any]], height: int
) -> tuple[alt.Chart, dict[str, Any]]:
    """Return an empty chart as wide as the page, and its data for `finish_chart`.

    Parameters
    ----------
    name : str
        Name of the data.
    values : list of dict
        The data. The chart refers to them by name, since altair would check each value.
    height : int
        Pixels.
    """
    import altair as alt

    chart = alt.Chart(alt.NamedData(name)).properties(width="container", height=height)
    return chart, {name: values}


def finish_chart(chart: Any, datasets: dict[str, Any], description: str) -> Spec:
    """Return a chart as a specification in the style of the page.

    Parameters
    ----------
    chart : altair chart
        What was made from `new_chart`.
    datasets : dict
        The data that came with it.
    description : str
        One sentence for people who cannot see the chart.
    """
    styled = chart.properties(description=description, background="transparent")
    styled = styled.configure(font=FONT).configure_view(stroke=None)
    styled = styled.configure_axis(
        labelFontSize=12, titleFontSize=12, titleFontWeight="normal", tickCount=TICKS
    )
    styled = styled.configure_legend(labelFontSize=12, orient="top", title=None, symbolSize=90)
    return {**styled.to_dict(), "datasets": datasets}


def draw_shares(findings: Findings) -> Spec | None:
    """Draw the estimated shares with their intervals."""
    import altair as alt

    if not findings["shares"]:
        return None
    names = {
        "outside": "outside (together)",
        "closed": "another class (closed)",
        "open": "no class (open)",
    }
    order = [*names.values()]
    values = [{"name": names[key], **entry} for key, entry in findings["shares"].items()]
    base, data = new_chart("shares", values, 110)
    colours = alt.Scale(domain=order, range=[GREY, KINDS["closed"], KINDS["open"]])
    colour = alt.Color("name:N", scale=colours, legend=None)
    labels = alt.Axis(labelLimit=200, labelPadding=9, domain=False, ticks=False)
    y = alt.Y("name:N", sort=order, title=None, axis=labels)
    x = alt.X(
        "low:Q", title="share of all rows", axis=alt.Axis(format="%"), scale=alt.Scale(domainMin=0)
    )
    tips = [
        alt.Tooltip("name:N", title="truth"),
        *(alt.Tooltip(f"{key}:Q", format=".1%") for key in ("share", "low", "high")),
    ]
    ranges = base.mark_rule(strokeWidth=4, opacity=0.45).encode(
        x=x, x2="high:Q", y=y, color=colour, tooltip=tips
    )
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        x="share:Q", y=y, color=colour, tooltip=tips
    )
    text = (
        "Estimated shares of the rows whose truth is outside their candidates, with 90 % intervals."
    )
    return finish_chart(ranges + points, data, text)


def draw_review(findings: Findings) -> Spec | None:
    """Draw the errors to expect in a review, by suspicion and at random; and the real ones."""
    import altair as alt

    if not (curve := findings["review"]):
        return None
    names = {"expected": "expected, most suspicious first", "blind": "expected, in random order"}
    if "found" in curve[0]:
        names |= {"found": "there really are (truth column)"}
    values = [
        {"rows": row["rows"], "errors": row[key], "line": name}
        for row in curve
        for key, name in names.items()
    ]
    base, data = new_chart("review", values, 280)
    lines = [*names.values()]
    colours = [KINDS["closed"], GREY, KINDS["normal"]][: len(lines)]
    dashes = [[1, 0], [4, 4], [8, 3]][: len(lines)]
    most = max(row["errors"] for row in values)
    line = base.mark_line(strokeWidth=2.5).encode(
        x=alt.X("rows:Q", title="rows reviewed (N)", axis=_counts(curve[-1]["rows"])),
        y=alt.Y("errors:Q", title="errors among them (M)", axis=_counts(most)),
        color=alt.Color(
            "line:N",
            scale=alt.Scale(domain=lines, range=colours),
            legend=alt.Legend(labelLimit=260, columns=1),
        ),
        strokeDash=alt.StrokeDash("line:N", scale=alt.Scale(domain=lines, range=dashes)),
        tooltip=[
            alt.Tooltip("line:N"),
            alt.Tooltip("rows:Q", format=",d"),
            alt.Tooltip("errors:Q", format=",.0f"),
        ],
    )
    return finish_chart(line, data, "How many errors to expect among the first N rows of a review.")


def _counts(most: float) -> alt.Axis:
    """Return an axis of whole numbers; few of them get a tick each, so that none lies between."""
    import altair as alt

    ticks: dict[str, Any] = {}
    if most <= TICKS:
        ticks["values"] = list(range(math.ceil(most) + 1))
    return alt.Axis(format=",d", **ticks)


def draw_losses(findings: Findings) -> Spec | None:
    """Draw the rows by the loss of their best candidate and of the best other class."""
    import altair as alt

    if not findings["points"]:
        return None
    values = [_point(point) for point in findings["points"]]
    base, data = new_chart("losses", values, 420)
    texts = [name for name in ("id", "candidates", "suggestion") if name in values[0]]
    tips = [alt.Tooltip(name, type="nominal") for name in texts]
    tips += [alt.Tooltip(f"p_{kind}", type="quantitative", format=".2f") for kind in KINDS]
    axis = alt.Scale(type="sqrt", nice=False, zero=False, padding=8)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=[*SHAPES], range=[*SHAPES.values()]))
    dots = base.mark_point(filled=True, size=36, opacity=0.75).encode(
        x=alt.X("inside:Q", title="inside loss: of the best candidate", scale=axis),
        y=alt.Y("outside:Q", title="outside loss: of the best other class", scale=axis),
        color=_verdict_colour([*KINDS]),
        shape=shape,
        tooltip=tips,
    )
    return finish_chart(dots, data, "Inside against outside loss of the rows, by verdict.")


def _point(point: dict[str, Any]) -> dict[str, Any]:
    """Return what is drawn of a row; texts only if the point has them."""
    drawn = {
        "inside": min(point["inside"], CLIP),
        "outside": min(point["outside"], CLIP),
        "verdict": point["verdict"],
    }
    drawn |= {f"p_{kind}": point[f"p_{kind}"] for kind in KINDS}
    if "id" in point:
        drawn |= {
            "id": str(point["id"]),
            "candidates": " | ".join(map(str, point["candidates"])),
            "suggestion": "no class" if point["suggestion"] is None else str(point["suggestion"]),
        }
    return drawn


def draw_classes(findings: Findings) -> Spec | None:
    """Draw how often the truth is outside the set, by class."""
    import altair as alt

    shown = [row for row in findings["class_table"] if row["estimated"] >= 1][:BARS]
    if not shown or not any(row["missed"] for row in shown):
        return None
    shown = sorted(shown, key=lambda row: -row["share"])
    values = [{**row, "label": str(row["label"])} for row in shown]
    base, data = new_chart("classes", values, BAR * len(values))
    labels = alt.Axis(labelLimit=120, domain=False, ticks=False)
    bars = base.mark_bar(color=KINDS["closed"]).encode(
        x=alt.X("share:Q", title="of the rows of the class", axis=alt.Axis(format="%")),
        y=alt.Y("label:N", sort=None, title=None, axis=labels),
        tooltip=[
            alt.Tooltip("label:N", title="class"),
            alt.Tooltip("share:Q", title="outside", format=".1%"),
            alt.Tooltip("missed:Q", title="rows outside", format=",.1f"),
            alt.Tooltip("estimated:Q", title="rows", format=",.0f"),
        ],
    )
    return finish_chart(bars, data, "Share of the rows of each class with the truth outside.")


def draw_annotators(findings: Findings) -> Spec | None:
    """Draw the error rates of annotators with their intervals."""
    import altair as alt

    people = (findings["annotators"] or [])[:BARS]
    if len(people) < 2:
        return None
    values = [
        {key: entry.get(key) for key in ("outside", "low", "high", "true_outside", "answers")}
        | {"name": str(entry["name"])}
        for entry in people
    ]
    base, data = new_chart("annotators", values, BAR * len(values))
    labels = alt.Axis(labelLimit=120, domain=False, ticks=False)
    y = alt.Y("name:N", sort=None, title=None, axis=labels)
    tips = [
        alt.Tooltip("name:N"),
        *(alt.Tooltip(f"{key}:Q", format=".1%") for key in ("outside", "low", "high")),
        alt.Tooltip("answers:Q", format=",d"),
    ]
    x = alt.X("low:Q", title="answers without the truth", axis=alt.Axis(format="%"))
    colour = KINDS["closed"]
    ranges = base.mark_rule(strokeWidth=4, opacity=0.45, color=colour).encode(
        x=x, x2="high:Q", y=y, tooltip=tips
    )
    points = base.mark_point(filled=True, size=90, opacity=1, color=colour).encode(
        x="outside:Q", y=y, tooltip=tips
    )
    layers = ranges + points
    if any(row["true_outside"] is not None for row in values):
        layers += base.mark_tick(thickness=3, color=KINDS["normal"], size=16).encode(
            x="true_outside:Q", y=y, tooltip=alt.Tooltip("true_outside:Q", format=".1%")
        )
    return finish_chart(layers, data, "Error rates of annotators with 90 % intervals.")


def draw_confusion(findings: Findings, number: int) -> Spec | None:
    """Draw the confusion matrix of one of the annotators that have one."""
    import altair as alt

    people = [entry for entry in findings["annotators"] or [] if entry["confusion"]]
    if number >= len(people):
        return None
    person = people[number]
    labels = [str(label) for label in findings["labels"]]
    values = _cells(person["confusion"], labels)
    base, data = new_chart(f"confusion{number}", values, SIDE)
    domain = [label for label in (*labels, NONE) if any(cell["given"] == label for cell in values)]
    small: dict[str, Any] = {"labelLimit": 70, "labelFontSize": 10, "domain": False, "ticks": False}
    scale = alt.Scale(domain=["right", "wrong"], range=[KINDS["normal"], KINDS["closed"]])
    tiles = base.mark_rect(stroke="#8884", strokeWidth=0.5).encode(
        x=alt.X("given:N", sort=domain, title="answer", axis=alt.Axis(labelAngle=-90, **small)),
        y=alt.Y("truth:N", sort=labels, title="probable truth", axis=alt.Axis(**small)),
        color=alt.Color("kind:N", scale=scale, legend=None),
        opacity=alt.Opacity(
            "share:Q",
            scale=alt.Scale(type="sqrt", domain=[0, 1], range=[0, 1]),
            legend=None,
        ),
        tooltip=[
            alt.Tooltip("truth:N"),
            alt.Tooltip("given:N", title="answer"),
            alt.Tooltip("rows:Q", title="answers", format=",.1f"),
            alt.Tooltip("share:Q", title="of this truth", format=".1%"),
        ],
    )
    return finish_chart(tiles, data, f"Answers of {person['name']}, by the probable truth.")


def _cells(matrix: list[list[float]], labels: list[str]) -> list[dict[str, Any]]:
    """Return the cells of a confusion matrix; "none" only if it was an answer."""
    given = [*labels, NONE] if any(row[-1] for row in matrix) else labels
    return [
        {
            "truth": truth,
            "given": answer,
            "rows": row[j],
            "share": row[j] / total if (total := sum(row)) else 0.0,
            "kind": "right" if truth == answer else "wrong",
        }
        for truth, row in zip(labels, matrix, strict=True)
        for j, answer in enumerate(given)
    ]


def draw_training(findings: Findings) -> Spec | None:
    """Draw the training loss by epoch."""
    if len(findings["history"]) < 2:
        return None
    return _curve(findings["history"], ["loss"], "loss", "Training loss by epoch.")


def draw_rates(findings: Findings) -> Spec | None:
    """Draw the shares that the training used, by epoch."""
    rows = [
        {"epoch": row["epoch"], "closed": row["rate_closed"], "open": row["rate_open"]}
        for row in findings["history"]
        if "rate_closed" in row
    ]
    if len(rows) < 2:
        return None
    return _curve(rows, ["closed", "open"], "share of the rows", "Shares in use, by epoch.")


def _curve(rows: list[dict[str, Any]], names: list[str], title: str, text: str) -> Spec:
    import altair as alt

    values = [
        {"epoch": row["epoch"], "value": row[name], "verdict": name}
        for row in rows
        for name in names
    ]
    base, data = new_chart("curve", values, 180)
    several = len(names) > 1
    line = base.mark_line(strokeWidth=2.5).encode(
        x=alt.X("epoch:Q", axis=alt.Axis(format="d")),
        y=alt.Y("value:Q", title=title, axis=alt.Axis(format="%" if several else "~g")),
        color=_verdict_colour(names) if several else alt.value(KINDS["normal"]),
        tooltip=["epoch:Q", alt.Tooltip("value:Q", format=".4f")],
    )
    return finish_chart(line, data, text)


def _verdict_colour(kinds: list[str]) -> alt.Color:
    import altair as alt

    scale = alt.Scale(domain=kinds, range=[KINDS[kind] for kind in kinds])
    return alt.Color("verdict:N", scale=scale)


# Name -> function from the findings to a chart, or to None if there is nothing to draw. A chart
# that has no place of its own in template.html appears in the section "More charts".
CHARTS: dict[str, Callable[[Findings], Spec | None]] = {
    "shares": draw_shares,
    "review": draw_review,
    "losses": draw_losses,
    "classes": draw_classes,
    "annotators": draw_annotators,
    **{f"confusion-{k}": partial(draw_confusion, number=k) for k in range(MATRICES)},
    "training": draw_training,
    "rates": draw_rates,
}
