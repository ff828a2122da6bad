"""Readers of image sets, on files written here in the official layouts, whole and damaged."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from candidly.data.images import cifar10, idx_images, read_idx, svhn
from candidly.errors import InputError

RNG = np.random.default_rng(0)


def idx_bytes(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_plain_and_gzipped(tmp_path, suffix):
    images, labels = RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8), np.arange(5, dtype=np.uint8)
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        data = idx_bytes(array)
        (tmp_path / f"train-{name}-ubyte{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    X, y = idx_images(tmp_path, "train")
    np.testing.assert_array_equal(X, images)
    np.testing.assert_array_equal(y, labels)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (idx_bytes(np.zeros((2, 3), np.uint8))[:-1], r"declares \(2, 3\), 6 bytes, but holds 5"),
        (b"\x00\x00\x0d\x01rest", "begins with 00 00 0d 01"),
        (b"", "begins with"),
    ],
)
def test_damaged_idx_files_are_told(tmp_path, data, message):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(InputError, match=message):
        read_idx(tmp_path / "file")


def test_missing_and_cut_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte is missing"):
        idx_images(tmp_path, "train")
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx_bytes(np.zeros(9, np.uint8)))[:-5])
    with pytest.raises(InputError, match=r"x\.gz is not a whole gzip file"):
        read_idx(tmp_path / "x.gz")


def cifar_file(path, images, labels):
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    np.concatenate([labels[:, None].astype(np.uint8), planes], axis=1).tofile(path)


def test_cifar10_in_its_binary_layout(tmp_path):
    images, labels = RNG.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8), np.arange(10)
    for i in range(5):
        cifar_file(tmp_path / f"data_batch_{i + 1}.bin", images[2 * i : 2 * i + 2], labels[2 * i : 2 * i + 2])
    X, y = cifar10(tmp_path, "train")
    np.testing.assert_array_equal(X, images)
    np.testing.assert_array_equal(y, labels)
    with pytest.raises(InputError, match=r"test_batch\.bin is missing"):
        cifar10(tmp_path, "test")
    (tmp_path / "data_batch_3.bin").write_bytes(b"123")
    with pytest.raises(InputError, match=r"data_batch_3\.bin has 3 bytes, which is no multiple of 3073"):
        cifar10(tmp_path, "train")


def test_svhn_calls_zero_ten(tmp_path):
    images = RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    savemat(tmp_path / "train.mat", {"X": images.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [9]])})
    X, y = svhn(tmp_path / "train.mat")
    np.testing.assert_array_equal(X, images)
    assert y.tolist() == [0, 1, 9]
    for content in (b"not a mat file", (tmp_path / "train.mat").read_bytes()[:400]):
        (tmp_path / "bad.mat").write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.mat cannot be read"):
            svhn(tmp_path / "bad.mat")
    with pytest.raises(InputError, match=r"none\.mat is missing"):
        svhn(tmp_path / "none.mat")


@pytest.mark.shared
@pytest.mark.skipif("CANDIDLY_DATA" not in os.environ, reason="CANDIDLY_DATA names no folder of benchmark data")
def test_the_real_sets():
    folder = Path(os.environ["CANDIDLY_DATA"])
    X, y = cifar10(folder / "cifar-10-batches-bin", "train")
    assert X.shape == (50_000, 32, 32, 3)
    assert np.bincount(y).tolist() == [5000] * 10
    np.testing.assert_allclose(X.mean((0, 1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)
    digits, labels = svhn(folder / "svhn" / "train_32x32.mat")
    assert digits.shape[1:] == (32, 32, 3)
    assert set(np.unique(labels)) == set(range(10))
