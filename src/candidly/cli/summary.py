"""What `fit` and `audit` say on the terminal: the shares, the worst rows, what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.console.terminal import counted, grid, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

WORST = 5  # rows of each kind
LARGE = ("points", "review", "history", "made")  # findings that are there for the report


def summary(out: Path, findings: dict[str, Any]) -> dict[str, Any]:
    """For `--json`: the findings without pictures and curves."""
    kept = {name: value for name, value in findings.items() if name not in LARGE}
    kept["suspects"] = {
        kind: [
            {name: value for name, value in entry.items() if name != "preview"} for entry in entries
        ]
        for kind, entries in findings["suspects"].items()
    }
    return {"run": str(out), "report": str(out / "report.html"), **kept}


def render(out: Path, findings: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    size = f"{counted(findings['rows'], 'row')}, {counted(findings['classes'], 'class', 'classes')}"
    title = f"{printable(findings['file'])}: {size}"
    parts: list[RenderableType] = [Text(title, style="bold"), _shares(findings)]
    if outputs := findings["made"].get("Outputs"):
        parts.append(Text(f"  {printable(outputs)}"))
    parts += [Text(f"  {line}", style="yellow") for line in findings["notes"]]
    parts += [Text(f"  {line}") for line in _evaluation(findings["evaluation"])]
    for kind, heading in (
        ("closed", "The truth is probably another class"),
        ("open", "Probably none of the classes"),
    ):
        if entries := [entry for entry in findings["suspects"][kind] if entry["verdict"] == kind][
            :WORST
        ]:
            told = f"{heading}: {len(entries):,} of {findings['verdicts'][kind]:,}"
            parts += [Text(), Text(told, style="bold"), _rows(entries, kind)]
    if people := findings["annotators"]:
        parts += [
            Text(),
            Text("Annotators, by how often the truth is probably outside their sets", style="bold"),
        ]
        parts.append(_people(people[:WORST]))
    parts += [
        Text(),
        Text("Next", style="bold"),
        *(Text(f"  {line}") for line in _next(out, findings)),
    ]
    return Group(*parts)


def _shares(findings: dict[str, Any]) -> RenderableType:
    names = {
        "outside": "  truth outside the candidates",
        "closed": "    another class (closed)",
        "open": "    no class (open)",
    }
    rows = []
    for key, name in names.items():
        share, low, high = (
            f"{100 * findings['shares'][key][part]:.1f} %" for part in ("share", "low", "high")
        )
        rows.append((name, share, f"{low} to {high}"))
    return grid(rows, "lrl")


def _evaluation(quality: dict[str, Any] | None) -> list[str]:
    if quality is None:
        return []
    known = f"by the truth of {counted(quality['known'], 'row')}: {quality['outside']:.1%} outside"
    accuracy = "" if quality["accuracy"] is None else f", accuracy {quality['accuracy']:.1%}"
    if quality["ap_outside"] is None:
        return [f"{known}{accuracy}"]
    found = f"{quality['ap_outside']:.3f}, by the mass outside the candidates alone {quality['ap_naive']:.3f}"
    return [f"{known}{accuracy}", f"average precision of finding them: {found}"]


def _rows(entries: list[dict[str, Any]], kind: str) -> RenderableType:
    rows = []
    for entry in entries:
        candidates = printable(" | ".join(map(str, entry["candidates"])))
        cut = candidates if len(candidates) <= 48 else candidates[:47] + "…"
        better = (
            ""
            if kind == "open" or entry["suggestion"] is None
            else f"→ {printable(entry['suggestion'])}"
        )
        rows.append(
            (f"  {printable(entry['id'])}", cut, better, f"P({kind}) = {entry[f'p_{kind}']:.2f}")
        )
    return grid(rows, "lllr")


def _people(entries: list[dict[str, Any]]) -> RenderableType:
    rows = []
    for entry in entries:
        missed = ", ".join(printable(miss["label"]) for miss in entry["missed"])
        told = f"{entry['answers']:,} answers of {entry['width']:.2f} labels"
        rows.append(
            (
                f"  {printable(entry['name'])}",
                f"{entry['outside']:.1%}",
                told,
                missed and f"misses {missed}",
            )
        )
    return grid(rows, "lrll")


def _next(out: Path, findings: dict[str, Any]) -> list[str]:
    verdicts = findings["verdicts"]
    lines = [f"look at            {out / 'report.html'}   (all rows: {out / 'audit.csv'})"]
    if verdicts["closed"] or verdicts["open"]:
        lines.append(f"corrected sets     candidly export {out} --out FILE")
    if findings["history"]:
        lines.append(
            f"classify others    candidly predict {out} FILE --out predicted.csv --reject 0.05"
        )
    return lines


def predicted(done: dict[str, Any]) -> str:
    """One line for the file, and one for each of the most frequent labels."""
    labels = sorted(done["labels"].items(), key=lambda item: -item[1])
    lines = [f"  {printable(name):24} {count:>9,}" for name, count in labels[:20]]
    return "\n".join([f"{done['out']}: {counted(done['rows'], 'row')}", *lines])
