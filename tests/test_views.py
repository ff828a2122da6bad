"""Views: values by hand, laws of randomness, and the same views in any division of a batch."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from candidly import CandidateSets, fit
from candidly.errors import InputError
from candidly.tensors.mapped import MappedRows
from candidly.tensors.nets import build_net
from candidly.tensors.recipes import (
    COLOUR,
    GEOMETRY,
    change_colours,
    colour_matrix,
    jitter,
    mirror,
    mix,
    moves,
    rand_augment,
    random_box,
    resized_mild,
    resized_strong,
    strong,
    warp,
)
from candidly.tensors.views import VIEWS, ImageViews, TableViews, VersionViews, Views, make_views

CIFAR = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(n: int, *shape: int, seed: int = 0, low: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, 256, (n, *shape), dtype=np.uint8)


def pixels(views: ImageViews, batch: Tensor) -> np.ndarray:
    """Back from what the net sees to (n, h, w, c) in 0..255."""
    return ((batch.permute(0, 2, 3, 1).double() * views.std + views.mean) * 255).numpy()


DATA = {
    "colour": random_images(40, 16, 16, 3),
    "grey": random_images(40, 16, 16),
    "tiny": random_images(40, 8, 8, 3),
    "oblong": random_images(40, 12, 20, 3),
    "table": np.random.default_rng(0).normal(3, 2, (40, 7)),
}


# Laws of every kind on every sort of data


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("name", DATA)
def test_parts_equal_the_whole_bit_for_bit(name: str, kind: str) -> None:
    views, index = make_views(DATA[name]), torch.randperm(40, generator=rng())[:37]
    whole = views(index, kind, rng(5))
    for cuts in ([0, 18, 37], [0, 1, 1, 9, 36, 37]):
        parts = [views(index, kind, rng(5), slice(a, b)) for a, b in pairwise(cuts)]
        assert torch.equal(torch.cat(parts), whole)


def test_parts_equal_the_whole_for_batches_that_are_worked_on_by_several_threads() -> None:
    views, index = make_views(random_images(300, 32, 32, 3)), torch.arange(300)
    for kind in VIEWS:
        parts = [
            views(index, kind, rng(1), part)
            for part in (slice(0, 1), slice(1, 128), slice(128, None))
        ]
        assert torch.equal(torch.cat(parts), views(index, kind, rng(1)))


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("name", DATA)
def test_views_are_reproducible_finite_and_leave_the_data_alone(name: str, kind: str) -> None:
    data = DATA[name].copy()
    views, index = make_views(data), torch.tensor([3, 1, 1, 39])
    batch = views(index, kind, rng(7))
    assert batch.dtype == torch.float32
    assert batch.shape == (4, *views.shape)
    assert batch.isfinite().all()
    assert torch.equal(batch, views(index, kind, rng(7)))
    assert torch.equal(batch, views(index, kind, rng(8))) == (kind == "plain")
    assert torch.equal(views(index, "plain"), make_views(DATA[name])(index, "plain"))
    np.testing.assert_array_equal(data, DATA[name])
    if name != "table":
        assert batch.is_contiguous(memory_format=torch.channels_last)
        assert pixels(views, batch).min() > -1e-3
        assert pixels(views, batch).max() < 255.001


@pytest.mark.parametrize("name", DATA)
def test_shape_length_and_like(name: str) -> None:
    views = make_views(DATA[name][:30])
    shapes = {
        "colour": (3, 16, 16),
        "grey": (1, 16, 16),
        "tiny": (3, 8, 8),
        "oblong": (3, 12, 20),
        "table": (7,),
    }
    assert (len(views), views.shape) == (30, shapes[name])
    other = views.like(DATA[name][10:])
    assert type(other) is type(views)
    assert torch.equal(other(torch.arange(20), "plain"), views(torch.arange(10, 30), "plain"))
    with pytest.raises(InputError, match="as in training"):
        views.like(DATA[name][:, :5])


# Images


def test_plain_is_normalised_by_the_given_moments() -> None:
    X = random_images(5, 4, 6, 3)
    batch = make_views(X, **CIFAR)(torch.tensor([4, 0]), "plain")
    expected = (X[[4, 0]] / 255 - np.array(CIFAR["mean"])) / np.array(CIFAR["std"])
    np.testing.assert_allclose(batch.numpy(), expected.transpose(0, 3, 1, 2), atol=2e-6)


def test_own_moments_give_mean_zero_and_deviation_one() -> None:
    X = random_images(50, 6, 6, 3) // np.array([1, 2, 4], dtype=np.uint8)
    views = make_views(X)
    np.testing.assert_allclose(views.mean, X.mean((0, 1, 2)) / 255, rtol=1e-12)
    np.testing.assert_allclose(views.std, X.std((0, 1, 2)) / 255, rtol=1e-12)
    batch = views(torch.arange(50), "plain")
    np.testing.assert_allclose(batch.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(batch.std((0, 2, 3), correction=0), 1, atol=1e-5)
    assert make_views(np.full((2, 4, 4), 7, np.uint8)).std.tolist() == [1]


def crops(padded: np.ndarray, h: int, w: int) -> list[bytes]:
    """All windows and their mirror images, by a naive loop."""
    places = [
        (i, j) for i in range(padded.shape[0] - h + 1) for j in range(padded.shape[1] - w + 1)
    ]
    windows = [padded[i : i + h, j : j + w] for i, j in places]
    return [
        np.ascontiguousarray(v).tobytes() for window in windows for v in (window, window[:, ::-1])
    ]


def test_weak_views_are_the_crops_of_the_padded_image_equally_often() -> None:
    X = random_images(1, 16, 16, 3, low=1)
    views = make_views(X)
    batch = (
        pixels(views, views(torch.zeros(5000, dtype=torch.long), "weak", rng()))
        .round()
        .astype(np.uint8)
    )
    possible = crops(np.pad(X[0], ((2, 2), (2, 2), (0, 0))), 16, 16)
    assert len(set(possible)) == 5 * 5 * 2
    place, count = np.unique(
        [possible.index(image.tobytes()) for image in batch], return_counts=True
    )
    assert place.tolist() == list(range(50))
    assert ((count - 100) ** 2 / 100).sum() < 85.4  # chi-squared, 49 degrees of freedom, p = 0.001


def test_padding_is_black_and_four_pixels_wide_at_32() -> None:
    views = make_views(np.full((1, 32, 32, 3), 200, np.uint8), **CIFAR)
    batch = pixels(views, views(torch.zeros(500, dtype=torch.long), "weak", rng())).round()
    assert np.unique(batch).tolist() == [0, 200]
    black_rows = (batch[:, :, 16, 0] == 0).sum(1)
    assert set(black_rows.tolist()) == {0, 1, 2, 3, 4}


def test_mirror_is_numpys_reflection() -> None:
    place = mirror(torch.arange(-4, 11), 7)
    assert place.tolist() == np.pad(np.arange(7), 4, mode="reflect").tolist()


def test_cutout_blackens_at_most_a_square_of_half_the_height(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in COLOUR:  # leave only crop, flip and Cutout
        monkeypatch.setitem(COLOUR, name, lambda x, m: x)
    monkeypatch.setattr(
        "candidly.tensors.recipes.moves", lambda choice, m, h, w: torch.eye(3).expand(len(m), 3, 3)
    )
    views = make_views(np.full((1, 32, 32, 3), 100, np.uint8), **CIFAR)
    batch = pixels(views, views(torch.zeros(2000, dtype=torch.long), "strong", rng()))
    assert np.unique(batch.round(3)).tolist() == [0, 100]
    area = (batch.round()[..., 0] == 0).sum((1, 2))
    assert (area.min(), area.max()) == (64, 256)  # the centre in a corner; the whole square inside
    inside = np.mean([min(c + 8, 32) - max(c - 8, 0) for c in range(32)])
    assert area.mean() == pytest.approx(inside**2, rel=0.02)


def test_strong_views_have_a_black_square_and_change_every_image() -> None:
    views = make_views(random_images(64, 32, 32, 3, low=1), **CIFAR)
    batch = pixels(views, views(torch.arange(64), "strong", rng()))
    black = (np.abs(batch) < 1e-3).all(-1).sum((1, 2))
    assert black.min() >= 64
    assert len(np.unique(batch.reshape(64, -1), axis=0)) == 64


# Operations on colours

OPERATIONS = [*COLOUR, *GEOMETRY]


def colour(name: str, x: np.ndarray, m: float) -> np.ndarray:
    """One image (h, w, c) through one operation."""
    planes = torch.from_numpy(x).permute(2, 0, 1)[None]
    changed = change_colours(
        planes, torch.tensor([[list(COLOUR).index(name)]]), torch.tensor([[m]])
    )
    return changed[0].permute(1, 2, 0).numpy()


def geometry(name: str, m: Tensor, h: int, w: int) -> Tensor:
    return moves(torch.full(m.shape, OPERATIONS.index(name)), m, h, w)


@pytest.mark.parametrize("name", COLOUR)
@pytest.mark.parametrize("channels", [1, 3])
def test_magnitude_zero_changes_nothing(name: str, channels: int) -> None:
    x = random_images(1, 20, 20, channels)[0]
    np.testing.assert_array_equal(colour(name, x, 0.0), x)
    if not (name == "saturation" and channels == 1):  # a grey image has no colour to change
        assert (colour(name, x // 2 + 20, 0.7) != x // 2 + 20).any()
    else:
        np.testing.assert_array_equal(colour(name, x, 0.7), x)


def grey_row(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint8)[None, :, None]


@pytest.mark.parametrize(
    ("name", "m", "before", "after"),
    [
        ("brightness", 0.5, (0, 100, 200), (0, 145, 255)),
        ("brightness", -1.0, (0, 100, 200), (0, 10, 20)),
        ("contrast", -1.0, (0, 100, 200), (90, 100, 110)),
        ("contrast", 0.5, (0, 100, 140), (0, 109, 167)),  # around the mean, 80
        ("posterize", 1.0, (0, 15, 16, 255), (0, 0, 16, 240)),
        ("posterize", -0.5, (3, 4, 130), (0, 4, 128)),
        ("solarize", 0.5, (0, 127, 128, 255), (0, 127, 127, 0)),
        ("solarize", -1.0, (0, 127, 255), (255, 128, 0)),
        ("invert", 0.1, (0, 100, 255), (255, 155, 0)),
        ("autocontrast", 0.1, (50, 50, 90, 60), (0, 0, 255, 64)),
        ("autocontrast", 1.0, (77, 77, 77), (77, 77, 77)),
        (
            "equalize",
            1.0,
            (10, 20, 20),
            (10, 20, 20),
        ),  # fewer than 255 pixels: Pillow leaves them alone
    ],
)
def test_colour_operation_by_hand(
    name: str, m: float, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    assert colour(name, grey_row(*before), m).ravel().tolist() == list(after)


def test_autocontrast_works_on_each_channel() -> None:
    x = np.array([[[0, 10, 7], [255, 30, 7]]], dtype=np.uint8)
    assert colour("autocontrast", x, 1.0).tolist() == [[[0, 0, 7], [255, 255, 7]]]


def test_saturation_moves_colours_towards_their_grey_level() -> None:
    x = np.array([[[200, 100, 50]]], dtype=np.uint8)
    level = 0.299 * 200 + 0.587 * 100 + 0.114 * 50
    expected = np.round(level + 0.1 * (x - level))
    np.testing.assert_array_equal(colour("saturation", x, -1.0), expected)


def test_sharpness_by_hand() -> None:
    x = np.zeros((5, 5, 1), dtype=np.uint8)
    x[2, 2] = 130
    # Smoothed: 50 in the middle, 10 around; a tenth of x remains
    soft = colour("sharpness", x, -1.0)[..., 0]
    assert soft[2].tolist() == [0, 9, 58, 9, 0]
    assert colour("sharpness", x, 1.0)[2, 2, 0] == 202  # 50 + 1.9 * 80
    assert colour("sharpness", grey_row(1, 200), 1.0).ravel().tolist() == [1, 200]


def naive_equalize(plane: np.ndarray) -> np.ndarray:
    """Pillow's ImageOps.equalize for one channel, as it is written there."""
    histogram = [int((plane == v).sum()) for v in range(256)]
    filled = [count for count in histogram if count]
    step = (sum(filled) - filled[-1]) // 255
    if len(filled) <= 1 or step == 0:
        return plane
    table, n = [], step // 2
    for count in histogram:
        table.append(min(n // step, 255))
        n += count
    return np.array(table)[plane]


@pytest.mark.parametrize("low", [0, 180, 255])
def test_equalize_is_pillows(low: int) -> None:
    x = random_images(1, 32, 24, 3, low=low)[0]
    x[..., 1] = x[..., 1] // 4
    expected = np.stack([naive_equalize(x[..., k]) for k in range(3)], axis=-1)
    np.testing.assert_array_equal(colour("equalize", x, 1.0), expected)


# Geometry


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_of_magnitude_zero_changes_nothing(name: str) -> None:
    matrix = geometry(name, torch.zeros(2), 12, 20)
    assert torch.equal(matrix, torch.eye(3).expand(2, 3, 3))
    x = torch.from_numpy(DATA["oblong"][:2])
    np.testing.assert_allclose(warp(x, matrix), x, atol=2e-3)


def moved(name: str, m: float, x: np.ndarray) -> np.ndarray:
    h, w = x.shape
    result = warp(torch.from_numpy(x)[None, :, :, None], geometry(name, torch.tensor([m]), h, w))
    return result[0, :, :, 0].numpy()


def test_translation_by_whole_pixels_leaves_black_behind() -> None:
    x = random_images(1, 20, 10, low=1)[0]
    np.testing.assert_allclose(
        moved("translate_x", 1.0, x), np.pad(x[:, 3:], ((0, 0), (0, 3))), atol=1e-3
    )
    np.testing.assert_allclose(
        moved("translate_y", -1.0, x), np.pad(x[:-6], ((6, 0), (0, 0))), atol=1e-3
    )


def test_shear_moves_each_row_by_its_height() -> None:
    x = np.zeros((21, 21), dtype=np.uint8)
    x[:, 10] = 100  # a vertical line through the centre
    sheared = moved("shear_x", 1.0, x)
    centre = (sheared * np.arange(21)).sum(1) / sheared.sum(1)
    np.testing.assert_allclose(centre, 10 - 0.3 * (np.arange(21) - 10), atol=1e-4)
    np.testing.assert_allclose(moved("shear_y", 1.0, x.T), sheared.T, atol=1e-3)


def test_rotation_is_one_of_thirty_degrees_also_for_oblong_images() -> None:
    matrix = geometry("rotate", torch.tensor([1.0, -1.0]), 12, 20)
    cos, sin = np.cos(np.pi / 6), np.sin(np.pi / 6)
    np.testing.assert_allclose(matrix[0, :2, :2], [[cos, -sin], [sin, cos]], atol=1e-3)
    np.testing.assert_allclose(matrix[0] @ matrix[1], np.eye(3), atol=1e-6)


# Two operations for each image


def wish(*pairs: tuple[str, float]) -> list[float]:
    """The uniform numbers with which `rand_augment` chooses these operations and magnitudes."""
    choice = [(OPERATIONS.index(name) + 0.5) / len(OPERATIONS) for name, _ in pairs]
    return choice + [(m + 1) / 2 for _, m in pairs]


def test_each_image_gets_its_own_two_operations_in_turn() -> None:
    x = torch.from_numpy(random_images(3, 20, 20, 3))
    before = x.clone()
    wishes = [
        wish(("invert", 1.0), ("brightness", -0.5)),
        wish(("rotate", 0.5), ("translate_x", 1.0)),
        wish(("posterize", 1.0), ("shear_y", -1.0)),
    ]
    result, matrix = rand_augment(x, torch.tensor(wishes))
    assert torch.equal(x, before)
    image = before.numpy()
    np.testing.assert_allclose(result[0], 0.55 * (255.0 - image[0]), atol=0.501)  # rounded
    np.testing.assert_array_equal(result[1], image[1])
    np.testing.assert_array_equal(result[2], image[2] // 16 * 16)
    half, one = torch.tensor([0.5]), torch.ones(1)
    turned = geometry("rotate", half, 20, 20) @ geometry("translate_x", one, 20, 20)
    np.testing.assert_allclose(matrix[0], np.eye(3))
    np.testing.assert_allclose(matrix[1], turned[0], atol=1e-5)
    np.testing.assert_allclose(matrix[2], geometry("shear_y", -one, 20, 20)[0], atol=1e-6)


def test_every_operation_is_drawn_equally_often(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = dict.fromkeys(COLOUR, 0)
    for name in COLOUR:

        def count(x: Tensor, m: Tensor, name: str = name) -> Tensor:
            drawn[name] += len(x)
            return x

        monkeypatch.setitem(COLOUR, name, count)
    rand_augment(
        torch.zeros(7000, 1, 1, 3, dtype=torch.uint8), torch.rand(7000, 4, generator=rng())
    )
    np.testing.assert_allclose(list(drawn.values()), 1000, rtol=0.1)


def test_strong_crops_from_a_mirrored_frame() -> None:
    x = random_images(1, 16, 16, 3, low=1)
    still, corner = wish(("brightness", 0.0), ("rotate", 0.0)), [0.0, 0.0]
    for u, window in (((0.99, 0.0, 0.9), np.s_[4:, :-4]), ((0.0, 0.99, 0.1), np.s_[:-4, 4:])):
        numbers = {3: torch.tensor([u]), 4: torch.tensor([still]), 2: torch.tensor([corner])}
        expected = np.pad(x[0], ((2, 2), (2, 2), (0, 0)), mode="reflect")[window].copy()
        expected = expected[:, ::-1].copy() if u[2] < 0.5 else expected
        expected[:4, :4] = 0  # the part of the square around the first pixel that lies inside
        np.testing.assert_allclose(
            strong(torch.from_numpy(x), numbers.__getitem__)[0], expected, atol=2e-3
        )


@pytest.mark.parametrize("shape", [(128, 10), (32, 4), (8, 1), (1, 8)])
def test_strong_views_of_narrow_images_show_nothing_of_others(
    shape: tuple[int, int], monkeypatch
) -> None:
    for name in COLOUR:
        monkeypatch.setitem(COLOUR, name, lambda x, m: x)
    monkeypatch.setattr(
        "candidly.tensors.recipes.moves", lambda choice, m, h, w: torch.eye(3).expand(len(m), 3, 3)
    )
    own = torch.arange(10, 60, dtype=torch.uint8)
    views = make_views(own[:, None, None, None].expand(50, *shape, 3).clone(), **CIFAR)
    batch = pixels(views, views(torch.arange(50), "strong", rng())).round()
    assert ((batch == own.numpy()[:, None, None, None]) | (batch == 0)).all()


def test_resized_views_move_what_the_crop_has_enlarged() -> None:
    ramp = (10 * torch.arange(20, dtype=torch.uint8)).expand(1, 20, 20)[..., None]
    box = [0.0625, 0.5, 0.5, 0.5, 0.9]  # a quarter of the area, square, central, not flipped
    numbers = {
        5: torch.tensor([box]),
        4: torch.tensor([wish(("brightness", 0.0), ("translate_x", 0.5))]),
    }
    result = resized_mild(ramp, numbers.__getitem__)
    place = 9.5 + 0.5 * (np.arange(20) - 9.5 + 3)  # by 3 pixels of the enlarged image
    np.testing.assert_allclose(result[0, :, :, 0], np.tile(10 * place, (20, 1)), atol=1e-3)


def test_resized_strong_has_three_operations_of_strength_a_half_and_cutout() -> None:
    ramp = (10 * torch.arange(20, dtype=torch.uint8)).expand(2, 20, 20)[..., None]
    box = [1.0, 0.5, 0.5, 0.5, 0.9]  # the whole image, not flipped
    shift = wish(("translate_x", 0.9), ("translate_y", 0.1))[0]
    still = wish(("posterize", 0.0), ("posterize", 0.0))[0]
    # Magnitudes 0.9 and 0.1 are plus and minus one half; posterize drops 2 bits either way.
    numbers = {
        5: torch.tensor([box, box]),
        6: torch.tensor(
            [[shift, shift, still, 0.95, 0.55, 0.5], [shift, still, still, 0.1, 0.5, 0.5]]
        ),
        2: torch.tensor([[0.0, 0.0], [0.99, 0.0]]),
    }
    first, second = resized_strong(ramp, numbers.__getitem__)[..., 0]
    stepped = np.arange(0, 200, 10) // 4 * 4
    right = np.pad(stepped[6:], (0, 6))  # twice by 0.3 * 20 * 0.5 pixels
    left = np.pad(stepped[:-3], (3, 0))
    expected = np.tile(right, (20, 1))
    expected[:5, :5] = 0  # the part of the square around the first pixel that lies inside
    np.testing.assert_allclose(first, expected, atol=1e-3)
    expected = np.tile(left, (20, 1))
    expected[14:, :5] = 0
    np.testing.assert_allclose(second, expected, atol=1e-3)


# Resized crops


def test_random_boxes_lie_in_the_image_and_have_the_right_areas_and_ratios() -> None:
    h, w = 32, 32
    box = random_box(torch.rand(20_000, 5, generator=rng()), h, w)
    width, height = box[:, 0, 0].abs() * w, box[:, 1, 1] * h
    assert (box[:, 0, 2].abs() + width / 2 <= w / 2 + 1e-4).all()
    assert (box[:, 1, 2].abs() + height / 2 <= h / 2 + 1e-4).all()
    area, ratio = width * height / (h * w), (width / height).log()
    assert area.min() >= 0.2 - 1e-4
    # A little less: long boxes are clipped at the border
    assert area.mean() == pytest.approx(0.6, abs=0.02)
    assert ratio.abs().max() <= np.log(4 / 3) + 1e-4
    assert (box[:, 0, 0] < 0).float().mean() == pytest.approx(0.5, abs=0.02)


def test_resized_views_of_a_flat_image_have_no_dark_rim() -> None:
    x = torch.full((50, 16, 16, 3), 90, dtype=torch.uint8)
    box = random_box(torch.rand(50, 5, generator=rng()), 16, 16)
    np.testing.assert_allclose(warp(x, box), 90, atol=1e-3)


# Colour jitter


def test_hue_keeps_the_grey_level_and_turns_by_36_degrees() -> None:
    matrix = colour_matrix(torch.ones(2, 1, 1), torch.tensor([1.0, 0.0])[:, None, None])
    luma = torch.tensor([0.299, 0.587, 0.114])
    np.testing.assert_allclose(luma @ matrix[0], luma, atol=1e-6)
    np.testing.assert_allclose(matrix[0] @ torch.ones(3), 1, atol=1e-6)
    np.testing.assert_allclose(matrix[1], np.eye(3), atol=1e-6)
    ten_times = torch.linalg.matrix_power(matrix[0].double(), 10)  # a full turn
    np.testing.assert_allclose(ten_times, np.eye(3), atol=2e-3)


def test_jitter_by_hand() -> None:
    x = torch.tensor([[[[200.0, 100.0, 50.0], [100.0, 100.0, 100.0]]]])
    u = torch.full((4, 6), 0.5)  # jitter is on, but 0.5 means no change
    u[0, 0] = 0.9  # off, so that the next is without effect
    u[0, 1:5] = 0.99
    u[1, 1], u[2, 2], u[3, 5] = 0, 0, 0.1  # darkest; least contrast; grey
    result = jitter(x.repeat(4, 1, 1, 1), u)
    middle = round((0.299 * 200 + 0.587 * 100 + 0.114 * 50 + 100) / 2)
    np.testing.assert_allclose(result[0], x[0], atol=1e-3)
    np.testing.assert_allclose(result[1], 0.6 * x[0], atol=1e-3)
    np.testing.assert_allclose(result[2], middle + 0.6 * (x[0] - middle), atol=1e-3)
    np.testing.assert_allclose(result[3, 0, 0], [124.2] * 3, atol=1e-3)


def test_grey_with_probability_a_fifth() -> None:
    u = torch.rand(4000, 6, generator=rng())
    result = jitter(torch.tensor([90.0, 60.0, 120.0]).expand(4000, 2, 2, 3), u)
    is_grey = (result.amax(-1) - result.amin(-1)).amax((1, 2)) < 1e-3
    assert is_grey.float().mean() == pytest.approx(0.2, abs=0.02)


def test_mix_multiplies_each_pixel_by_the_matrix_of_its_image() -> None:
    x, matrix = torch.rand(3, 4, 5, 3, generator=rng()), torch.rand(3, 3, 3, generator=rng(1))
    np.testing.assert_allclose(mix(x, matrix), torch.einsum("bij,bhwj->bhwi", matrix, x), atol=1e-6)


# Tables


def test_tables_are_standardised() -> None:
    X = np.array([[1, 5, 0], [3, 5, 4], [5, 5, 8]])
    batch = make_views(X)(torch.tensor([0, 2]), "plain")
    root = np.sqrt(1.5)
    np.testing.assert_allclose(batch, [[-root, 0, -root], [root, 0, root]], rtol=1e-6)
    given = make_views(X, mean=[1, 1, 1], std=[2, 4, 8])(torch.tensor([1]), "plain")
    assert given.tolist() == [[1, 1, 0.375]]


def test_constant_columns_and_large_offsets_stay_exact() -> None:
    X = np.column_stack([np.full(30, 0.1), 1e9 + np.arange(30)])
    batch = make_views(X)(torch.arange(30), "plain").numpy()
    np.testing.assert_allclose(batch[:, 0], 0, atol=1e-12)
    np.testing.assert_allclose(batch[:, 1], (np.arange(30) - 14.5) / np.arange(30).std(), rtol=1e-6)


@pytest.mark.parametrize(("kind", "noise", "dropped"), [("weak", 0.1, 0.0), ("strong", 0.2, 0.2)])
def test_noise_and_dropout_of_tables(kind: str, noise: float, dropped: float) -> None:
    views = make_views(np.random.default_rng(0).normal(3, 2, (2000, 10)))
    index = torch.arange(2000)
    plain, batch = views(index, "plain"), views(index, kind, rng())
    gone = batch == 0
    assert gone.float().mean() == pytest.approx(dropped, abs=0.01)
    assert (batch - plain)[~gone].std() == pytest.approx(noise, rel=0.03)
    assert (batch - plain)[~gone].mean() == pytest.approx(0, abs=0.01)
    same = {"weak": "resized", "strong": "resized_strong"}[kind]
    assert torch.equal(views(index, same, rng()), batch)


# Inputs


def test_versions_are_drawn_from_the_copies_of_their_kind() -> None:
    rows = np.random.default_rng(0).normal(size=(3000, 1, 2))
    X = rows + 10 * np.arange(5)[:, None]  # version k lies 10 k standard deviations away
    views, index = make_views(X, versions=True), torch.arange(3000)
    assert isinstance(views, VersionViews)
    assert views.shape == (2,)
    plain = views(index, "plain").numpy()
    np.testing.assert_allclose(
        plain, (rows[:, 0] - rows[:, 0].mean(0)) / rows[:, 0].std(0), atol=1e-5
    )
    for kind, expected in {
        "weak": [0, 1, 2],
        "resized": [0, 1, 2],
        "strong": [3, 4],
        "resized_strong": [3, 4],
        "resized_mild": [3, 4],
    }.items():
        moved = (views(index, kind, rng()).numpy() - plain) * rows[:, 0].std(0) / 10
        found, counts = np.unique(moved.round(), return_counts=True)
        assert found.tolist() == expected
        assert (abs(counts / 6000 - 1 / len(expected)) < 0.04).all()
        assert abs((moved - moved.round()).std() - 0.01) < 0.001  # noise of 0.1 standard deviations


@pytest.mark.parametrize(("kind", "last"), [("weak", 2), ("strong", 4)])
def test_the_largest_draw_is_the_last_copy(kind, last) -> None:
    """torch.rand gives 1 - 2^-24 at most; 3 + 2 (1 - 2^-24) is 5 in single precision."""
    rows = torch.arange(5.0).expand(1, 5).reshape(1, 5, 1).clone()
    views = make_views(rows, versions=True, mean=[0.0], std=[1.0])

    def draw(k: int, law: object = torch.rand) -> torch.Tensor:
        return torch.full((1, k), 1 - 2**-24) if law is torch.rand else torch.zeros(1, k)

    assert views._view(torch.tensor([0]), kind, draw).item() == last


def test_versions_meet_rows_without_versions_in_prediction() -> None:
    X = np.random.default_rng(0).normal(3, 2, (50, 3, 4)).astype(np.float16)
    views = make_views(X, versions=True)
    np.testing.assert_array_equal(
        views.like(X[:, 0])(torch.arange(50), "plain"), views(torch.arange(50), "plain")
    )


@pytest.mark.parametrize("shape", [(5, 2, 3), (5, 1, 3), (5, 4, 3)])
def test_versions_need_as_many_weak_as_strong_copies(shape) -> None:
    with pytest.raises(InputError, match="an odd k of at least 3"):
        make_views(np.zeros(shape, np.float32), versions=True)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_versions_must_be_asked_for(k) -> None:
    """A batch of short sequences is not silently taken for augmented copies."""
    X = np.zeros((6, k, 4), np.float32)
    with pytest.raises(InputError, match=rf"shape \(6, {k}, 4\).*make_views\(X, versions=True\)"):
        make_views(X)
    model, sets = build_net("linear", (4,), 2), CandidateSets([[0], [1]] * 3)
    with pytest.raises(InputError, match="versions=True"):
        fit(model, X, sets, "cc", epochs=1)


def test_make_views_picks_by_type_and_shape() -> None:
    assert isinstance(make_views(random_images(3, 8, 8)), ImageViews)
    assert isinstance(make_views(torch.zeros(3, 8, 8, 1, dtype=torch.uint8)), ImageViews)
    assert isinstance(make_views(random_images(3, 8)), TableViews)
    assert isinstance(make_views([[1, 2], [3, 4.5]]), TableViews)
    read_only = random_images(3, 8, 8)
    read_only.flags.writeable = False
    assert len(make_views(read_only[::-1])) == 3


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((2, 3, 8, 8), np.uint8), r"uint8 of shape \(2, 3, 8, 8\).*moveaxis"),
        (np.zeros((2, 8, 8, 3)), r"float64 of shape \(2, 8, 8, 3\).*255 \* X"),
        (np.zeros(5), r"float64 of shape \(5,\)"),
        (np.zeros((0, 8, 8), np.uint8), r"shape \(0, 8, 8\)"),
        (np.zeros((0, 8)), r"shape \(0, 8\)"),
        (np.array([["a", "b"]]), "expected numbers"),
        ([[1, 2, 3], [4, float("nan"), 6]], "nan at row 1, column 1 .1 such"),
        ([[1, 2, 3], [4, 5, -float("inf")]], "-inf at row 1, column 2"),
        ([[1, 2, 3], [4, 5, 1e300]], r"1e\+300 at row 1, column 2 .*at most 3.4e38 \(float32\)"),
        ([[[1.0, 2], [3, 4], [5, 6]], [[1, 2], [3, np.nan], [5, 6]]], "nan at row 1, column 1 "),
    ],
)
def test_wrong_data_are_named(X: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_views(X, versions=np.ndim(X) == 3 and np.asarray(X).dtype != np.uint8)


def test_rows_too_far_from_the_mean_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candidly.tensors.views.ROWS_TOGETHER", 2)
    with pytest.raises(InputError, match=r"row 3, column 1 is -1e\+40 standard deviations from"):
        make_views([[0, 0], [1, 1], [0, 1], [1, -1e30]], mean=[0.0, 0.0], std=[1.0, 1e-10])


@pytest.mark.parametrize("scale", [1e-100, 1e19, 1e38])
def test_columns_are_standardised_in_any_unit(scale: float) -> None:
    X = np.array([[-3.0], [1.0], [2.0]])
    views = make_views(scale * X)
    np.testing.assert_allclose(views(torch.arange(3), "plain"), (X - X.mean()) / X.std(), rtol=1e-6)


def test_a_column_whose_squares_underflow_counts_as_constant() -> None:
    views = make_views(np.array([[1e-200, 1.0], [3e-200, 3.0]]))
    assert views.std.tolist() == [1, 1]
    np.testing.assert_array_equal(views(torch.arange(2), "plain"), [[0, -1], [0, 1]])


# Memory maps and subsets of rows


def mapped(folder: Path, X: np.ndarray, *, order: str = "C") -> np.ndarray:
    """The same array as a read-only memory map of a file."""
    np.save(folder / "X.npy", np.asarray(X, order=order))
    return np.load(folder / "X.npy", mmap_mode="r")


MAPPABLE = {
    **DATA,
    "integers": np.random.default_rng(1).integers(-5, 9, (40, 4)),
    "singles": np.random.default_rng(2).normal(size=(40, 4)).astype(np.float32),
    "big-endian": np.random.default_rng(2).normal(size=(40, 4)).astype(">f4"),
    "versions": np.random.default_rng(3).normal(3, 2, (40, 5, 4)).astype(np.float16),
}


def assert_equal_views(first: Views, second: Views) -> None:
    assert (len(first), first.shape) == (len(second), second.shape)
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.std, second.std)
    index = torch.randperm(len(first), generator=rng())
    for kind in VIEWS:
        batch = first(index, kind, rng(4))
        assert batch.dtype == torch.float32
        assert torch.equal(batch, second(index, kind, rng(4)))


@pytest.mark.parametrize("rows", ["all", "index", "mask"])
@pytest.mark.parametrize("name", MAPPABLE)
def test_maps_and_rows_give_the_same_views_bit_for_bit(
    name: str, rows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("candidly.tensors.views.ROWS_TOGETHER", 7)  # several blocks
    monkeypatch.setattr("candidly.blocks.ENTRIES", 2000)
    X, versions = MAPPABLE[name], name == "versions"
    chosen = {
        "all": None,
        "index": np.random.default_rng(0).permutation(40)[:31],
        "mask": np.arange(40) % 3 > 0,
    }[rows]
    whole = X if chosen is None else X[chosen]
    expected = make_views(whole.astype(whole.dtype.newbyteorder("=")), versions=versions)
    for order in "CF":
        source = mapped(tmp_path, X, order=order)
        views = make_views(source, versions=versions, rows=chosen)
        assert isinstance(views.data, MappedRows)
        assert np.shares_memory(views.data.array, source)
        assert_equal_views(views, expected)
        np.testing.assert_array_equal(views.data.numpy(), expected.data.numpy())
    in_memory = make_views(X, versions=versions, rows=chosen)
    assert isinstance(in_memory.data, Tensor)
    assert_equal_views(in_memory, expected)


def test_parts_of_a_map_stay_mapped(tmp_path: Path) -> None:
    source = mapped(tmp_path, DATA["table"])
    for part in (source[:20], source[::2, 1:], np.asarray(source), source[::-1]):
        views = make_views(part)
        assert isinstance(views.data, MappedRows)
        assert_equal_views(views, make_views(np.array(part)))
    for copy in (np.array(source), source + 0, source[[1, 2]]):
        assert isinstance(make_views(copy).data, Tensor)


@pytest.mark.parametrize("name", MAPPABLE)
def test_rows_of_mapped_rows_are_those_of_the_rows_in_memory(name: str, tmp_path: Path) -> None:
    X, versions = MAPPABLE[name], name == "versions"
    source = mapped(tmp_path, X)
    first = np.random.default_rng(0).permutation(40)[:31]
    given = MappedRows(source, first)
    for rows in (np.array([4, 0, 2]), np.arange(31) % 3 > 0):
        views = make_views(given, versions=versions, rows=rows)
        assert isinstance(views.data, MappedRows)
        whole = X[first][rows]
        expected = make_views(whole.astype(whole.dtype.newbyteorder("=")), versions=versions)
        assert_equal_views(views, expected)
    assert len(make_views(MappedRows(source), versions=versions, rows=[0, 1, 2])) == 3
    with pytest.raises(InputError, match=r"rows reach from 0 to 31; expected row numbers 0\.\.30"):
        make_views(given, versions=versions, rows=[0, 31])


def test_the_transform_of_mapped_rows_is_kept(tmp_path: Path) -> None:
    for images in (MAPPABLE["colour"], MAPPABLE["grey"]):
        negative = MappedRows(mapped(tmp_path, images), transform=lambda rows: 255 - rows)
        assert_equal_views(make_views(negative), make_views(255 - images))
    table = MAPPABLE["table"]
    squared = MappedRows(mapped(tmp_path, table), transform=lambda rows: rows**2)
    rows = [3, 9, 7, 20]
    assert_equal_views(make_views(squared, rows=rows), make_views(table[rows] ** 2))


def test_views_like_those_of_a_map(tmp_path: Path) -> None:
    for name in ("colour", "grey", "table", "versions"):
        X, versions = MAPPABLE[name], name == "versions"
        views = make_views(mapped(tmp_path, X), versions=versions)
        assert_equal_views(views.like(X[5:]), make_views(X, versions=versions).like(X[5:]))


PEAK = """
import resource, sys, numpy as np, torch
from candidly.tensors.views import make_views
torch.set_num_threads(1)
X = np.load(sys.argv[1], mmap_mode="r")
make_views(np.array(X[:5000]))(torch.arange(128), "weak")
def own():
    # pages in memory that are not those of files
    _, resident, of_files, *_ = map(int, open("/proc/self/statm").read().split())
    return resident - of_files
start = own()
views = make_views(X, rows=np.arange(len(X)))
for first in range(0, len(X), 4000):
    views(torch.arange(first, first + 64), "weak")
print((own() - start) * resource.getpagesize())
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("shape", "dtype"), [((64_000, 32, 32), np.uint8), ((64_000, 128), np.float64)]
)
def test_a_large_map_is_not_read_into_memory(
    shape: tuple[int, ...], dtype: type, tmp_path: Path
) -> None:
    """Of 64 MB, less than 20 MB stay in memory, apart from cached pages of the file."""
    X = np.lib.format.open_memmap(tmp_path / "X.npy", mode="w+", dtype=dtype, shape=shape)
    X[::1000] = np.arange(64).reshape(64, *[1] * (len(shape) - 1))
    X.flush()
    command = [sys.executable, "-c", PEAK, str(tmp_path / "X.npy")]
    # glibc gives freed memory back at once: otherwise it would be counted, too
    thresholds = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    said = subprocess.check_output(command, text=True, env={**os.environ, **thresholds})
    assert int(said) < 20e6


def test_read_only_arrays_are_not_copied(recwarn: pytest.WarningsRecorder) -> None:
    X = random_images(3, 8, 8, 3)
    X.flags.writeable = False
    assert np.shares_memory(make_views(X).data.numpy(), X)
    assert not len(recwarn)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 40], r"rows reach from 0 to 40; expected row numbers 0..39"),
        ([-1], "rows reach from -1 to -1"),
        ([0.5], r"rows is float64 of shape \(1,\)"),
        ([[1, 2]], r"rows is int64 of shape \(1, 2\)"),
        ([True, False], r"bool of shape \(2,\).*mask of shape \(40,\)"),
        ([], r"shape \(0, 7\)"),
    ],
)
def test_wrong_rows_are_named(rows: object, message: str) -> None:
    for X in (DATA["table"], torch.as_tensor(DATA["table"])):
        with pytest.raises(InputError, match=message):
            make_views(X, rows=rows)


def test_bad_cells_of_a_map_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("candidly.tensors.views.ROWS_TOGETHER", 7)
    X = DATA["table"].copy()
    X[[9, 30], [2, 3]] = np.nan
    message = r"nan at row 9, column 2 \(2 such"
    for source in (X, mapped(tmp_path, X)):
        with pytest.raises(InputError, match=message):
            make_views(source)
    assert len(make_views(mapped(tmp_path, X), rows=np.arange(9))) == 9
    with pytest.raises(InputError, match=r"row 39, column 0 is 1e\+40 standard deviations"):
        X = np.ones((40, 1))
        X[39] = 1e30
        make_views(mapped(tmp_path, X), mean=[0.0], std=[1e-10])


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InputError, match=r"'week'.*plain, weak, strong, resized, resized_strong"):
        make_views(random_images(2, 8, 8))(torch.arange(2), "week", rng())
    with pytest.raises(InputError, match=r"mean is 0.5; expected 3 finite numbers"):
        make_views(random_images(2, 8, 8, 3), mean=0.5)
    with pytest.raises(InputError, match=r"std is .1, 0.; expected 2 finite positive numbers"):
        make_views([[1, 2], [3, 4]], std=[1, 0])


def test_no_image_library_is_imported() -> None:
    code = (
        "import sys, candidly.tensors.views;"
        "print({'torchvision', 'kornia', 'PIL'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == "set()\n"
