"""From examples to what a model is trained on; fitted once, kept without pickle, applied to later files alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.checks import one_of
from candidly.data.dataset import Examples
from candidly.data.guard import is_number, refuse_larger_than_memory
from candidly.data.pictures import load_image, load_images
from candidly.errors import InputError
from candidly.storage.store import read_json, write_atomically, write_json

if TYPE_CHECKING:
    import pandas as pd

WORDS = 4096  # most frequent terms of a text that count
CATEGORIES = 100  # most frequent values of a column that count
RARE = 0.001  # a value with a smaller share of the rows does not count
LARGEST = 1e30  # number of a table, so that its square and sums of such are finite
RESOLUTION = 96  # of images for the encoder
PIXELS = 32  # the largest side of images without an encoder


@dataclass(frozen=True)
class InputTransform:
    """How inputs of a kind become arrays: `facts` are JSON, `arrays` numbers."""

    kind: str
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def apply(self, examples: Examples) -> NDArray[Any]:
        """float32 (n, d), or uint8 images; raises if the file does not hold what the transform was fitted on."""
        if examples.kind != self.kind:
            raise InputError(
                f"{examples.source.path} holds {examples.kind}; the model was trained on {self.kind}."
            )
        return _APPLY[self.kind](self, examples)

    def save(self, folder: str | Path) -> None:
        """`inputs.json` and `inputs.npz`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "inputs.json", {"kind": self.kind, **self.facts})

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, **self.arrays)  # type: ignore[arg-type]

        write_atomically(folder / "inputs.npz", write)

    @classmethod
    def load(cls, folder: str | Path) -> InputTransform:
        facts = read_json(Path(folder) / "inputs.json")
        with np.load(Path(folder) / "inputs.npz", allow_pickle=False) as file:
            return cls(facts.pop("kind"), facts, dict(file))


def fit_inputs(
    examples: Examples, *, encoder: str = "lite0"
) -> tuple[InputTransform, NDArray[Any]]:
    """(transform, X): tables standardised and one-hot encoded, text as TF-IDF, images through the frozen encoder.

    encoder: "none" gives the images' pixels. Vectors stay as they are: training standardises its inputs anyway.
    """
    if examples.kind == "none":
        raise InputError(
            f"{examples.source.path} holds labels but nothing to learn from. Add columns of features, text or images, "
            "or audit the outputs of a model of your own."
        )
    from candidly.data.encoders import ENCODERS

    transform = _fit(examples, one_of(encoder, ("none", *ENCODERS), "encoder"))
    return transform, transform.apply(examples)


def _fit(examples: Examples, encoder: str) -> InputTransform:
    if examples.kind == "table":
        return _fit_table(examples.inputs, examples)
    if examples.kind == "text":
        return _fit_text(examples)
    if examples.kind == "vectors":
        return InputTransform("vectors", {"width": examples.inputs.shape[1]})
    return InputTransform("images", {"encoder": encoder, "size": _image_size(examples, encoder)})


# ---- tables


def _fit_table(frame: pd.DataFrame, examples: Examples) -> InputTransform:
    """Means, scales and categories; a column without any value is left out."""
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    names = [str(name) for name in frame if frame[name].notna().any()]
    numbers = [name for name in names if frame[name].dtype.kind == "f"]
    words = [name for name in names if name not in numbers]
    arrays: dict[str, NDArray[Any]] = {}
    if numbers:
        scaler = StandardScaler().fit(_numbers(frame, numbers, examples))
        arrays = {"mean": scaler.mean_, "scale": scaler.scale_}
    categories = {}
    if words:
        encoder = OneHotEncoder(
            max_categories=CATEGORIES, min_frequency=RARE, handle_unknown="infrequent_if_exist"
        )
        encoder.fit(_words(frame, words))
        for name, seen, rare in zip(
            words, encoder.categories_, encoder.infrequent_categories_, strict=True
        ):
            kept = [
                value for value in seen.tolist() if rare is None or value not in {*rare.tolist()}
            ]
            if kept:
                categories[name] = kept
    if not numbers and not categories:
        raise InputError(
            f"{examples.source.path}: no column has values to learn from. Name others by --features."
        )
    return InputTransform("table", {"numbers": numbers, "categories": categories}, arrays)


def _apply_table(transform: InputTransform, examples: Examples) -> NDArray[np.float32]:
    """Missing numbers become the mean, unknown and rare words no category at all."""
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame, numbers, categories = (
        examples.inputs,
        transform.facts["numbers"],
        transform.facts["categories"],
    )
    if missing := [name for name in (*numbers, *categories) if name not in frame]:
        raise InputError(
            f"{examples.source.path} lacks the column(s) {', '.join(map(repr, missing))} that the model was trained on."
        )
    width = len(numbers) + sum(map(len, categories.values()))
    refuse_larger_than_memory(
        4 * len(frame) * width, f"{examples.source.path}: the table of {width} encoded columns"
    )
    parts = []
    if numbers:
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_, scaler.n_features_in_ = (
            transform.arrays["mean"],
            transform.arrays["scale"],
            len(numbers),
        )
        parts.append(
            np.nan_to_num(scaler.transform(_numbers(frame, numbers, examples))).astype(np.float32)
        )
    if categories:
        encoder = OneHotEncoder(
            categories=[np.array(seen, dtype=object) for seen in categories.values()],
            handle_unknown="ignore",
            sparse_output=False,
            dtype=np.float32,
        ).fit([[seen[0] for seen in categories.values()]])
        parts.append(encoder.transform(_words(frame, list(categories))))
    return np.concatenate(parts, axis=1)


def _numbers(frame: pd.DataFrame, names: list[str], examples: Examples) -> NDArray[np.float64]:
    """The columns as floats; NaN where there is none."""
    if words := [name for name in names if frame[name].dtype.kind != "f"]:
        row = next((i for i, cell in enumerate(frame[words[0]]) if not is_number(cell)), 0)
        raise InputError(
            f"{examples.place(row)}, column {words[0]!r}: {str(frame[words[0]].iloc[row])!r} is text; the model was "
            "trained on numbers there. Correct it, or leave the cell empty."
        )
    values = frame[names].to_numpy(dtype=np.float64)
    if (wrong := np.abs(values) > LARGEST).any():
        row, column = divmod(int(wrong.argmax()), len(names))
        place = (
            f"{examples.place(row)}, id {examples.ids.tolist()[row]!r}, column {names[column]!r}"
        )
        raise InputError(
            f"{place}: {values[row, column]} is infinite or too large. Correct it, or leave the cell empty."
        )
    return values


def _words(frame: pd.DataFrame, names: list[str]) -> NDArray[Any]:
    """The columns as text; a missing value is the empty text."""
    columns = [frame[name].astype(object).where(frame[name].notna(), "").map(str) for name in names]
    return np.stack([column.to_numpy(dtype=object) for column in columns], axis=1)


# ---- text


def _vectorizer(vocabulary: list[str] | None = None) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    limit = WORDS if vocabulary is None else None
    return TfidfVectorizer(
        max_features=limit, vocabulary=vocabulary, sublinear_tf=True, dtype=np.float32
    )


def _fit_text(examples: Examples) -> InputTransform:
    vectorizer = _vectorizer()
    try:
        vectorizer.fit(cell.as_py() for cell in examples.inputs)
    except ValueError as error:
        raise InputError(
            f"{examples.source.path}: the text holds no words to learn from ({error})."
        ) from error
    return InputTransform(
        "text",
        {"vocabulary": vectorizer.get_feature_names_out().tolist()},
        {"idf": vectorizer.idf_},
    )


def _apply_text(transform: InputTransform, examples: Examples) -> NDArray[np.float32]:
    vocabulary = transform.facts["vocabulary"]
    needed = 4 * len(examples) * len(vocabulary)
    refuse_larger_than_memory(
        needed, f"{examples.source.path}: the table of {len(vocabulary)} words"
    )
    vectorizer = _vectorizer(vocabulary)
    vectorizer.idf_ = transform.arrays["idf"]
    return vectorizer.transform(cell.as_py() for cell in examples.inputs).toarray()


# ---- vectors and images


def _apply_vectors(transform: InputTransform, examples: Examples) -> NDArray[np.float32]:
    width = examples.inputs.shape[1]
    if width != transform.facts["width"]:
        raise InputError(
            f"{examples.source.path} holds vectors of {width} numbers; the model was trained on "
            f"{transform.facts['width']}."
        )
    return examples.inputs


def _image_size(examples: Examples, encoder: str) -> list[int]:
    """(h, w) that images are brought to: the encoder's, or that of the first image if it is small."""
    if isinstance(examples.inputs, np.ndarray):
        return list(examples.inputs.shape[1:3])
    if encoder != "none":
        return [RESOLUTION, RESOLUTION]
    try:
        height, width, _ = load_image(examples.inputs[0]).shape
    except InputError as error:
        raise InputError(f"{examples.place(0)}: {error}") from error
    return [height, width] if max(height, width) <= PIXELS else [PIXELS, PIXELS]


def _apply_images(transform: InputTransform, examples: Examples) -> NDArray[Any]:
    height, width = transform.facts["size"]
    images = examples.inputs
    if not isinstance(images, np.ndarray):
        images = load_images(images, (height, width), examples.place)
    elif images.shape[1:3] != (height, width):
        raise InputError(
            f"{examples.source.path} holds images of {images.shape[2]} x {images.shape[1]} pixels; the model was "
            f"trained on {width} x {height}."
        )
    if transform.facts["encoder"] == "none":
        return images
    from candidly.data.encoders import encode

    return encode(images, transform.facts["encoder"], resolution=RESOLUTION)


_APPLY = {
    "table": _apply_table,
    "text": _apply_text,
    "vectors": _apply_vectors,
    "images": _apply_images,
}
