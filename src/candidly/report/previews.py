"""What a row looks like: a thumbnail, the beginning of its text, or its most unusual values."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.data.dataset import Examples
from candidly.data.pictures import load_image
from candidly.errors import InputError

SIDE = 112  # of a thumbnail, in pixels
LETTERS = 400  # of a text
VALUES = 6  # of a table
SAMPLE = 5000  # rows that tell what is usual


def previews(examples: Examples, rows: list[int]) -> dict[int, dict[str, Any]]:
    """For each row {"image": data URI}, {"text": ...}, {"values": [{"name", "value", "z"}]}, or {}."""
    if examples.kind == "images":
        return {row: _thumbnail(examples.inputs[row]) for row in rows}
    if examples.kind == "text":
        return {row: {"text": _beginning(examples.inputs[row].as_py() or "")} for row in rows}
    if examples.kind in ("table", "vectors"):
        return _values(examples, rows)
    return {row: {} for row in rows}


def _thumbnail(image: Any) -> dict[str, str]:
    from PIL import Image

    try:
        pixels = image if isinstance(image, np.ndarray) else load_image(image)
    except InputError:  # nothing was trained on it: an audit needs no images
        return {}
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    picture, buffer = Image.fromarray(pixels), io.BytesIO()
    picture.thumbnail((SIDE, SIDE))
    form = "PNG" if max(picture.size) <= 64 else "JPEG"
    picture.save(buffer, form, quality=80)
    return {
        "image": f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
    }


def _beginning(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _values(examples: Examples, rows: list[int]) -> dict[int, dict[str, Any]]:
    """The values that lie farthest from the mean, in standard deviations; words come after numbers."""
    names, numbers, words = _columns(examples)
    some = np.unique(np.linspace(0, len(examples) - 1, min(SAMPLE, len(examples))).astype(int))
    usual = numbers(some)
    known = np.maximum((~np.isnan(usual)).sum(axis=0), 1)
    mean = np.nansum(usual, axis=0) / known
    std = np.sqrt(np.nansum((usual - mean) ** 2, axis=0) / known)
    found = {}
    for row, values in zip(rows, numbers(np.array(rows, dtype=int)), strict=True):
        z = np.nan_to_num(np.divide(values - mean, std, out=np.zeros(len(mean)), where=std > 0))
        order = [
            j for j in np.argsort(-np.abs(z), kind="stable").tolist() if not np.isnan(values[j])
        ][:VALUES]
        entries = [
            {"name": names[j], "value": f"{values[j]:.4g}", "z": round(float(z[j]), 1)}
            for j in order
        ]
        found[row] = {"values": [*entries, *words(row)][: VALUES + 2]}
    return found


def _columns(examples: Examples) -> tuple[list[str], Any, Any]:
    """(names of the numbers, function from rows to numbers (k, d), function from a row to its words)."""
    if examples.kind == "vectors":
        vectors = examples.inputs
        return (
            [str(j) for j in range(vectors.shape[1])],
            lambda rows: vectors[rows].astype(np.float64),
            lambda row: [],
        )
    frame = examples.inputs
    numeric = [
        name for name in frame if frame[name].dtype.kind == "f" and frame[name].notna().any()
    ]
    others = [name for name in frame if frame[name].dtype.kind != "f"]

    def numbers(rows: NDArray[Any]) -> NDArray[Any]:
        return frame[numeric].iloc[rows].to_numpy(np.float64)

    def words(row: int) -> list[dict[str, Any]]:
        cells = {str(name): frame[name].iloc[row] for name in others[:VALUES]}
        return [
            {"name": name, "value": _beginning(str(cell))[:60], "z": None}
            for name, cell in cells.items()
        ]

    return [str(name) for name in numeric], numbers, words
