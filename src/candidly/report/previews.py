"""Previews of rows: a thumbnail, the beginning of the text, or the most unusual values."""

from __future__ import annotations

import base64
import io
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from candidly.data.dataset import Examples
from candidly.data.pictures import load_image
from candidly.errors import InputError

# Pixels of a thumbnail's longer side; up to SHARP it is a PNG, which keeps every pixel.
SIDE = 112
SHARP = 64
# Characters of a text, and of a word in a table.
LETTERS = 400
WORD = 60
# Numbers and words of a table that are shown.
VALUES = 6
SHOWN = 8
# Rows that decide what is usual.
SAMPLE = 5000


def previews(examples: Examples, rows: list[int]) -> dict[int, dict[str, Any]]:
    """Return what some rows look like.

    Parameters
    ----------
    examples : Examples
        The rows and their inputs.
    rows : list of int
        Which ones.

    Returns
    -------
    dict
        For each row {"image": data URI}, {"text": ...} or {"values": [{"name", "value", "z"}]};
        {} if there is nothing to show, as for images without Pillow (`preview_notes`).
    """
    if examples.kind == "images" and _has_pillow():
        return {row: _thumbnail(examples.inputs[row]) for row in rows}
    if examples.kind == "text":
        return {row: {"text": _beginning(examples.inputs[row].as_py() or "")} for row in rows}
    if examples.kind in ("table", "vectors"):
        return _values(examples, rows)
    return {row: {} for row in rows}


def preview_notes(examples: Examples, rows: list[int]) -> list[str]:
    """Return a note for the reader if the rows have images that cannot be shown."""
    if not rows or examples.kind != "images" or _has_pillow():
        return []
    return [
        "The rows are shown without their images, which need Pillow: "
        "pip install 'candidly[image]', then run the audit again."
    ]


def _has_pillow() -> bool:
    return find_spec("PIL") is not None


def _thumbnail(image: Any) -> dict[str, str]:
    from PIL import Image

    try:
        pixels = image if isinstance(image, np.ndarray) else load_image(image)
    except InputError:
        # An audit needs no images, so a broken one is no reason to stop.
        return {}
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    picture = Image.fromarray(pixels)
    picture.thumbnail((SIDE, SIDE))
    form = "PNG" if max(picture.size) <= SHARP else "JPEG"
    buffer = io.BytesIO()
    picture.save(buffer, form, quality=80)
    encoded = base64.b64encode(buffer.getvalue()).decode()
    return {"image": f"data:image/{form.lower()};base64,{encoded}"}


def _beginning(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def _values(examples: Examples, rows: list[int]) -> dict[int, dict[str, Any]]:
    """Return the values farthest from the mean, in standard deviations; words after numbers."""
    names, numbers, words = _columns(examples)
    some = np.unique(np.linspace(0, len(examples) - 1, min(SAMPLE, len(examples))).astype(int))
    usual = numbers(some)
    known = np.maximum((~np.isnan(usual)).sum(axis=0), 1)
    mean = np.nansum(usual, axis=0) / known
    std = np.sqrt(np.nansum((usual - mean) ** 2, axis=0) / known)
    found = {}
    for row, values in zip(rows, numbers(np.array(rows, dtype=int)), strict=True):
        z = np.nan_to_num(np.divide(values - mean, std, out=np.zeros(len(mean)), where=std > 0))
        farthest = np.argsort(-np.abs(z), kind="stable").tolist()
        unusual = [j for j in farthest if not np.isnan(values[j])][:VALUES]
        entries = [
            {"name": names[j], "value": f"{values[j]:.4g}", "z": round(float(z[j]), 1)}
            for j in unusual
        ]
        found[row] = {"values": [*entries, *words(row)][:SHOWN]}
    return found


def _columns(examples: Examples) -> tuple[list[str], Any, Any]:
    """Return the names of the numbers, and functions: rows -> numbers (k, d), row -> its words."""
    if examples.kind == "vectors":
        vectors = examples.inputs
        names = [str(j) for j in range(vectors.shape[1])]
        return names, lambda rows: vectors[rows].astype(np.float64), lambda row: []
    frame = examples.inputs
    numeric = [
        name for name in frame if frame[name].dtype.kind == "f" and frame[name].notna().any()
    ]
    others = [name for name in frame if frame[name].dtype.kind != "f"]

    def numbers(rows: NDArray[Any]) -> NDArray[Any]:
        return frame[numeric].iloc[rows].to_numpy(np.float64)

    def words(row: int) -> list[dict[str, Any]]:
        cells = {str(name): str(frame[name].iloc[row]) for name in others[:VALUES]}
        return [
            {"name": name, "value": _beginning(cell)[:WORD], "z": None}
            for name, cell in cells.items()
        ]

    return [str(name) for name in numeric], numbers, words
