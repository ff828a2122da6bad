"""The paper's figures, drawn from numbers that the results of runs hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from candidly.corruption import KINDS
from candidly.scores import log_softmax, mean_losses, wooden_losses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"normal": "#0072b2", "closed": "#d55e00", "open": "#7a7a7a"}  # safe for colour-blind readers, and in print
SIDES = {"inside": ("candidates", "#0072b2"), "outside": ("non-candidates", "#d55e00")}
LOSSES = {"mean": mean_losses, "wooden": wooden_losses}
BINS = 40

# Numbers


def loss_histograms(logits: np.ndarray, candidates: np.ndarray, kinds: np.ndarray) -> dict[str, Any]:
    """For mean and wooden losses: the upper edge of equal bins from 0, and the shares of each kind and side in them.

    The largest hundredth of the losses goes to the last bin; infinite losses (of full sets) are left out.
    """
    found: dict[str, Any] = {}
    for name, losses in LOSSES.items():
        sides = dict(zip(SIDES, losses(log_softmax(np.asarray(logits, dtype=np.float64)), candidates), strict=True))
        every = np.concatenate(list(sides.values()))
        top = float(np.quantile(every[np.isfinite(every)], 0.99))
        found[name] = {"top": round(top, 4)}
        for number, kind in enumerate(KINDS):
            rows = {side: values[(kinds == number) & np.isfinite(values)] for side, values in sides.items()}
            found[name][kind] = {side: _shares(values, top) for side, values in rows.items()}
    return found


def _shares(values: np.ndarray, top: float) -> list[float]:
    counts = np.histogram(np.clip(values, 0, top), np.linspace(0, top, BINS + 1))[0]
    return (counts / max(1, len(values))).round(5).tolist()


def typical_examples(truth: Any, candidates: np.ndarray, groups: Any, each: int = 3) -> list[dict[str, Any]]:
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
    figure, axes = _panels(2, 3, (7.2, 4.0), sharex="row", sharey="row")
    for row, (name, found) in zip(axes, histograms.items(), strict=True):
        edges = np.linspace(0, found["top"], BINS + 1)
        for axis, kind in zip(row, KINDS, strict=True):
            for side, (label, colour) in SIDES.items():
                axis.stairs(found[kind][side], edges, color=colour, fill=True, alpha=0.45)
                axis.stairs(found[kind][side], edges, color=colour, lw=1, label=label)
            axis.set_title(f"{kind}: {name} loss", fontsize=9)
        row[0].set_ylabel("share of examples", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("loss", fontsize=8)
    return _legend_below(figure, axes[0, 0])


def precision_figure(curves: dict[str, dict[str, list[float | None]]], warmup: int) -> Figure:
    """Precision of the three selected groups per epoch, one panel per run; a dotted line marks the end of warm-up."""
    figure, axes = _panels(1, len(curves), (max(3.6, 2.4 * len(curves)), 2.7), sharey=True)
    for axis, (name, curve) in zip(axes[0], curves.items(), strict=True):
        for kind, style in zip(KINDS, ("-", "--", "-."), strict=True):
            points = [(epoch, p) for epoch, p in enumerate(curve[f"precision_{kind}"], start=1) if p is not None]
            axis.plot(*zip(*points, strict=True), style, color=COLOURS[kind], label=kind, lw=1.6)
        axis.axvline(warmup + 0.5, color="black", ls=":", lw=0.9)
        axis.set_title(name, fontsize=9)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("epoch", fontsize=8)
    axes[0, 0].set_ylabel("precision of the selection", fontsize=8)
    return _legend_below(figure, axes[0, 0])


def params_figure(sweeps: dict[str, list[dict[str, Any]]]) -> Figure:
    """Accuracy (above) and precision of the groups (below) against each hyper-parameter; its default is ringed."""
    figure, axes = _panels(2, len(sweeps), (1.75 * len(sweeps), 3.8), sharex="col", sharey="row")
    for column, (name, points) in zip(axes.T, sweeps.items(), strict=True):
        places = range(len(points))
        column[0].plot(places, [point["score"] for point in points], "-o", color="black", ms=3.5, lw=1.2)
        for place in (k for k, point in enumerate(points) if point["default"]):
            column[0].plot(place, points[place]["score"], "o", ms=9, mfc="none", color="black", mew=0.9)
        for kind, style in zip(KINDS, ("-o", "--s", "-.^"), strict=True):
            values = [point["precision"][kind] for point in points]
            column[1].plot(places, values, style, color=COLOURS[kind], label=kind, ms=3.5, lw=1.2)
        column[1].set_xticks(places, [f"{point['value']:g}" for point in points])
        column[1].set_xlabel(name, fontsize=8)
        column[1].set_ylim(0, 1.02)
    axes[0, 0].set_ylabel("accuracy (%)", fontsize=8)
    axes[1, 0].set_ylabel("precision", fontsize=8)
    return _legend_below(figure, axes[1, 0])


def examples_figure(examples: list[dict[str, Any]], images: list[np.ndarray], classes: tuple[str, ...]) -> Figure:
    """Each example with the model's probability of every class: candidates filled, non-candidates hatched."""
    figure, axes = _panels(len(examples), 2, (4.2, 1.15 * len(examples)), width_ratios=(1, 2.6))
    for (left, right), example, image in zip(axes, examples, images, strict=True):
        left.imshow(image, cmap="gray", interpolation="nearest")
        left.axis("off")
        inside = np.isin(np.arange(len(classes)), example["candidates"])
        for side, mask, hatch in (("inside", inside, None), ("outside", ~inside, "////")):
            places, colour = np.flatnonzero(mask), SIDES[side][1]
            heights = np.array(example["probs"])[mask]
            face = colour if hatch is None else "none"
            right.bar(places, heights, 0.8, facecolor=face, edgecolor=colour, hatch=hatch, label=SIDES[side][0])
        right.set_xticks(range(len(classes)), classes, rotation=45, ha="right", rotation_mode="anchor")
        for place, text in enumerate(right.get_xticklabels()):
            text.set_color(SIDES["inside" if inside[place] else "outside"][1])
            text.set_fontweight("bold" if place == example["label"] else "normal")
        right.set_ylim(0, 1)
        truth = classes[example["label"]] if example["label"] >= 0 else "no known class"
        right.set_title(f"{example['kind']}: {truth}", fontsize=8)
        right.tick_params(labelsize=6)
    return _legend_below(figure, axes[0, 1])


def _panels(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend_below(figure: Figure, axis: Any) -> Figure:
    handles = axis.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure
