"""Readers of image sets, on files written here in the official layouts, whole and damaged."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from candidly.bench.sources.catalogue import SETS, load_set, locate
from candidly.bench.sources.images import cifar10, cifar100, idx_images, imagenet32, read_idx, svhn
from candidly.errors import InputError

RNG = np.random.default_rng(0)


def idx_bytes(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + np.array(array.shape, dtype=">u4").tobytes()
        + array.tobytes()
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_plain_and_gzipped(tmp_path, suffix):
    images, labels = RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8), np.arange(5, dtype=np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        data = idx_bytes(array)
        (tmp_path / f"train-{name}-ubyte{suffix}").write_bytes(
            gzip.compress(data) if suffix else data
        )
    assert_read(idx_images(tmp_path, "train"), images, labels)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (idx_bytes(np.zeros((2, 3), np.uint8))[:-1], r"declares \(2, 3\), 6 bytes, but holds 5"),
        (b"\x00\x00\x0d\x01rest", "begins with 00 00 0d 01"),
        (b"", "begins with"),
        (idx_bytes(np.zeros((2, 3), np.uint8))[:9], "ends within its header of 12 bytes"),
    ],
)
def test_damaged_idx_files_are_refused(tmp_path, data, message):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(InputError, match=rf"file .*{message}"):
        read_idx(tmp_path / "file")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ((5, 4, 3), [0, 1, 2, 3], "labels-idx1-ubyte: 4 labels for 5 images"),
        (
            (5, 4),
            [0] * 5,
            r"images-idx3-ubyte: the array is uint8 \(5, 4\), .* uint8 \(any, any, any\)",
        ),
        ((0, 4, 3), [], "images-idx3-ubyte: the array is uint8"),
        ((2, 4, 3), [0, 10], "labels-idx1-ubyte: labels from 0 to 10, expected 0 to 9"),
        ((2, 4, 3), [[0], [1]], r"labels-idx1-ubyte: the labels are uint8 \(2, 1\)"),
    ],
)
def test_idx_files_that_do_not_fit(tmp_path, images, labels, message):
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros(images, np.uint8)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.array(labels, np.uint8)))
    for part in ("test", "t10k"):
        with pytest.raises(InputError, match=message):
            idx_images(tmp_path, part)


def test_missing_and_cut_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte is missing"):
        idx_images(tmp_path, "train")
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(9, np.uint8)))[:-5])
    with pytest.raises(InputError, match=r"x\.gz is not a complete gzip file"):
        read_idx(tmp_path / "x.gz")


def cifar_file(path, images, *labels):
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    np.column_stack([*(np.asarray(kind, np.uint8) for kind in labels), planes]).tofile(path)


def pictures(n):
    return RNG.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)


def assert_read(found, images, labels):
    X, y = found
    assert (X.dtype, y.dtype) == (np.uint8, np.int64)
    assert X.flags.c_contiguous
    assert X.flags.writeable
    np.testing.assert_array_equal(X, images)
    np.testing.assert_array_equal(y, labels)


def test_cifar10_in_its_binary_layout(tmp_path):
    images, labels = pictures(10), np.arange(10)
    for i in range(5):
        cifar_file(
            tmp_path / f"data_batch_{i + 1}.bin",
            images[2 * i : 2 * i + 2],
            labels[2 * i : 2 * i + 2],
        )
    assert_read(cifar10(tmp_path, "train"), images, labels)
    with pytest.raises(InputError, match=r"test_batch\.bin is missing"):
        cifar10(tmp_path, "test")
    cifar_file(tmp_path / "data_batch_3.bin", images[:1], labels[:1])
    with pytest.raises(
        InputError,
        match=r"data_batch_3\.bin has 1 images, and data_batch_1\.bin has 2: one of them is cut",
    ):
        cifar10(tmp_path, "train")
    (tmp_path / "data_batch_3.bin").write_bytes(b"123")
    with pytest.raises(InputError, match=r"data_batch_3\.bin has 3 bytes, not a multiple of 3073"):
        cifar10(tmp_path, "train")


def test_cifar100_has_a_coarse_and_a_fine_byte(tmp_path):
    images, fine = pictures(3), [0, 99, 50]
    cifar_file(tmp_path / "train.bin", images, [19, 0, 7], fine)
    assert_read(cifar100(tmp_path, "train"), images, fine)
    with pytest.raises(InputError, match=r"part='val': expected 'train' or 'test'"):
        cifar100(tmp_path, "val")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (([3], [100]), "labels from 100 to 100, expected 0 to 99"),
        (([20], [7]), "from 20 to 20, expected 0 to 19"),
    ],
)
def test_cifar100_labels_out_of_range(tmp_path, labels, message):
    cifar_file(tmp_path / "test.bin", pictures(1), *labels)
    with pytest.raises(InputError, match=rf"test\.bin: .*{message}"):
        cifar100(tmp_path, "test")


@pytest.mark.parametrize("size", [0, 1, 3073, 3074 * 2 - 1])
def test_cut_cifar_files_are_refused(tmp_path, size):
    cifar_file(tmp_path / "train.bin", pictures(2), [0, 1], [0, 1])
    os.truncate(tmp_path / "train.bin", size)
    with pytest.raises(InputError, match=rf"train\.bin has {size} bytes, not a multiple of 3074"):
        cifar100(tmp_path, "train")


def test_svhn_calls_zero_ten(tmp_path):
    images = pictures(3)
    savemat(
        tmp_path / "train.mat", {"X": images.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [9]])}
    )
    assert_read(svhn(tmp_path / "train.mat"), images, [0, 1, 9])
    whole = (tmp_path / "train.mat").read_bytes()
    for content in (b"", b"not a mat file", whole[:400], whole[:-1], whole[:190]):
        (tmp_path / "bad.mat").write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.mat cannot be read"):
            svhn(tmp_path / "bad.mat")
    with pytest.raises(InputError, match=r"none\.mat is missing"):
        svhn(tmp_path / "none.mat")


GOOD_X = np.zeros((32, 32, 3, 2), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": GOOD_X}, "lacks SVHN's X or y"),
        (
            {"X": GOOD_X.astype(float), "y": [1, 2]},
            r"X is float64 \(32, 32, 3, 2\), but images are uint8",
        ),
        ({"X": GOOD_X[:, :, 0], "y": [1, 2]}, r"X is uint8 \(32, 32, 2\)"),
        (
            {"X": GOOD_X[:28], "y": [1, 2]},
            r"X is uint8 \(28, 32, 3, 2\), but images are uint8 \(32, 32, 3, any\)",
        ),
        ({"X": np.array([[GOOD_X]], object), "y": [1, 2]}, "lacks SVHN's X or y"),
        ({"X": GOOD_X, "y": [1, 2, 3]}, "3 labels for 2 images"),
        ({"X": GOOD_X, "y": [1.0, 2.0]}, "the labels are float64"),
        ({"X": GOOD_X, "y": [0, 11]}, "labels from 0 to 11, expected 1 to 10"),
    ],
)
def test_svhn_of_another_shape_or_kind(tmp_path, arrays, message):
    savemat(tmp_path / "bad.mat", arrays)
    with pytest.raises(InputError, match=rf"bad\.mat.*{message}"):
        svhn(tmp_path / "bad.mat")


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def test_imagenet32_joins_its_batches_and_subtracts_nothing(tmp_path):
    images, labels = pictures(11), np.array([1000, *range(1, 11)])
    for i in range(
        11
    ):  # batch 10 comes after batch 9; a mean above the pixels must not make them wrap around
        mean = np.full(3072, 255.0)
        np.savez(
            tmp_path / f"train_data_batch_{i + 1}.npz",
            data=planes(images[i : i + 1]),
            labels=labels[i : i + 1],
            mean=mean,
        )
    assert_read(imagenet32(tmp_path, "train"), images, labels - 1)
    with pytest.raises(InputError, match=r"val_data\.npz is missing"):
        imagenet32(tmp_path, "test")
    np.savez(tmp_path / "val_data.npz", data=planes(images), labels=labels)
    assert_read(imagenet32(tmp_path, "test"), images, labels - 1)


GOOD_DATA = np.zeros((2, 3072), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": GOOD_DATA}, "'labels' cannot be read"),
        ({"labels": [1, 2]}, "'data' cannot be read"),
        ({"data": GOOD_DATA.astype(np.int16), "labels": [1, 2]}, r"data is int16 \(2, 3072\)"),
        (
            {"data": GOOD_DATA[:, 1:], "labels": [1, 2]},
            r"data is uint8 \(2, 3071\), but images are uint8 \(2, 3072\)",
        ),
        (
            {"data": GOOD_DATA, "labels": [1, 2, 3]},
            r"data is uint8 \(2, 3072\), but images are uint8 \(3, 3072\)",
        ),
        ({"data": GOOD_DATA, "labels": [[1, 2]]}, r"labels are int64 \(1, 2\)"),
        ({"data": GOOD_DATA[:0], "labels": np.empty(0, int)}, r"labels are int64 \(0,\)"),
        ({"data": GOOD_DATA, "labels": [0, 1]}, "labels from 0 to 1, expected 1 to 1000"),
        ({"data": GOOD_DATA, "labels": [1, 1001]}, "labels from 1 to 1001, expected 1 to 1000"),
        (
            {"data": GOOD_DATA, "labels": np.array([1, 2], object)},
            "'labels' cannot be read .*allow_pickle=False",
        ),
        (
            {"data": np.array([1, 2], object), "labels": [1, 2]},
            "'data' cannot be read .*allow_pickle=False",
        ),
    ],
)
def test_imagenet32_of_another_shape_or_kind(tmp_path, arrays, message):
    np.savez(tmp_path / "val_data.npz", **arrays)
    with pytest.raises(InputError, match=rf"val_data\.npz: .*{message}"):
        imagenet32(tmp_path, "test")


def test_damaged_npz_files_are_refused(tmp_path):
    path = tmp_path / "val_data.npz"
    np.savez_compressed(path, data=planes(pictures(2)), labels=[1, 2])
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255  # zip files carry a checksum of their own
    pickled = np.lib.format.magic(1, 0) + b"rest"
    for content in (
        b"",
        b"PK",
        whole[: len(whole) // 2],
        whole[:-1],
        bytes(flipped),
        b"\x80\x04N.",
        pickled,
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"val_data\.npz: .*cannot be read"):
            imagenet32(tmp_path, "test")


DATA = os.environ.get("CANDIDLY_DATA")
real = pytest.mark.skipif(not DATA, reason="CANDIDLY_DATA names no folder of benchmark data")


def load_or_skip(name, part="train"):
    if locate(SETS[name], part, Path(DATA)) is None:
        pytest.skip(f"{DATA} holds no {name} ({part})")
    return load_set(name, part)


@pytest.mark.data
@real
@pytest.mark.parametrize(("part", "count"), [("train", 5000), ("test", 1000)])
def test_real_cifar10(part, count):
    X, y = load_or_skip("cifar10", part)
    assert X.shape == (10 * count, 32, 32, 3)
    assert np.bincount(y).tolist() == [count] * 10
    if part == "train":
        np.testing.assert_allclose(X.mean((0, 1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)


@pytest.mark.data
@real
def test_real_cifar100():
    X, y = load_or_skip("cifar100")
    assert X.shape[0] in (30_000, 50_000)  # a sample of the set, or its official training part
    assert X.shape[1:] == (32, 32, 3)
    assert len(np.unique(y)) == 100
    np.testing.assert_allclose(X.mean((0, 1, 2)) / 255, [0.5071, 0.4865, 0.4409], atol=5e-3)


@pytest.mark.data
@real
def test_real_svhn():
    X, y = load_or_skip("svhn")
    assert X.shape[1:] == (32, 32, 3)
    assert (
        np.bincount(y).argmax() == 1
    )  # house numbers begin with 1 more often than with anything else
    assert len(np.unique(y)) == 10


@pytest.mark.data
@real
def test_real_imagenet32_is_near_its_stored_mean():
    X, y = load_or_skip("imagenet32")
    folder = locate(SETS["imagenet32"], "train", Path(DATA))
    with np.load(folder / "train_data_batch_1.npz", allow_pickle=False) as file:
        mean = file["mean"].reshape(3, 32, 32).transpose(1, 2, 0)
    assert y.min() >= 0
    assert np.abs(X.mean(0) - mean).max() < 1.0


@pytest.mark.data
@real
@pytest.mark.parametrize("name", ["fashion-mnist", "mnist"])
def test_real_idx_sets(name):
    X, y = load_or_skip(name)
    assert X.shape == (60_000, 28, 28)
    assert len(np.unique(y)) == 10
