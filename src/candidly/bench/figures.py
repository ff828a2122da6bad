"""The paper's figures, drawn from numbers that the results of runs hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from candidly.kinds import KINDS
from candidly.scores import log_softmax, mean_losses, wooden_losses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {
    "normal": "#0072b2",
    "closed": "#d55e00",
    "open": "#7a7a7a",
}  # safe for colour-blind readers, and in print
SIDES = {"inside": ("candidates", "#0072b2"), "outside": ("non-candidates", "#d55e00")}
LOSSES = {"mean": mean_losses, "wooden": wooden_losses}
BINS = 40
WIDTH, TEXT = 3.4, 7  # inches of a column, points of a letter
LETTERS = {"gamma": "gamma / true shares", "phi": "phi (epochs)"}

# Numbers


def loss_histograms(
    logits: np.ndarray, candidates: np.ndarray, kinds: np.ndarray
) -> dict[str, Any]:
    """For mean and wooden losses: the upper edge of equal bins from 0, and the shares of each kind and side in them.

    The largest hundredth of the losses goes to the last bin; infinite losses (of full sets) are left out.
    """
    found: dict[str, Any] = {}
    for name, losses in LOSSES.items():
        sides = dict(
            zip(
                SIDES,
                losses(log_softmax(np.asarray(logits, dtype=np.float64)), candidates),
                strict=True,
            )
        )
        every = np.concatenate(list(sides.values()))
        top = float(np.quantile(every[np.isfinite(every)], 0.99))
        found[name] = {"top": round(top, 4)}
        for number, kind in enumerate(KINDS):
            rows = {
                side: values[(kinds == number) & np.isfinite(values)]
                for side, values in sides.items()
            }
            found[name][kind] = {side: _shares(values, top) for side, values in rows.items()}
    return found


def _shares(values: np.ndarray, top: float) -> list[float]:
    counts = np.histogram(np.clip(values, 0, top), np.linspace(0, top, BINS + 1))[0]
    return (counts / max(1, len(values))).round(5).tolist()


def typical_examples(
    truth: Any, candidates: np.ndarray, groups: Any, each: int = 3
) -> list[dict[str, Any]]:
    """The first rows of each kind that were recognised as such: what is drawn is not chosen by its looks."""
    picks = []
    for number, kind in enumerate(KINDS):
        rows = np.flatnonzero((truth.kinds == number) & np.asarray(groups[number]))[:each]
        for row in rows.tolist():
            members = np.flatnonzero(candidates[row]).tolist()
            told = {"row": row, "source": int(truth.source[row]), "label": int(truth.labels[row])}
            picks.append({"kind": kind, **told, "candidates": members})
    return picks


# Pictures


def losses_figure(histograms: dict[str, Any]) -> Figure:
    """Distributions of the inside and outside losses of the three kinds, under mean and under wooden losses."""
    figure, axes = _panels(3, 2, (WIDTH, 3.9), sharex="col")
    for column, (name, found) in zip(axes.T, histograms.items(), strict=True):
        edges = np.linspace(0, found["top"], BINS + 1)
        for axis, kind in zip(column, KINDS, strict=True):
            for side, (label, colour) in SIDES.items():
                axis.stairs(found[kind][side], edges, color=colour, fill=True, alpha=0.45)
                axis.stairs(found[kind][side], edges, color=colour, lw=1, label=label)
            axis.set_title(f"{kind}: {name} loss", fontsize=TEXT)
        column[-1].set_xlabel("loss (last bin: all above)", fontsize=TEXT)
    axes[1, 0].set_ylabel("share of examples", fontsize=TEXT)
    return _legend_below(figure, axes[0, 0])


def precision_figure(curves: dict[str, dict[str, list[float | None]]], warmup: int) -> Figure:
    """Precision of the three selected groups per epoch, one panel per run; a dotted line marks the end of warm-up."""
    rows = -(-len(curves) // 2)
    figure, axes = _panels(rows, 2, (WIDTH, 1.5 * rows + 0.4), sharex=True, sharey=True)
    for axis, (name, curve) in zip(axes.flat, curves.items(), strict=True):
        for kind, style in zip(KINDS, ("-", "--", "-."), strict=True):
            points = [
                (epoch, p)
                for epoch, p in enumerate(curve[f"precision_{kind}"], start=1)
                if p is not None
            ]
            axis.plot(*zip(*points, strict=True), style, color=COLOURS[kind], label=kind, lw=1.3)
        axis.axvline(warmup + 0.5, color="black", ls=":", lw=0.9)
        axis.set_title(name, fontsize=TEXT)
        axis.set_ylim(0, 1.02)
    for axis in axes[:, 0]:
        axis.set_ylabel("precision", fontsize=TEXT)
    for axis in axes[-1]:
        axis.set_xlabel("epoch", fontsize=TEXT)
    return _legend_below(figure, axes[0, 0])


def params_figure(sweeps: dict[str, list[dict[str, Any]]]) -> Figure:
    """Accuracy (left) and precision of the groups (right) against each hyper-parameter; its default is ringed."""
    figure, axes = _panels(len(sweeps), 2, (WIDTH, 1.15 * len(sweeps) + 0.4), sharey="col")
    for row, (name, points) in zip(axes, sweeps.items(), strict=True):
        places = range(len(points))
        row[0].plot(places, [point["score"] for point in points], "-o", color="black", ms=3, lw=1.2)
        for place in (k for k, point in enumerate(points) if point["default"]):
            row[0].plot(
                place, points[place]["score"], "o", ms=8, mfc="none", color="black", mew=0.9
            )
        for kind, style in zip(KINDS, ("-o", "--s", "-.^"), strict=True):
            values = [point["precision"][kind] for point in points]
            row[1].plot(places, values, style, color=COLOURS[kind], label=kind, ms=3, lw=1.2)
        for axis in row:
            axis.set_xticks(places, [f"{point['value']:g}" for point in points])
            axis.set_xlabel(LETTERS.get(name, name), fontsize=TEXT, labelpad=1)
    axes[0, 0].set_title("accuracy (%)", fontsize=TEXT)
    axes[0, 1].set_title("precision of the groups", fontsize=TEXT)
    axes[0, 1].set_ylim(0, 1.02)
    return _legend_below(figure, axes[0, 1])


def examples_figure(
    examples: list[dict[str, Any]], images: list[np.ndarray], classes: tuple[str, ...]
) -> Figure:
    """Each example with the model's probability of every class: candidates filled, non-candidates hatched.

    Bars in the order of the classes; the true one has a triangle above it.
    """
    columns = [
        [k for k, example in enumerate(examples) if example["kind"] == kind] for kind in KINDS
    ]
    rows = max(1, *map(len, columns))
    figure, axes = _panels(2 * rows, 3, (WIDTH, 1.75 * rows + 0.5), height_ratios=(1, 0.8) * rows)
    for axis in axes.flat:
        axis.axis("off")
    for column, members in enumerate(columns):
        for row, k in enumerate(members):
            above, below, example = axes[2 * row, column], axes[2 * row + 1, column], examples[k]
            above.imshow(images[k], cmap="gray", interpolation="nearest")
            truth = classes[example["label"]] if example["label"] >= 0 else "no class"
            above.set_title(f"{example['kind']}: {truth}", fontsize=TEXT)
            _bars(below, example, classes if row == len(members) - 1 else [""] * len(classes))
    handles = (
        axes[1, next(c for c, members in enumerate(columns) if members)] if examples else axes[1, 0]
    )
    return _legend_below(figure, handles)


def _bars(axis: Any, example: dict[str, Any], names: Sequence[str]) -> None:
    inside, probs = (
        np.isin(np.arange(len(names)), example["candidates"]),
        np.array(example["probs"]),
    )
    for side, mask, hatch in (("inside", inside, None), ("outside", ~inside, "//////")):
        face, colour = SIDES[side][1] if hatch is None else "none", SIDES[side][1]
        axis.bar(
            np.flatnonzero(mask),
            probs[mask],
            0.8,
            fc=face,
            ec=colour,
            lw=0.6,
            hatch=hatch,
            label=SIDES[side][0],
        )
    if example["label"] >= 0:
        axis.plot(
            example["label"], min(probs[example["label"]] + 0.12, 1.1), "v", ms=3, color="black"
        )
    axis.axis("on")
    axis.set_ylim(0, 1.2)
    axis.set_yticks([0, 1])
    axis.set_xticks(range(len(names)), names, rotation=90)


def _panels(
    rows: int, columns: int, size: tuple[float, float], **options: Any
) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.tick_params(labelsize=6)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend_below(figure: Figure, axis: Any) -> Figure:
    handles = axis.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=TEXT, frameon=False)
    return figure
