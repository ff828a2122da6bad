"""The paper's figures, drawn from numbers in the results of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from candidly.kinds import KINDS
from candidly.scores import log_softmax, mean_losses, wooden_losses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Safe for colour-blind readers, and in print.
COLOURS = {"normal": "#0072b2", "closed": "#d55e00", "open": "#7a7a7a"}
SIDES = {"inside": ("candidates", "#0072b2"), "outside": ("non-candidates", "#d55e00")}
LOSSES = {"mean": mean_losses, "wooden": wooden_losses}
BINS = 40
COLUMN_WIDTH = 3.4  # inches
FONT_SIZE = 7  # points
LETTERS = {"gamma": "gamma / true shares", "phi": "phi (epochs)"}

# Numbers


def loss_histograms(
    logits: np.ndarray, candidates: np.ndarray, kinds: np.ndarray
) -> dict[str, Any]:
    """Count the losses over candidates and non-candidates in equal bins from 0.

    The largest hundredth of the losses goes to the last bin; infinite losses (of full sets) are
    left out.

    Parameters
    ----------
    logits : array (n, c)
        Outputs of a model.
    candidates : array (n, c) of bool
        The candidate sets.
    kinds : array (n,)
        The true kinds.

    Returns
    -------
    dict
        For "mean" and "wooden" losses: the upper edge of the bins ("top"), and for each kind and
        side the shares of the examples in the bins.
    """
    found: dict[str, Any] = {}
    log_probs = log_softmax(np.asarray(logits, dtype=np.float64))
    for name, losses in LOSSES.items():
        sides = dict(zip(SIDES, losses(log_probs, candidates), strict=True))
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
    """Take the first rows of each kind that were recognised, so that nobody chose what is drawn."""
    examples = []
    for number, kind in enumerate(KINDS):
        rows = np.flatnonzero((truth.kinds == number) & np.asarray(groups[number]))[:each]
        for row in rows.tolist():
            example = {
                "kind": kind,
                "row": row,
                "source": int(truth.source[row]),
                "label": int(truth.labels[row]),
                "candidates": np.flatnonzero(candidates[row]).tolist(),
            }
            examples.append(example)
    return examples


# Pictures


def losses_figure(histograms: dict[str, Any]) -> Figure:
    """Draw the losses over candidates and non-candidates of each kind; see `loss_histograms`."""
    figure, axes = _panels(3, 2, (COLUMN_WIDTH, 3.9), sharex="col")
    for column, (name, found) in zip(axes.T, histograms.items(), strict=True):
        edges = np.linspace(0, found["top"], BINS + 1)
        for axis, kind in zip(column, KINDS, strict=True):
            for side, (label, colour) in SIDES.items():
                axis.stairs(found[kind][side], edges, color=colour, fill=True, alpha=0.45)
                axis.stairs(found[kind][side], edges, color=colour, lw=1, label=label)
            axis.set_title(f"{kind}: {name} loss", fontsize=FONT_SIZE)
        column[-1].set_xlabel("loss (last bin: all above)", fontsize=FONT_SIZE)
    axes[1, 0].set_ylabel("share of examples", fontsize=FONT_SIZE)
    return _legend_below(figure, axes[0, 0])


def precision_figure(
    curves: dict[str, dict[str, list[float | None]]], warmups: dict[str, int]
) -> Figure:
    """Draw the precision of the three groups per epoch, one panel per run.

    A dotted line marks the end of the warm-up, where it is given.
    """
    rows = -(-len(curves) // 2)
    figure, axes = _panels(rows, 2, (COLUMN_WIDTH, 1.5 * rows + 0.4), sharex=True, sharey=True)
    for axis, (name, curve) in zip(axes.flat, curves.items(), strict=True):
        for kind, style in zip(KINDS, ("-", "--", "-."), strict=True):
            values = enumerate(curve.get(f"precision_{kind}", []), start=1)
            points = [(epoch, value) for epoch, value in values if value is not None]
            epochs = [epoch for epoch, _ in points]
            precision = [value for _, value in points]
            axis.plot(epochs, precision, style, color=COLOURS[kind], label=kind, lw=1.3)
        if name in warmups:
            axis.axvline(warmups[name] + 0.5, color="black", ls=":", lw=0.9)
        axis.set_title(name, fontsize=FONT_SIZE)
        axis.set_ylim(0, 1.02)
    for axis in axes[:, 0]:
        axis.set_ylabel("precision", fontsize=FONT_SIZE)
    for axis in axes[-1]:
        axis.set_xlabel("epoch", fontsize=FONT_SIZE)
    return _legend_below(figure, axes[0, 0])


def params_figure(sweeps: dict[str, list[dict[str, Any]]]) -> Figure:
    """Draw accuracy (left) and precision of the groups (right) against each hyper-parameter.

    The default is ringed.
    """
    figure, axes = _panels(len(sweeps), 2, (COLUMN_WIDTH, 1.15 * len(sweeps) + 0.4), sharey="col")
    for row, (name, points) in zip(axes, sweeps.items(), strict=True):
        places = range(len(points))
        scores = [point["score"] for point in points]
        row[0].plot(places, scores, "-o", color="black", ms=3, lw=1.2)
        for place, point in enumerate(points):
            if point["default"]:
                row[0].plot(place, scores[place], "o", ms=8, mfc="none", color="black", mew=0.9)
        for kind, style in zip(KINDS, ("-o", "--s", "-.^"), strict=True):
            values = [point["precision"][kind] for point in points]
            row[1].plot(places, values, style, color=COLOURS[kind], label=kind, ms=3, lw=1.2)
        for axis in row:
            axis.set_xticks(places, [f"{point['value']:g}" for point in points])
            axis.set_xlabel(LETTERS.get(name, name), fontsize=FONT_SIZE, labelpad=1)
    axes[0, 0].set_title("accuracy (%)", fontsize=FONT_SIZE)
    axes[0, 1].set_title("precision of the groups", fontsize=FONT_SIZE)
    axes[0, 1].set_ylim(0, 1.02)
    return _legend_below(figure, axes[0, 1])


def examples_figure(
    examples: list[dict[str, Any]], images: list[np.ndarray], classes: tuple[str, ...]
) -> Figure:
    """Draw each example with the model's probability of every class.

    Bars of candidates are filled, those of non-candidates hatched; the true class has a triangle
    above it.
    """
    columns = [
        [k for k, example in enumerate(examples) if example["kind"] == kind] for kind in KINDS
    ]
    rows = max(1, *map(len, columns))
    figure, axes = _panels(
        2 * rows, 3, (COLUMN_WIDTH, 1.75 * rows + 0.5), height_ratios=(1, 0.8) * rows
    )
    for axis in axes.flat:
        axis.axis("off")
    for column, members in enumerate(columns):
        for row, k in enumerate(members):
            example = examples[k]
            picture = axes[2 * row, column]
            picture.imshow(images[k], cmap="gray", interpolation="nearest")
            truth = classes[example["label"]] if example["label"] >= 0 else "no class"
            picture.set_title(f"{example['kind']}: {truth}", fontsize=FONT_SIZE)
            is_last = row == len(members) - 1
            names = classes if is_last else [""] * len(classes)
            _bars(axes[2 * row + 1, column], example, names)
    filled = next((column for column, members in enumerate(columns) if members), 0)
    return _legend_below(figure, axes[1, filled])


def _bars(axis: Any, example: dict[str, Any], names: Sequence[str]) -> None:
    probs = np.array(example["probs"])
    candidates = np.isin(np.arange(len(names)), example["candidates"])
    for side, mask, hatch in (("inside", candidates, None), ("outside", ~candidates, "//////")):
        label, colour = SIDES[side]
        face = colour if hatch is None else "none"
        style = {"fc": face, "ec": colour, "lw": 0.6, "hatch": hatch}
        axis.bar(np.flatnonzero(mask), probs[mask], 0.8, label=label, **style)
    truth = example["label"]
    if truth >= 0:
        axis.plot(truth, min(probs[truth] + 0.12, 1.1), "v", ms=3, color="black")
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
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=FONT_SIZE, frameon=False)
    return figure
