"""From examples to arrays for a model: fitted once, then applied to later files alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from candidly.checks import one_of
from candidly.data.dataset import Examples
from candidly.data.guard import is_number, refuse_larger_than_memory
from candidly.data.pictures import load_image, load_images
from candidly.errors import InputError
from candidly.storage.store import read_json, write_atomically, write_json

if TYPE_CHECKING:
    import pandas as pd

# Only the most frequent terms of a text, and values of a column, count.
MAX_WORDS = 4096
MAX_CATEGORIES = 100
# A value with a smaller share of the rows does not count.
RARE_SHARE = 0.001
# Squares of larger numbers, and their sums, could be infinite.
LARGEST_NUMBER = 1e30
# Side of images for the encoder.
RESOLUTION = 96
# Largest side of images without an encoder.
PIXELS = 32


Inputs: TypeAlias = NDArray[Any] | sparse.csr_matrix


@dataclass(frozen=True)
class InputTransform:
    """How inputs of a kind become arrays.

    Attributes
    ----------
    kind : str
        The kind of `Examples` that it takes.
    facts : dict
        What was fitted, JSON-serialisable.
    arrays : dict of ndarray
        Numbers that were fitted.

    See Also
    --------
    fit_inputs : Fit a transform.
    """

    kind: str
    facts: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def apply(self, examples: Examples) -> Inputs:
        """Turn examples into what a model takes.

        Parameters
        ----------
        examples : Examples
            Examples of the kind that the transform was fitted on.

        Returns
        -------
        ndarray or scipy.sparse.csr_matrix
            float32 of shape (n, d), sparse for text; or uint8 images.

        Raises
        ------
        InputError
            If the examples lack something that the transform was fitted on.
        """
        if examples.kind != self.kind:
            raise InputError(
                f"{examples.source.path} holds {examples.kind}; the model was trained on "
                f"{self.kind}."
            )
        return _APPLY[self.kind](self, examples)

    def save(self, folder: str | Path) -> None:
        """Write `inputs.json` and `inputs.npz` into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "inputs.json", {"kind": self.kind, **self.facts})

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, **self.arrays)  # type: ignore[arg-type]

        write_atomically(folder / "inputs.npz", write)

    @classmethod
    def load(cls, folder: str | Path) -> InputTransform:
        """Load what `save` wrote."""
        facts = read_json(Path(folder) / "inputs.json")
        with np.load(Path(folder) / "inputs.npz", allow_pickle=False) as file:
            return cls(facts.pop("kind"), facts, dict(file))


def fit_inputs(examples: Examples, *, encoder: str = "lite0") -> tuple[InputTransform, Inputs]:
    """Fit a transform of inputs, and apply it.

    Tables are standardised and one-hot encoded, text becomes TF-IDF, and images go through a frozen
    encoder. Vectors stay as they are: training standardises its inputs anyway.

    Parameters
    ----------
    examples : Examples
        What `read_file` or `read_examples` returned.
    encoder : str, default "lite0"
        The encoder of images; "none" gives their pixels.

    Returns
    -------
    transform : InputTransform
        For later files.
    X : ndarray or scipy.sparse.csr_matrix
        float32 of shape (n, d), sparse for text; or uint8 images.

    Raises
    ------
    InputError
        If there is nothing to learn from.
    MissingExtraError
        If images need a package that is not installed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from candidly.data import read_file
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pets.csv"
    ...     _ = path.write_text("candidates,weight,colour\\ncat|dog,4,black\\ndog,8,brown\\n")
    ...     data = read_file(path)
    >>> transform, X = fit_inputs(data)
    >>> X.tolist()
    [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    if examples.kind == "none":
        raise InputError(
            f"{examples.source.path} holds labels but nothing to learn from. Add columns of "
            "features, text or images, or audit the outputs of a model of your own."
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
    """Fit means, scales and categories; a column without any value is left out."""
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
            max_categories=MAX_CATEGORIES,
            min_frequency=RARE_SHARE,
            handle_unknown="infrequent_if_exist",
        )
        encoder.fit(_words(frame, words))
        found = zip(words, encoder.categories_, encoder.infrequent_categories_, strict=True)
        for name, values, rare in found:
            left_out = set() if rare is None else {*rare.tolist()}
            if frequent := [value for value in values.tolist() if value not in left_out]:
                categories[name] = frequent
    if not numbers and not categories:
        raise InputError(
            f"{examples.source.path}: no column has values to learn from. Name others by "
            "--features."
        )
    return InputTransform("table", {"numbers": numbers, "categories": categories}, arrays)


def _apply_table(transform: InputTransform, examples: Examples) -> NDArray[np.float32]:
    """Encode a table: missing numbers become the mean, unknown and rare words no category."""
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = examples.inputs
    numbers = transform.facts["numbers"]
    categories = transform.facts["categories"]
    if missing := [name for name in (*numbers, *categories) if name not in frame]:
        raise InputError(
            f"{examples.source.path} lacks the column(s) {', '.join(map(repr, missing))} that the "
            "model was trained on."
        )
    width = len(numbers) + sum(map(len, categories.values()))
    refuse_larger_than_memory(
        4 * len(frame) * width, f"{examples.source.path}: the table of {width} encoded columns"
    )
    parts = []
    if numbers:
        scaler = StandardScaler()
        scaler.mean_ = transform.arrays["mean"]
        scaler.scale_ = transform.arrays["scale"]
        scaler.n_features_in_ = len(numbers)
        scaled = scaler.transform(_numbers(frame, numbers, examples))
        parts.append(np.nan_to_num(scaled).astype(np.float32))
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
    """Return columns as floats, with NaN for missing values."""
    if words := [name for name in names if frame[name].dtype.kind != "f"]:
        cells = frame[words[0]]
        row = next((i for i, cell in enumerate(cells) if not is_number(cell)), 0)
        raise InputError(
            f"{examples.place(row)}, column {words[0]!r}: {str(cells.iloc[row])!r} is text; the "
            "model was trained on numbers there. Correct it, or leave the cell empty."
        )
    values = frame[names].to_numpy(dtype=np.float64)
    if (wrong := np.abs(values) > LARGEST_NUMBER).any():
        row, column = divmod(int(wrong.argmax()), len(names))
        raise InputError(
            f"{examples.place(row)}, id {examples.ids.tolist()[row]!r}, column {names[column]!r}: "
            f"{values[row, column]} is infinite or too large. Correct it, or leave the cell empty."
        )
    return values


def _words(frame: pd.DataFrame, names: list[str]) -> NDArray[Any]:
    """Return columns as text, empty for missing values."""
    columns = [frame[name].astype(object).where(frame[name].notna(), "").map(str) for name in names]
    return np.stack([column.to_numpy(dtype=object) for column in columns], axis=1)


# ---- text


def _vectorizer(vocabulary: list[str] | None = None) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    limit = MAX_WORDS if vocabulary is None else None
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


def _apply_text(transform: InputTransform, examples: Examples) -> sparse.csr_matrix:
    """Return TF-IDF as a sparse matrix; training makes it dense, so that must fit into memory."""
    vocabulary = transform.facts["vocabulary"]
    needed = 4 * len(examples) * len(vocabulary)
    refuse_larger_than_memory(
        needed, f"{examples.source.path}: the table of {len(vocabulary)} words"
    )
    vectorizer = _vectorizer(vocabulary)
    vectorizer.idf_ = transform.arrays["idf"]
    return vectorizer.transform(cell.as_py() for cell in examples.inputs)


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
    """Return the (h, w) to resize to: the encoder's, or that of the first image if it is small."""
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
            f"{examples.source.path} holds images of {images.shape[2]} x {images.shape[1]} pixels; "
            f"the model was trained on {width} x {height}."
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
