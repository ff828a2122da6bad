"""Image files as uint8 pixels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from candidly.data.guard import MAX_PIXELS, refuse_larger_than_memory
from candidly.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


def load_images(
    paths: Sequence[Path], size: tuple[int, int], place: Callable[[int], str] | None = None
) -> NDArray[np.uint8]:
    """Load images of one size.

    Parameters
    ----------
    paths : sequence of Path
        The files.
    size : (int, int)
        Height and width; images of another size are resized.
    place : callable, optional
        Says where an image, counting from 0, is named; for messages.

    Returns
    -------
    ndarray of uint8, of shape (n, h, w, 3)

    Raises
    ------
    InputError
        If a file is missing or broken, or the images do not fit into memory.
    """
    height, width = size
    refuse_larger_than_memory(
        len(paths) * height * width * 3, f"{len(paths)} images of {width} x {height} pixels"
    )
    images = np.empty((len(paths), height, width, 3), dtype=np.uint8)
    for row, (pixels, path) in enumerate(zip(images, paths, strict=True)):
        try:
            pixels[:] = load_image(path, size)
        except InputError as error:
            raise InputError(f"{place(row)}: {error}" if place else str(error)) from error
    return images


def load_image(path: Path, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """Load an image as 8-bit RGB.

    Grey is repeated, 16 bits become 8, transparent pixels show white, and the rotation that cameras
    store is applied.

    Parameters
    ----------
    path : Path
        The file.
    size : (int, int), optional
        Height and width to resize to.

    Returns
    -------
    ndarray of uint8, of shape (h, w, 3)

    Raises
    ------
    InputError
        If the file is broken or too large.
    MissingExtraError
        If Pillow is not installed.
    """
    with open_image(path) as image:
        from PIL import Image, ImageOps

        try:
            image.seek(0)
            flat = _as_rgb(ImageOps.exif_transpose(image))
        except Exception as error:  # on damaged files Pillow raises almost anything
            raise InputError(
                f"{path} is a broken image ({error}). Replace it, or drop its row."
            ) from error
        if size is not None and flat.size != size[::-1]:
            flat = flat.resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(flat)


def open_image(path: Path) -> Image:
    """Open an image without decoding it; refuse one whose header declares too many pixels."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("reading images", "pillow", "image") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(path, formats=IMAGE_FORMATS)
    except Image.DecompressionBombError as error:
        raise InputError(f"{path} is too large: {error}. Make it smaller.") from None
    except Exception as error:  # on damaged files Pillow raises almost anything
        raise InputError(
            f"{path} is not an image that can be read ({error}). Replace it, or drop its row."
        ) from error
    width, height = image.size
    if width * height > MAX_PIXELS:
        image.close()
        raise InputError(
            f"{path} has {width} x {height} pixels; at most {MAX_PIXELS:,} are read. Make it "
            "smaller."
        )
    return image


def _as_rgb(image: Any) -> Image:
    """Convert to 8-bit RGB without transparency."""
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits, whatever the file calls them
        values = np.clip(np.asarray(image, dtype=np.int64), 0, 65535)
        image = Image.fromarray(np.round(values / 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; expected 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
