"""The charts of the report as Vega-Lite specifications. Text and lines get their colours from the page's styles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

KINDS = {
    "normal": "#0072b2",
    "closed": "#d55e00",
    "open": "#009e73",
}  # told apart without colour vision, too
SHAPES = {"normal": "circle", "closed": "triangle-up", "open": "square"}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', Arial, sans-serif"  # the page's: texts are measured
TICKS = 6  # of an axis, about
CLIP = 20.0  # losses above are drawn at the edge


def charts(findings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> specification, of those that there is something to draw for."""
    made = {"shares": _shares(findings["shares"]), "review": _review(findings["review"])}
    if findings["points"]:
        made["losses"] = _losses(findings["points"])
    if len(findings["history"]) > 1:
        made["training"] = _curve(findings["history"], ["loss"], "loss", "Training loss by epoch.")
    rates = [
        {"epoch": row["epoch"], "closed": row["rate_closed"], "open": row["rate_open"]}
        for row in findings["history"]
        if "rate_closed" in row
    ]
    if len(rates) > 1:
        made["rates"] = _curve(
            rates, ["closed", "open"], "share of the rows", "Shares in use, by epoch."
        )
    return made


def _chart(
    name: str, values: list[dict[str, Any]], height: int
) -> tuple[alt.Chart, dict[str, Any]]:
    """An empty chart as wide as its place, and the data that it names (altair would check each value)."""
    import altair as alt

    return alt.Chart(alt.NamedData(name)).properties(width="container", height=height), {
        name: values
    }


def _spec(chart: Any, datasets: dict[str, Any], text: str) -> dict[str, Any]:
    styled = chart.properties(description=text, background="transparent").configure(font=FONT)
    styled = styled.configure_view(stroke=None)
    styled = styled.configure_axis(
        labelFontSize=12, titleFontSize=12, titleFontWeight="normal", tickCount=TICKS
    )
    styled = styled.configure_legend(labelFontSize=12, orient="top", title=None, symbolSize=90)
    return {**styled.to_dict(), "datasets": datasets}


def _colour(kinds: list[str]) -> alt.Color:
    import altair as alt

    return alt.Color(
        "verdict:N", scale=alt.Scale(domain=kinds, range=[KINDS[kind] for kind in kinds])
    )


def _shares(shares: dict[str, dict[str, float]]) -> dict[str, Any]:
    import altair as alt

    names = {
        "outside": "outside (together)",
        "closed": "another class (closed)",
        "open": "no class (open)",
    }
    colours = ["#7d7d7d", KINDS["closed"], KINDS["open"]]
    values = [{"name": names[key], **entry} for key, entry in shares.items()]
    base, data = _chart("shares", values, 110)
    colour = alt.Color(
        "name:N", scale=alt.Scale(domain=[*names.values()], range=colours), legend=None
    )
    y = alt.Y(
        "name:N",
        sort=[*names.values()],
        title=None,
        axis=alt.Axis(labelLimit=200, labelPadding=9, domain=False, ticks=False),
    )
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
    return _spec(ranges + points, data, text)


def _review(curve: list[dict[str, Any]]) -> dict[str, Any]:
    """Long form: one line for what to expect, one for a review in random order, one for what there is, if known."""
    import altair as alt

    names = {"expected": "expected, most suspicious first", "blind": "expected, in random order"}
    if "found" in curve[0]:
        names |= {"found": "there really are (truth column)"}
    values = [
        {"rows": row["rows"], "errors": row[key], "line": name}
        for row in curve
        for key, name in names.items()
    ]
    base, data = _chart("review", values, 280)
    looks = alt.Scale(
        domain=[*names.values()], range=["#d55e00", "#7d7d7d", "#0072b2"][: len(names)]
    )
    dashes = alt.Scale(domain=[*names.values()], range=[[1, 0], [4, 4], [8, 3]][: len(names)])
    line = base.mark_line(strokeWidth=2.5).encode(
        x=alt.X("rows:Q", title="rows reviewed (N)", axis=_counts(curve[-1]["rows"])),
        y=alt.Y(
            "errors:Q",
            title="errors among them (M)",
            axis=_counts(max(row["errors"] for row in values)),
        ),
        color=alt.Color("line:N", scale=looks, legend=alt.Legend(labelLimit=260, columns=1)),
        strokeDash=alt.StrokeDash("line:N", scale=dashes),
        tooltip=[
            alt.Tooltip("line:N"),
            alt.Tooltip("rows:Q", format=",d"),
            alt.Tooltip("errors:Q", format=",.0f"),
        ],
    )
    return _spec(line, data, "How many errors to expect among the first N rows of a review.")


def _counts(most: float) -> alt.Axis:
    """An axis of whole numbers: few are named one by one, since ticks of their own would lie between them."""
    import altair as alt

    named: dict[str, Any] = {"values": list(range(math.ceil(most) + 1))} if most <= TICKS else {}
    return alt.Axis(format=",d", **named)


def _losses(points: list[dict[str, Any]]) -> dict[str, Any]:
    import altair as alt

    values = [_point(point) for point in points]
    base, data = _chart("losses", values, 420)
    tips = [
        alt.Tooltip(name, type="nominal")
        for name in ("id", "candidates", "suggestion")
        if name in values[0]
    ]
    tips += [alt.Tooltip(f"p_{kind}", type="quantitative", format=".2f") for kind in KINDS]
    axis = alt.Scale(type="sqrt", nice=False, zero=False, padding=8)
    shape = alt.Shape("verdict:N", scale=alt.Scale(domain=[*SHAPES], range=[*SHAPES.values()]))
    dots = base.mark_point(filled=True, size=36, opacity=0.75).encode(
        x=alt.X("inside:Q", title="inside loss: of the best candidate", scale=axis),
        y=alt.Y("outside:Q", title="outside loss: of the best other class", scale=axis),
        color=_colour([*KINDS]),
        shape=shape,
        tooltip=tips,
    )
    return _spec(dots, data, "Inside against outside loss of the rows, by verdict.")


def _point(point: dict[str, Any]) -> dict[str, Any]:
    """What is drawn and told of a row; texts only if the point has them."""
    drawn = {
        "inside": min(point["inside"], CLIP),
        "outside": min(point["outside"], CLIP),
        "verdict": point["verdict"],
    }
    drawn |= {f"p_{kind}": point[f"p_{kind}"] for kind in KINDS}
    if "id" in point:
        suggestion = "no class" if point["suggestion"] is None else str(point["suggestion"])
        drawn |= {
            "id": str(point["id"]),
            "candidates": " | ".join(map(str, point["candidates"])),
            "suggestion": suggestion,
        }
    return drawn


def _curve(rows: list[dict[str, Any]], names: list[str], title: str, text: str) -> dict[str, Any]:
    import altair as alt

    values = [
        {"epoch": row["epoch"], "value": row[name], "verdict": name}
        for row in rows
        for name in names
    ]
    base, data = _chart("curve", values, 180)
    colour = _colour(names) if len(names) > 1 else alt.value(KINDS["normal"])
    line = base.mark_line(strokeWidth=2.5).encode(
        x=alt.X("epoch:Q", axis=alt.Axis(format="d")),
        y=alt.Y("value:Q", title=title, axis=alt.Axis(format="%" if len(names) > 1 else "~g")),
        color=colour,
        tooltip=["epoch:Q", alt.Tooltip("value:Q", format=".4f")],
    )
    return _spec(line, data, text)
