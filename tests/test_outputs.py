"""Files of a user's own outputs: matched by names, checked value by value."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from candidly.data import read_file
from candidly.data.outputs import (
    OutputsFile,
    _in_order,
    read_outputs_file,
    write_probabilities,
)
from candidly.errors import InputError
from candidly.probabilities import TOLERANCE, are_probabilities

PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])


@pytest.fixture
def data(tmp_path):
    (tmp_path / "a.csv").write_text("id,candidates,x\na,cat|dog,1\nb,dog,2\nc,bird,3\n")
    return read_file(tmp_path / "a.csv")  # classes: bird, cat, dog


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_an_array_is_mapped_and_told_apart_by_its_values(tmp_path, data):
    np.save(tmp_path / "p.npy", PROBS)
    values, logits = read_outputs_file(tmp_path / "p.npy", data)
    assert isinstance(values, np.memmap)
    assert not logits
    assert np.array_equal(values, PROBS)
    np.save(tmp_path / "l.npy", np.log(PROBS))
    assert read_outputs_file(tmp_path / "l.npy", data)[1]


def test_outputs_in_order_are_not_copied(tmp_path, data):
    np.save(tmp_path / "p.npy", PROBS)
    mapped = np.load(tmp_path / "p.npy", mmap_mode="r")
    found = OutputsFile(tmp_path / "p.npy", mapped, ["bird", "cat", "dog"], ["a", "b", "c"])
    assert _in_order(found, data) is mapped
    moved = _in_order(replace(found, ids=["a", "c", "b"]), data)
    assert moved.tolist() == PROBS[[0, 2, 1]].tolist()
    more = replace(found, values=np.concatenate([PROBS, PROBS[:1]]), ids=["a", "b", "c", "d"])
    assert _in_order(more, data).tolist() == PROBS.tolist(), "other rows are left out"


def test_columns_may_be_named_like_our_own(tmp_path):
    (tmp_path / "a.csv").write_text("candidates,x\ntext|label,1\nlabel,2\n")
    (tmp_path / "p.csv").write_text("label,text\n0.75,0.25\n0.5,0.5\n")
    values, _ = read_outputs_file(tmp_path / "p.csv", read_file(tmp_path / "a.csv"))
    assert values.tolist() == [[0.75, 0.25], [0.5, 0.5]]


def test_npz_by_name_and_with_classes_and_ids(tmp_path, data):
    path = saved(
        tmp_path / "p.npz", probs=PROBS[::-1], classes=["dog", "bird", "cat"], id=["c", "b", "a"]
    )
    values, logits = read_outputs_file(path, data)
    assert values.tolist() == PROBS[:, [1, 2, 0]].tolist()
    assert not logits
    assert read_outputs_file(saved(tmp_path / "q.npz", logits=PROBS), data)[1], "the name decides"


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_columns_are_matched_by_name_and_rows_by_id(tmp_path, data, form):
    frame = pd.DataFrame(PROBS, columns=["cat", "dog", "bird"]).assign(id=["b", "c", "a"])
    path = tmp_path / f"p.{form}"
    frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
    values, logits = read_outputs_file(path, data)
    assert values == pytest.approx(PROBS[[2, 0, 1]][:, [2, 0, 1]])
    assert not logits


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("cat,dog\n1,0\n1,0\n1,0\n", "lacks the class(es) 'bird' of"),
        ("cat,dog,bird,fish\n1,0,0,0\n", "has the column(s) 'fish'"),
        ("cat,dog,bird\n1,0,0\n", "has 1 rows, but"),
        ("id,cat,dog,bird\na,1,0,0\nb,1,0,0\nd,0,0,1\n", "has no row for the id 'c'"),
        ("id,cat,dog,bird\na,1,0,0\na,1,0,0\nc,0,0,1\n", "duplicate id 'a'"),
        (
            "cat,dog,bird\n1,0,0\n0.5,0.2,0.2\n1,0,0\n",
            "row 2 (counting from 1): [0.5, 0.2, 0.2] sums to 0.9",
        ),
        (
            "cat,dog,bird\n1,0,0\n1,,0\n1,0,0\n",
            "row 2 (counting from 1), column 'dog': nan is not a finite float32",
        ),
        (
            "cat,dog,bird\n1,0,0\n1,x,0\n1,0,0\n",
            "row 2 (the header not counted), column 'dog': 'x' is not a number",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, data, content, words):
    path = tmp_path / "p.csv"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        read_outputs_file(path, data)
    assert str(error.value).startswith(str(path))
    assert words in str(error.value)


def many(tmp_path, probs):
    """A file of twenty rows, its dataset, and the outputs."""
    (tmp_path / "m.csv").write_text("candidates,x\n" + "cat|dog,1\nbird,2\n" * 10)
    np.save(tmp_path / "m.npy", probs)
    return tmp_path / "m.npy", read_file(tmp_path / "m.csv")


def test_one_wrong_row_does_not_make_logits_of_probabilities(tmp_path):
    P = np.tile([0.7, 0.2, 0.1], (20, 1))
    P[6] = [-0.1, 0.6, 0.5]
    with pytest.raises(InputError) as error:
        read_outputs_file(*many(tmp_path, P))
    place = "m.npy, row 7 (counting from 1)"
    row = "[-0.1, 0.6, 0.5] sums to 1 with a least value of -0.1"
    assert f"{place}: {row}" in str(error.value)
    assert "19 of 20 rows are such probabilities: correct the others." in str(error.value)
    assert read_outputs_file(*many(tmp_path, np.log(np.abs(P))))[1], "logits are still logits"
    P[:3] = [2, -1, 0]
    assert read_outputs_file(*many(tmp_path, P))[1], "four of twenty rows are too many for a slip"


def test_percentages_are_refused(tmp_path):
    P = np.tile([70.0, 20.0, 10.0], (20, 1))
    with pytest.raises(InputError, match=r"row 1 .*sums to 100 .* percentages: divide them by 100"):
        read_outputs_file(*many(tmp_path, P))
    data = many(tmp_path, P)[1]
    with pytest.raises(InputError, match="divide them by 100"):
        read_outputs_file(saved(tmp_path / "p.npz", probs=P), data)
    assert read_outputs_file(saved(tmp_path / "l.npz", logits=P), data)[1], "the name decides"


def test_rows_are_named_as_the_file_has_them(tmp_path, data):
    path = tmp_path / "p.csv"
    path.write_text("id,cat,dog,bird\nc,1,0,0\nb,0.5,0.2,0.2\na,0,0,1\n")
    with pytest.raises(InputError, match=r"row 2 .*\[0.5, 0.2, 0.2\] sums to 0.9 .* 0.2\."):
        read_outputs_file(path, data)


def test_other_files_are_refused(tmp_path, data):
    with pytest.raises(InputError, match="there is no such file"):
        read_outputs_file(tmp_path / "none.npy", data)
    np.save(tmp_path / "p.npy", PROBS[:, :2])
    with pytest.raises(InputError, match=r"has 2 columns, but .* has 3 classes: bird, cat, dog"):
        read_outputs_file(tmp_path / "p.npy", data)
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read as a plain array"):
        read_outputs_file(tmp_path / "o.npy", data)
    with pytest.raises(InputError, match="expected the array `probs` or `logits`"):
        read_outputs_file(saved(tmp_path / "two.npz", a=PROBS, b=PROBS), data)
    (tmp_path / "p.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(InputError, match="is of the format jsonl"):
        read_outputs_file(tmp_path / "p.jsonl", data)


# ---- probabilities of a run


def written(path, probs, classes=("bird", "cat", "dog"), ids=("a", "b", "c")):
    return write_probabilities(path, lambda rows: probs[rows], classes, ids)


def test_probabilities_are_read_back_by_name(tmp_path, data):
    path = tmp_path / "probs.npz"
    order = [2, 0, 1]
    names = ["dog", "bird", "cat"]
    assert written(path, PROBS[:, order][::-1], names, ["c", "b", "a"]) is None
    with np.load(path, allow_pickle=False) as file:
        kinds = {name: file[name].dtype.kind for name in file}
        assert file["probs"].dtype == np.float16
    assert kinds == {"probs": "f", "classes": "U", "ids": "U"}
    values, logits = read_outputs_file(path, data)
    assert not logits
    assert values.tolist() == PROBS.astype(np.float16).tolist()


@pytest.mark.parametrize("c", [2, 10, 1000, 30_000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 100.0])
def test_half_precision_still_sums_to_one(tmp_path, c, spread):
    probs = np.random.default_rng(0).dirichlet(np.full(c, spread), size=20)
    path = tmp_path / "probs.npz"
    written(path, probs, range(c), range(20))
    with np.load(path) as file:
        found = file["probs"].astype(np.float64)
        assert file["probs"].dtype == np.float16
    assert np.abs(found - probs).max() <= 2**-11
    assert np.abs(found.sum(axis=1) - 1).max() < 0.005 < TOLERANCE
    assert are_probabilities(found).all()


def test_probabilities_too_small_for_half_precision_are_single(tmp_path):
    uniform = np.full((2, 10**6), 1e-6)  # rounded, they sum to 1.013
    assert written(tmp_path / "a.npz", uniform, range(10**6), range(2)) is None
    with np.load(tmp_path / "a.npz") as file:
        assert file["probs"].dtype == np.float32
        assert are_probabilities(file["probs"].astype(np.float64)).all()


@pytest.mark.parametrize(("limit", "kept"), [(80, 4), (50, 2), (1, 1)])
def test_large_outputs_keep_the_most_likely_classes(tmp_path, monkeypatch, limit, kept):
    monkeypatch.setattr("candidly.data.outputs.MAX_BYTES", limit)
    probs = np.random.default_rng(0).dirichlet(np.ones(9), size=5)
    path = tmp_path / "probs.npz"
    remark = written(path, probs, range(9), range(5))
    assert f"holds the {kept} most likely of 9 classes per row, to save space" in remark
    assert ("has no ids, which are too long: rows are in order and holds" in remark) == (limit < 20)
    with np.load(path) as file:
        labels, values = file["labels"], file["probs"]
    best = np.argsort(-probs, axis=1, kind="stable")[:, :kept]
    assert labels.dtype == np.int16
    assert labels.tolist() == best.tolist()
    assert values.tolist() == np.take_along_axis(probs, best, 1).astype(np.float16).tolist()


def test_the_most_likely_classes_alone_are_refused(tmp_path, data):
    path = saved(tmp_path / "p.npz", labels=np.zeros((3, 2), int), probs=PROBS[:, :2])
    with pytest.raises(InputError, match="holds the 2 most likely classes of each row only"):
        read_outputs_file(path, data)
