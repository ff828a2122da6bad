"""From files to arrays for training: by scikit-learn, saved without pickle, alike for new files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from scipy import sparse

from candidly.data import read_examples, read_file
from candidly.data.inputs import InputTransform, fit_inputs
from candidly.errors import InputError


@pytest.fixture
def write(tmp_path):
    def write(text, name="data.csv"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def stored(transform, folder) -> InputTransform:
    transform.save(folder / "inputs")
    return InputTransform.load(folder / "inputs")


def test_tables_are_standardised_and_one_hot_encoded(write, tmp_path):
    data = read_file(
        write(
            "candidates,x,colour,gone,flat\ncat,1,red,,5\ndog,3,blue,,5\ncat,,red,,5\ndog,5,,,5\n"
        )
    )
    transform, X = fit_inputs(data)
    deviation = np.std([1, 3, 5])
    assert transform.facts == {
        "numbers": ["x", "flat"],
        "categories": {"colour": ["", "blue", "red"]},
    }
    assert X.dtype == np.float32
    assert np.allclose(X[:, 0], [-2 / deviation, 0, 0, 2 / deviation]), (
        "a missing number becomes the mean"
    )
    assert X[:, 1].tolist() == [0, 0, 0, 0]
    assert X[:, 2:].tolist() == [[0, 0, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert np.array_equal(stored(transform, tmp_path).apply(data), X)
    later = read_examples(
        write("flat,colour,x\n5,green,3\n5,blue,1\n", "new.csv"), features="x,colour,flat"
    )
    assert np.allclose(
        stored(transform, tmp_path).apply(later), [[0, 0, 0, 0, 0], [-2 / deviation, 0, 0, 1, 0]]
    )


def test_rare_words_of_a_table_do_not_count(write):
    rows = "".join(f"cat,{'often' if i % 2 else f'name {i}'}\n" for i in range(4000))
    transform, X = fit_inputs(read_file(write("candidates,word\n" + rows), features="word"))
    assert transform.facts["categories"] == {"word": ["often"]}
    assert X.sum() == 2000


def test_faults_of_tables_are_told(write):
    transform, _ = fit_inputs(read_file(write("candidates,x,y\ncat,1,a\ndog,2,b\n")))
    with pytest.raises(
        InputError, match=r"new.csv lacks the column\(s\) 'y' that the model was trained on"
    ):
        transform.apply(read_examples(write("x\n1\n", "new.csv")))
    with pytest.raises(
        InputError, match=r"row 2 .*, column 'x': 'many' is text; the model was trained on"
    ):
        transform.apply(read_examples(write("x,y\n1,a\nmany,a\n", "new.csv")))
    with pytest.raises(InputError, match=r"new.csv holds text; the model was trained on table"):
        transform.apply(read_examples(write("text\nmany words\n", "new.csv")))
    with pytest.raises(
        InputError, match=r"new.csv, row 2 \(the header not counted\), id 2, column 'x': inf"
    ):
        transform.apply(read_examples(write("x,y\n1,a\ninf,b\n", "new.csv")))
    with pytest.raises(InputError, match=r"encoder 'resnet' is unknown\. There are: none, lite0"):
        fit_inputs(read_file(write("candidates,x\ncat,1\ndog,2\n")), encoder="resnet")
    with pytest.raises(InputError, match="no column has values to learn from"):
        fit_inputs(read_file(write("candidates,x\ncat,\ndog,\n")))
    with pytest.raises(InputError, match="holds labels but nothing to learn from"):
        fit_inputs(read_file(write("candidates\ncat\n")))


def test_text_becomes_tf_idf(write, tmp_path):
    data = read_file(write("candidates,text\ncat,fine day fine\ndog,rainy day\n"))
    transform, X = fit_inputs(data)
    assert transform.facts["vocabulary"] == ["day", "fine", "rainy"]
    idf = np.log(3 / 2) + 1
    expected = np.array([[1, (1 + np.log(2)) * idf, 0], [1, 0, idf]])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert sparse.issparse(X)
    assert X.format == "csr"
    assert X.nnz == 4
    assert np.allclose(X.toarray(), expected)
    assert X.dtype == np.float32
    again = stored(transform, tmp_path)
    assert (again.apply(data) != X).nnz == 0
    unknown = again.apply(read_examples(write("text\nunheard of\n", "new.csv")))
    assert unknown.toarray().tolist() == [[0, 0, 0]]
    with pytest.raises(InputError, match="no words to learn from"):
        fit_inputs(read_file(write("candidates,text\ncat,?\n")))


def test_vectors_stay_as_they_are(tmp_path):
    X = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "a.npz", X=X, S=np.eye(3, dtype=int))
    transform, found = fit_inputs(read_file(tmp_path / "a.npz"))
    assert found.tolist() == X.tolist()
    np.savez(tmp_path / "b.npz", X=X[:, :1])
    with pytest.raises(InputError, match="holds vectors of 1 numbers; the model was trained on 2"):
        stored(transform, tmp_path).apply(read_examples(tmp_path / "b.npz"))


def test_pixels(tmp_path, write):
    Image.new("L", (4, 3), 77).save(tmp_path / "a.png")
    Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / "b.png")
    transform, X = fit_inputs(
        read_file(write("image,candidates\na.png,cat\nb.png,dog\n")), encoder="none"
    )
    assert (X.shape, X.dtype) == ((2, 3, 4, 3), np.uint8)
    assert X[0].tolist() == [[[77] * 3] * 4] * 3
    assert X[1, 0, 0].tolist() == [1, 2, 3]
    assert json.loads(json.dumps(transform.facts)) == {"encoder": "none", "size": [3, 4]}
    Image.new("L", (400, 300)).save(tmp_path / "a.png")
    _, X = fit_inputs(read_file(write("image,candidates\na.png,cat\nb.png,dog\n")), encoder="none")
    assert X.shape == (2, 32, 32, 3)
    images = np.zeros((2, 5, 5), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", X=images, S=np.eye(2, dtype=int))
    transform, X = fit_inputs(read_file(tmp_path / "a.npz"), encoder="none")
    assert X.shape == (2, 5, 5)
    np.savez(tmp_path / "b.npz", X=images[:, :4])
    with pytest.raises(InputError, match="images of 5 x 4 pixels; the model was trained on 5 x 5"):
        transform.apply(read_examples(tmp_path / "b.npz"))


def test_images_go_through_the_encoder(tmp_path, write, monkeypatch):
    seen = []

    def encode(images, encoder, *, resolution):
        seen.append((images.shape, encoder, resolution))
        return np.zeros((len(images), 7), dtype=np.float32)

    monkeypatch.setattr("candidly.data.encoders.encode", encode)
    Image.new("L", (4, 3), 77).save(tmp_path / "a.png")
    _, X = fit_inputs(read_file(write("image,candidates\na.png,cat\n")))
    assert X.shape == (1, 7)
    assert seen == [((1, 96, 96, 3), "lite0", 96)]


def test_more_than_the_memory_is_refused(write, monkeypatch):
    data = read_file(write("candidates,text\ncat,fine day\ndog,rainy day\n"))
    monkeypatch.setattr("candidly.data.guard.available_memory", lambda: 10)
    with pytest.raises(InputError, match="the table of 3 words needs"):
        fit_inputs(data)
