"""The paper's figures, as functions of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from candidly.corruption import KINDS
from candidly.scores import log_softmax, mean_losses, wooden_losses

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {"normal": "#0072b2", "closed": "#d55e00", "open": "#7a7a7a"}  # safe for colour-blind readers, and in print
INSIDE, OUTSIDE = "#0072b2", "#d55e00"


def loss_distributions(logits: np.ndarray, candidates: np.ndarray, kinds: np.ndarray) -> Figure:
    """Distributions of the inside and outside losses of the three kinds, under mean and under wooden losses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.subplots(2, 3, sharex="row", sharey="row")
    for row, (name, losses) in zip(axes, {"mean": mean_losses, "wooden": wooden_losses}.items(), strict=True):
        inside, outside = losses(log_softmax(np.asarray(logits, dtype=np.float64)), candidates)
        top = np.quantile(np.concatenate([inside, outside[np.isfinite(outside)]]), 0.99)
        bins = np.linspace(0, top, 41)
        for axis, (number, kind) in zip(row, enumerate(KINDS), strict=True):
            for values, colour, label in ((inside, INSIDE, "candidates"), (outside, OUTSIDE, "non-candidates")):
                chosen = np.clip(values[(kinds == number) & np.isfinite(values)], 0, top)
                if len(chosen):
                    axis.hist(
                        chosen,
                        bins,
                        weights=np.full(len(chosen), 1 / len(chosen)),
                        color=colour,
                        alpha=0.6,
                        label=label,
                    )
            axis.set_title(f"{kind}: {name} loss", fontsize=9)
            _plain(axis)
        row[0].set_ylabel("share of examples", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("loss", fontsize=8)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8, frameon=False
    )
    return figure


def precision_curves(histories: dict[str, list[dict[str, Any]]], warmup: int) -> Figure:
    """Precision of the three selected groups per epoch, one panel per run; a dotted line marks the end of warm-up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(histories), 2.9), layout="constrained")
    axes = figure.subplots(1, len(histories), sharey=True, squeeze=False)[0]
    for axis, (name, history) in zip(axes, histories.items(), strict=True):
        for kind in KINDS:
            points = [(row["epoch"], row[key]) for row in history if row.get(key := f"precision_{kind}") is not None]
            axis.plot(*zip(*points, strict=True), color=COLOURS[kind], label=kind, lw=1.6)
        axis.axvline(warmup + 0.5, color="black", ls=":", lw=0.9)
        axis.set_title(name, fontsize=9)
        axis.set_ylim(0, 1.02)
        axis.set_xlabel("epoch", fontsize=8)
        _plain(axis)
    axes[0].set_ylabel("precision of the selection", fontsize=8)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _plain(axis: Any) -> None:
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
