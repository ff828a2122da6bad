"""Image files: every kind of pixel becomes 8-bit RGB, and nothing dangerous is opened."""

from __future__ import annotations

import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from candidly.data import read_file
from candidly.data.pictures import load_image, load_images
from candidly.errors import InputError, MissingExtraError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set" / "images").mkdir(parents=True)
    Image.new("RGB", (4, 3), (10, 20, 30)).save(tmp_path / "set" / "images" / "a.png")
    Image.new("L", (4, 3), 77).save(tmp_path / "set" / "images" / "b.png")
    Image.new("RGB", (4, 3)).save(tmp_path / "secret.png")
    return tmp_path / "set"


def table(folder, *names, candidates="cat|dog"):
    (folder / "metadata.csv").write_text(
        "file_name,candidates\n" + "".join(f"{n},{candidates}\n" for n in names)
    )
    return folder


def test_a_folder_with_a_table(folder):
    data = read_file(table(folder, "images/a.png", "images/b.png"))
    assert data.kind == "images"
    assert [path.name for path in data.inputs] == ["a.png", "b.png"]
    assert data.source.path == folder / "metadata.csv"
    (folder / "metadata.csv").unlink()
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "images/b.png", "candidates": ["cat"], "id": "x"}\n'
    )
    data = read_file(folder)
    assert [path.name for path in data.inputs] == ["b.png"]
    assert data.ids.tolist() == ["x"]
    assert read_file(folder, id="file_name").ids.tolist() == ["images/b.png"]
    (folder / "metadata.csv").write_text("file_name,candidates\n")
    with pytest.raises(InputError, match=r"found 2"):
        read_file(folder)


def test_names_may_be_absolute_inside_the_folder(folder):
    data = read_file(table(folder, folder / "images" / "a.png"))
    assert load_images(data.inputs, (3, 4)).tolist() == [[[[10, 20, 30]] * 4] * 3]


@pytest.mark.parametrize(
    "name",
    ["../secret.png", "images/../../secret.png", "/etc/passwd", "link.png", "door/secret.png"],
)
def test_names_that_lead_out_are_refused(folder, name):
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    (folder / "door").symlink_to(folder.parent, target_is_directory=True)
    with pytest.raises(
        InputError,
        match=rf"metadata.csv, row 2 \(the header not counted\), .*'{name}' leads out of",
    ):
        read_file(table(folder, "images/a.png", name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("images/c.png", "'images/c.png' is missing: there is no file"),
        ("images", "'images' is missing"),
        ("", "empty"),
        ("x" * 5000, "is not a file name"),
        ("a\0b", "is not a file name"),
        ("https://example.org/a.png", "is missing"),
    ],
)
def test_other_names_are_told(folder, name, words):
    with pytest.raises(InputError, match=f"row 2 .*{words}"):
        read_file(table(folder, "images/a.png", name))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("RGB", (1, 1), (1, 2, 3)), (1, 2, 3)),
        (Image.new("L", (1, 1), 9), (9, 9, 9)),
        (Image.new("1", (1, 1), 1), (255, 255, 255)),
        (Image.fromarray(np.array([[65535]], dtype=np.uint16)), (255, 255, 255)),
        (Image.fromarray(np.array([[257 * 100]], dtype=np.uint16)), (100, 100, 100)),
        (Image.new("RGBA", (1, 1), (10, 20, 30, 255)), (10, 20, 30)),
        (Image.new("RGBA", (1, 1), (10, 20, 30, 0)), (255, 255, 255)),
        (Image.new("RGBA", (1, 1), (0, 0, 0, 51)), (204, 204, 204)),
        (Image.new("LA", (1, 1), (7, 0)), (255, 255, 255)),
        (Image.new("P", (1, 1), 0), (0, 0, 0)),
    ],
    ids=[
        "rgb",
        "grey",
        "bits",
        "16 bits, white",
        "16 bits",
        "alpha",
        "transparent",
        "veil",
        "grey, alpha",
        "palette",
    ],
)
def test_pixels(tmp_path, image, expected):
    image.save(tmp_path / "a.png")
    pixels = load_image(tmp_path / "a.png")
    assert pixels.dtype == np.uint8
    assert pixels.tolist() == [[list(expected)]]


def test_a_16_bit_ramp_keeps_its_order(tmp_path):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    for name in ("a.png", "a.tif"):
        Image.fromarray(ramp).save(tmp_path / name)
        assert load_image(tmp_path / name)[..., 0].ravel().tolist() == list(range(256))


def test_cmyk_rotation_and_resizing(tmp_path):
    Image.new("CMYK", (2, 1), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    assert np.abs(load_image(tmp_path / "a.jpg").astype(int) - [255, 0, 0]).max() < 10
    turned = Image.new("RGB", (4, 2))
    exif = turned.getexif()
    exif[0x0112] = 6  # a camera held upright
    turned.save(tmp_path / "b.jpg", exif=exif)
    assert load_image(tmp_path / "b.jpg").shape == (4, 2, 3)
    assert load_images([tmp_path / "a.jpg", tmp_path / "b.jpg"], (5, 7)).shape == (2, 5, 7, 3)


def huge_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(9000)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(100_000, 100_000), (12_000, 12_000)])
def test_an_image_of_10_gigapixels_is_refused_by_its_header(tmp_path, size, recwarn):
    path = tmp_path / "huge.png"
    path.write_bytes(huge_png(*size))
    with pytest.raises(
        InputError, match=r"huge.png (is too large|has 12000 x 12000 pixels; at most 100,000,000)"
    ):
        load_image(path)
    assert not recwarn.list


def test_too_many_images_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("candidly.data.guard.available_memory", lambda: 10**6)
    with pytest.raises(InputError, match=r"1000 images of 32 x 32 pixels needs 3.072 MB of memory"):
        load_images([tmp_path / "a.png"] * 1000, (32, 32))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no image",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    ],
    ids=["empty", "text", "PostScript", "SVG"],
)
def test_what_is_no_image_is_told(tmp_path, content):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a.png is not an image that can be read"):
        load_image(path)


def test_broken_images_are_told(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(np.random.default_rng(0).integers(256, size=(50, 50, 3), dtype=np.uint8)).save(
        path
    )
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match=r"a.png is a broken image"):
        load_image(path)
    Image.new("F", (2, 2)).save(tmp_path / "f.tif")
    with pytest.raises(InputError, match=r"f.tif is a broken image .*floating-point"):
        load_image(tmp_path / "f.tif")


def test_pillow_is_named_if_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pillow, .*pip install 'candidly\[image\]'"):
        load_image(tmp_path / "a.png")
