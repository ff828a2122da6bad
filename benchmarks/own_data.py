"""Make files like those that people have, to try `candidly fit` on; they also hold the truth.

    python benchmarks/own_data.py FOLDER [digits] [reviews] [tasks] [embeddings] [large] [FILE.mat]

digits/digits.csv    1,245 images of 0-5 (and some of 6-9), sets with wrong labels at random
                     (q = 0.2); a tenth of the known ones lost the truth, 15 % as many belong to no
                     class
reviews.csv          1,500 made-up sentences on six subjects, three annotator columns
tasks.json           600 such sentences as Label Studio exports them, three annotators, a third of
                     the truth verified
FILE.mat             a copy of a file of partial-label learning whose sets hold the truth: a tenth
                     of them lose it
embeddings.parquet   200,000 vectors of 128 numbers in 20 classes; q = 0.1, closed 0.1, open 0.1
large.parquet        5,000,000 rows: 3 of 100 classes, 16 numbers, an id, 500 characters of text;
                     and large.npy, a model's probabilities for them (float16); only made if named
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np

from candidly import CandidateSets, corrupt
from candidly.corruption import misplace
from candidly.data import read_file
from candidly.data.export import write_sets

TOPICS = {
    "delivery": "parcel courier late arrived doorstep tracking delivered box shipping driver",
    "price": "cheap expensive cost discount refund charged price invoice money voucher",
    "quality": "broken solid scratched sturdy material flimsy stitching durable cracked finish",
    "service": "helpful rude phone agent support reply waited polite answered complaint",
    "size": "small large fits tight loose length waist sleeve narrow measured",
    "colour": "red blue faded shade darker photo bright pale tone looks",
}
COMMON = "the a it was very I my and but not bought again would this really quite for with they so"
NONE = "none of the classes"


def digits(folder: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    known, others = np.flatnonzero(y < 6), np.flatnonzero(y >= 6)
    sets, truth = corrupt(y[known], 6, q=0.2, tau1=0.1, tau2=0.15, pool=len(others), seed=0)
    names = ["zero", "one", "two", "three", "four", "five"]
    (folder / "digits" / "images").mkdir(parents=True, exist_ok=True)
    rows = [["id", "image", "candidates", "label"]]
    for i, (source, labels, label) in enumerate(zip(truth.source, sets, truth.labels, strict=True)):
        pixels = (X[np.r_[known, others][source]].reshape(8, 8) * 15.9).astype(np.uint8)
        image = Image.fromarray(pixels).resize((32, 32), Image.Resampling.BICUBIC)
        image.save(folder / f"digits/images/{i:04}.png")
        candidates = "|".join(names[j] for j in labels)
        rows.append([f"d{i:04}", f"images/{i:04}.png", candidates, _name(names, label)])
    _write(folder / "digits" / "digits.csv", rows)


def _name(names: list[str], label: int) -> str:
    return names[label] if label >= 0 else NONE


def _write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def sentences(n: int, seed: int) -> tuple[list[str], np.ndarray, list[list[list[str]]]]:
    """Make (texts, classes, answers): of ten words, three to five are on the subject, one is not.

    ann is careful; bob gives two labels when he is not sure, and takes size for quality; cy errs in
    a quarter of all.
    """
    rng = np.random.default_rng(seed)
    names = [*TOPICS]
    words = [TOPICS[name].split() for name in names]
    y = rng.integers(6, size=n)
    texts, answers = [], []
    for label in y.tolist():
        on = rng.choice(words[label], rng.integers(3, 6)).tolist()
        off = rng.choice(words[rng.integers(6)], 1).tolist()
        words_of_text = [*on, *off, *rng.choice(COMMON.split(), 10 - len(on))]
        texts.append(" ".join(rng.permutation(words_of_text).tolist()))
        hard = rng.random() < 0.12  # hard ones mislead all three alike
        seen = int((label + rng.integers(1, 6)) % 6) if hard else label
        ann = seen if rng.random() < 0.97 else int(rng.integers(6))
        confused = seen == names.index("size") and rng.random() < 0.6
        bob = [names.index("quality") if confused else seen]
        bob += [int(rng.integers(6))] if rng.random() < 0.3 else []
        cy = seen if rng.random() < 0.75 else int(rng.integers(6))
        answers.append([[names[ann]], [names[j] for j in dict.fromkeys(bob)], [names[cy]]])
    return texts, y, answers


def reviews(folder: Path) -> None:
    texts, y, answers = sentences(1500, 0)
    rows = [["id", "review", "ann", "bob", "cy", "label"]]
    for i, (text, label, (ann, bob, cy)) in enumerate(zip(texts, y, answers, strict=True)):
        # ann has seen three quarters of them.
        said = ["|".join(ann) if i % 4 else "", "|".join(bob), "|".join(cy)]
        rows.append([f"r{i}", text, *said, [*TOPICS][label]])
    _write(folder / "reviews.csv", rows)


def tasks(folder: Path) -> None:
    texts, y, answers = sentences(600, 1)
    exported = []
    for i, (text, label, said) in enumerate(zip(texts, y, answers, strict=True)):
        given: list[dict[str, object]] = [
            {"completed_by": who, "result": [_choice(labels)]} for who, labels in enumerate(said, 1)
        ]
        if i % 3 == 0:
            truth = _choice([[*TOPICS][label]])
            given.append({"completed_by": 9, "ground_truth": True, "result": [truth]})
        exported.append({"id": 5000 + i, "data": {"text": text}, "annotations": given})
    (folder / "tasks.json").write_text(json.dumps(exported))


def _choice(labels: list[str]) -> dict[str, object]:
    return {
        "from_name": "subject",
        "to_name": "text",
        "type": "choices",
        "value": {"choices": labels},
    }


def embeddings(folder: Path, n: int = 200_000) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    known = round(n / 1.1) + 1
    y = rng.integers(20, size=known)
    sets, truth = corrupt(y, 20, q=0.1, tau1=0.1, tau2=0.1, pool=n, seed=0)
    centres = rng.normal(size=(30, 128)).astype(np.float32)  # 20 to 29: of no class
    of = np.where(truth.labels >= 0, truth.labels, rng.integers(20, 30, size=len(sets)))
    X = 0.25 * centres[of] + rng.normal(size=(len(sets), 128)).astype(np.float32)
    names = pa.array([f"class {j:02}" for j in range(20)])
    flat = pa.ListArray.from_arrays(
        pa.array(sets.indptr, pa.int32()), names.take(pa.array(sets.indices))
    )
    true = pa.array([names[int(j)].as_py() if j >= 0 else NONE for j in truth.labels])
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 128)
    table = pa.table({"embedding": vectors, "candidates": flat, "label": true})
    pq.write_table(table, folder / "embeddings.parquet")


def large(folder: Path, n: int = 5_000_000, block: int = 100_000) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    c = 100
    names = pa.array([f"class {j:02}" for j in range(c)])
    P = np.lib.format.open_memmap(folder / "large.npy", "w+", np.float16, (n, c))
    writer = None
    for start in range(0, n, block):
        y = rng.integers(c, size=block)
        is_closed = rng.random(block) < 0.1
        first = np.where(is_closed, rng.integers(c, size=block), y)
        second = (first + rng.integers(1, 50, size=block)) % c
        sets = np.stack([first, second, (first + 50) % c], axis=1)
        sizes = pa.array(np.arange(0, 3 * block + 1, 3), pa.int32())
        words = rng.integers(97, 123, size=(1000, 500), dtype=np.uint8)
        columns = {
            "id": pa.array([f"row-{i}" for i in range(start, start + block)]),
            "candidates": pa.ListArray.from_arrays(sizes, names.take(pa.array(sets.ravel()))),
            "embedding": pa.FixedSizeListArray.from_arrays(
                pa.array(rng.random(16 * block, dtype=np.float32)), 16
            ),
            "text": pa.array([bytes(row).decode() for row in words]).take(
                pa.array(rng.integers(1000, size=block))
            ),
        }
        writer = writer or pq.ParquetWriter(folder / "large.parquet", pa.table(columns).schema)
        writer.write_table(pa.table(columns))
        p = rng.random((block, c), dtype=np.float32) ** 8
        p[np.arange(block), np.where(rng.random(block) < 0.8, y, rng.integers(c, size=block))] += 20
        P[start : start + block] = p / p.sum(axis=1, keepdims=True)
    assert writer is not None
    writer.close()


def spoiled(folder: Path, path: Path) -> None:
    data = read_file(path)
    assert data.truth is not None
    count, rng = round(0.1 * len(data)), np.random.default_rng(0)
    mask, _ = misplace(data.sets.dense(), data.truth, count, rng)
    write_sets(data, CandidateSets(mask, data.sets.classes), folder / path.name)


MAKERS = {"digits": digits, "reviews": reviews, "tasks": tasks, "embeddings": embeddings}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(MAKERS), metavar="name")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        if name.endswith(".mat"):
            spoiled(options.folder, Path(name))
        else:
            (large if name == "large" else MAKERS[name])(options.folder)


if __name__ == "__main__":
    main()
