"""What `fit`, `audit` and `predict` print: shares, the worst rows, annotators, what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from candidly.console.terminal import counted, grid, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

# Rows of each kind that are listed, and characters of their candidates.
WORST = 5
WIDTH = 48
# Most frequent labels of predictions that are listed.
LABELS = 20
# Findings that only the report needs.
REPORT_ONLY = ("points", "review", "history", "made")
LISTS = ("suspects", "open_suspects")
NO_VERDICTS = "The model knows no more than chance: nothing can be said about single rows."


def summary(out: Path, findings: dict[str, Any]) -> dict[str, Any]:
    """Return the findings for `--json`: without pictures and curves."""
    shown = {name: value for name, value in findings.items() if name not in REPORT_ONLY}
    shown |= {name: [_without_preview(entry) for entry in findings[name]] for name in LISTS}
    return {"run": str(out), "report": str(out / "report.html"), **shown}


def _without_preview(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "preview"}


def render_summary(out: Path, findings: dict[str, Any]) -> RenderableType:
    """Return the findings for the terminal.

    Parameters
    ----------
    out : Path
        The RUN folder.
    findings : dict
        What is in its `findings.json`.
    """
    from rich.console import Group
    from rich.text import Text

    size = f"{counted(findings['rows'], 'row')}, {counted(findings['classes'], 'class', 'classes')}"
    title = f"{printable(findings['file'])}: {size}"
    parts: list[RenderableType] = [Text(title, style="bold")]
    if findings["reliable"]:
        parts.append(_shares(findings))
    else:
        parts.append(Text(f"  {NO_VERDICTS}", style="yellow"))
    if outputs := findings["made"].get("Outputs"):
        parts.append(Text(f"  {printable(outputs)}"))
    parts += [Text(f"  {line}", style="yellow") for line in findings["notes"]]
    parts += [Text(f"  {line}") for line in _explained(findings)]
    for heading, table in _tables(findings):
        parts += [Text(), Text(heading, style="bold"), table]
    parts += [Text(), Text("Next", style="bold")]
    parts += [Text(f"  {line}") for line in _next_steps(out, findings)]
    return Group(*parts)


def _explained(findings: dict[str, Any]) -> list[str]:
    """Sentences on the process, the agreement of annotators, and the known truth."""
    lines = []
    if findings["reliable"]:
        lines.append(f"how sets arise: {findings['process']['words']}")
    if agreement := findings["agreement"]:
        lines.append(_agreement(agreement))
    if consensus := findings["consensus"]:
        lines.append(
            f"consensus differs from the majority vote in {consensus['differ']:,} of "
            f"{counted(consensus['rows'], 'row')}"
        )
    return lines + _evaluation(findings["evaluation"])


def _agreement(facts: dict[str, Any]) -> str:
    alpha = "not defined" if facts["alpha"] is None else f"{facts['alpha']:.2f}"
    return f"Krippendorff's alpha of the annotators: {alpha} (1: full agreement, 0: chance)"


def _tables(findings: dict[str, Any]) -> list[tuple[str, RenderableType]]:
    """(heading, table) of the worst rows, and of the worst annotators."""
    found: list[tuple[str, RenderableType]] = []
    if suspects := findings["suspects"][:WORST]:
        heading = f"Most suspicious rows: {len(suspects):,} of {findings['rows']:,}"
        found.append((heading, _rows(suspects, "outside")))
    is_open = [entry for entry in findings["open_suspects"] if entry["verdict"] == "open"]
    if worst := is_open[:WORST]:
        heading = (
            f"Probably none of the classes: {len(worst):,} of {findings['verdicts']['open']:,}"
        )
        found.append((heading, _rows(worst, "open")))
    if people := findings["annotators"]:
        heading = "Annotators, by their estimated error rate"
        found.append((heading, _annotators(people[:WORST])))
    return found


def _shares(findings: dict[str, Any]) -> RenderableType:
    names = {
        "outside": "  truth outside the candidates",
        "closed": "    another class (closed)",
        "open": "    no class (open)",
    }
    rows = []
    for key, name in names.items():
        found = findings["shares"][key]
        share, low, high = (f"{100 * found[part]:.1f} %" for part in ("share", "low", "high"))
        rows.append((name, share, f"{low} to {high}"))
    return grid(rows, "lrl")


def _evaluation(quality: dict[str, Any] | None) -> list[str]:
    if quality is None:
        return []
    known = f"true labels of {counted(quality['known'], 'row')}: {quality['outside']:.1%} outside"
    accuracy = "" if quality["accuracy"] is None else f", accuracy {quality['accuracy']:.1%}"
    lines = [f"{known}{accuracy}"]
    if quality["ap_outside"] is not None:
        lines.append(
            f"average precision of finding them: {quality['ap_outside']:.3f} (baseline, model "
            f"probability outside the set: {quality['ap_naive']:.3f})"
        )
    return lines


def _rows(entries: list[dict[str, Any]], kind: str) -> RenderableType:
    return grid([_row(entry, kind) for entry in entries], "lllr")


def _row(entry: dict[str, Any], kind: str) -> tuple[str, str, str, str]:
    candidates = printable(" | ".join(map(str, entry["candidates"])))
    if len(candidates) > WIDTH:
        candidates = candidates[: WIDTH - 1] + "…"
    suggestion = "→ none of the classes" if entry["verdict"] == "open" else ""
    if kind != "open" and entry["verdict"] != "open" and entry["suggestion"] is not None:
        suggestion = f"→ {printable(entry['suggestion'])}"
    probability = f"P({kind}) = {entry[f'p_{kind}']:.2f}"
    return f"  {printable(entry['id'])}", candidates, suggestion, probability


def _annotators(entries: list[dict[str, Any]]) -> RenderableType:
    rows = []
    for entry in entries:
        missed = ", ".join(printable(miss["label"]) for miss in entry["missed"])
        rows.append(
            (
                f"  {printable(entry['name'])}",
                f"{entry['outside']:.1%}",
                f"({entry['low']:.1%} to {entry['high']:.1%})",
                f"{entry['answers']:,} answers, {entry['width']:.2f} labels each",
                missed and f"most often misses {missed}",
            )
        )
    return grid(rows, "lrlll")


def _next_steps(out: Path, findings: dict[str, Any]) -> list[str]:
    verdicts = findings["verdicts"]
    lines = [f"look at            {out / 'report.html'}   (all rows: {out / 'audit.csv'})"]
    if not findings["reliable"]:
        return lines
    if verdicts["closed"] or verdicts["open"]:
        lines.append(f"corrected sets     candidly export {out} --out FILE")
    if findings["history"]:
        lines.append(
            f"classify others    candidly predict {out} FILE --out predicted.csv --reject 0.05"
        )
    return lines


def render_predictions(done: dict[str, Any]) -> str:
    """Return one line for the file, and one for each of the most frequent labels."""
    labels = sorted(done["labels"].items(), key=lambda item: -item[1])
    lines = [f"  {printable(name):24} {count:>9,}" for name, count in labels[:LABELS]]
    return "\n".join([f"{done['out']}: {counted(done['rows'], 'row')}", *lines])
