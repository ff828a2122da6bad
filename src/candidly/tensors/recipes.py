"""Recipes: augmented copies of whole batches of images, and the operations they consist of.

A recipe maps (images, random numbers) to images. Images are (batch, height, width, channel) with
values 0..255, where 0 is black. Each image is treated by itself, and parameters are computed with
+ - * / and the square root only: these are exact to the last bit at any place in a batch, so that
any number of processes makes the same images as one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# draw(k): (b, k) uniform numbers in [0, 1); draw(k, torch.randn): normal ones
Draw = Callable[..., Tensor]

# Tangents of half of the largest angles: 30 degrees for a rotation, 36 for a change of hue
HALF_ROTATION = 0.2679
HALF_HUE_TURN = 0.3249

# Weights of red, green and blue in the grey level
LUMA = (0.299, 0.587, 0.114)
# Grey level, and two axes of colour
YIQ = np.array([LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
# Turns the colour by 90 degrees, without its grey level
QUARTER_TURN = np.linalg.inv(YIQ) @ [[0, 0, 0], [0, 0, -1], [0, 1, 0]] @ YIQ

GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def weak(x: Tensor, draw: Draw) -> Tensor:
    """Crop from a frame of black padding, and flip at random."""
    h, w = x.shape[1:3]
    pad = h // 8
    row, column = random_window(draw(3), h, w, pad)
    return take(F.pad(x, (0, 0, pad, pad, pad, pad)), row + pad, column + pad)


def strong(x: Tensor, draw: Draw) -> Tensor:
    """Crop from a mirrored frame, flip, apply two random operations and Cutout.

    The strong view of CRDPLL, with RandAugment as its policy.
    """
    h, w = x.shape[1:3]
    pad = min(h // 8, w - 1)  # a mirror shows the image once
    row, column = random_window(draw(3), h, w, pad)
    x, matrix = rand_augment(take(x, mirror(row, h), mirror(column, w)), draw(4))
    return cutout(warp(x, matrix), draw(2))


def resized(x: Tensor, draw: Draw) -> Tensor:
    """Crop at random and resize, flip, change colours, sometimes to grey: PiCO's weak view."""
    return jitter(warp(x, random_box(draw(5), *x.shape[1:3])), draw(6))


def resized_strong(x: Tensor, draw: Draw) -> Tensor:
    """Crop at random and resize, flip, apply three random operations and Cutout: PiCO's strong one.

    Operations have strength 5 of 10, in a random direction. Geometry is combined, so that images
    are resampled only once.
    """
    box = random_box(draw(5), *x.shape[1:3])
    x, matrix = rand_augment(x, draw(6), strength=0.5)
    return cutout(warp(x, box @ matrix), draw(2))


def resized_mild(x: Tensor, draw: Draw) -> Tensor:
    """Crop at random and resize, flip, apply two random operations of any strength; no Cutout."""
    box = random_box(draw(5), *x.shape[1:3])
    x, matrix = rand_augment(x, draw(4))
    return warp(x, box @ matrix)


RECIPES: dict[str, Callable[[Tensor, Draw], Tensor]] = {
    "plain": lambda x, draw: x,
    "weak": weak,
    "strong": strong,
    "resized": resized,
    "resized_strong": resized_strong,
    "resized_mild": resized_mild,
}
VIEWS = tuple(RECIPES)


def random_window(u: Tensor, h: int, w: int, pad: int) -> tuple[Tensor, Tensor]:
    """Compute rows (b, h) and columns (b, w) of windows moved by up to `pad` pixels.

    Half of the windows are flipped: their columns run from right to left.
    """
    down, right = ((u[:, :2] * (2 * pad + 1)).long() - pad).T[..., None]
    row = torch.arange(h, device=u.device)
    column = torch.arange(w, device=u.device)
    return row + down, torch.where(u[:, 2:] < 0.5, w - 1 - column, column) + right


def mirror(place: Tensor, size: int) -> Tensor:
    """Reflect at the first and the last pixel: -1 becomes 1, and `size` becomes size - 2."""
    return size - 1 - (size - 1 - place.abs()).abs()


def take(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Take the pixels of image i at row[i] and column[i].

    Whole lines are moved, first rows, then columns.
    """
    b, height, width, c = x.shape
    image = torch.arange(b, device=x.device)[:, None]
    h, w = row.shape[1], column.shape[1]
    lines = x.reshape(b * height, width * c).index_select(0, (row + height * image).flatten())
    columns = lines.view(b, h, width, c).permute(0, 2, 3, 1).reshape(b * width, c * h)
    taken = columns.index_select(0, (column + width * image).flatten())
    return taken.view(b, w, c, h).permute(0, 3, 1, 2)


def cutout(x: Tensor, u: Tensor) -> Tensor:
    """Blacken a square of half the height around a random pixel, as far as it is in the image."""
    side = x.shape[1] // 2
    covered = []
    for dim in (1, 2):
        size = x.shape[dim]
        start = (u[:, dim - 1 : dim] * size).long() - side // 2
        place = torch.arange(size, device=u.device)
        covered.append(((place >= start) & (place < start + side)).to(x.dtype))
    rows, columns = covered
    return x * (1 - rows[:, :, None] * columns[:, None])[..., None]


def rand_augment(x: Tensor, u: Tensor, strength: float | None = None) -> tuple[Tensor, Tensor]:
    """Apply k random operations to each image, each with its own magnitude.

    Parameters
    ----------
    x : tensor (b, h, w, c)
    u : tensor (b, 2 k)
        Uniform numbers: k choices and k magnitudes.
    strength : float, optional
        All magnitudes are this or minus this; by default any from -1 to 1.

    Returns
    -------
    changed : tensor (b, h, w, c)
        The images with changed colours.
    matrix : tensor (b, 3, 3)
        The geometry, for `warp`, so that images are sampled only once.
    """
    k = u.shape[1] // 2
    choices = (u[:, :k] * (len(COLOUR) + len(GEOMETRY))).long().T
    magnitudes = (2 * u[:, k:] - 1).T
    if strength is not None:
        magnitudes = strength * torch.where(magnitudes < 0, -1.0, 1.0)
    changed = change_colours(x.permute(0, 3, 1, 2), choices, magnitudes)
    matrices = moves(choices.flatten(), magnitudes.flatten(), *x.shape[1:3]).chunk(k)
    return changed.permute(0, 2, 3, 1), reduce(torch.matmul, matrices)


def moves(choice: Tensor, magnitude: Tensor, h: int, w: int) -> Tensor:
    """Compute the matrix of the chosen operation of `GEOMETRY` for each image.

    Smaller choices, which are operations of `COLOUR`, give the unit matrix.
    """
    kind = torch.arange(len(COLOUR), len(COLOUR) + len(GEOMETRY), device=choice.device)
    turn, lean_x, lean_y, right, down = (magnitude * (choice == kind[:, None])).unbind()
    cos, sin = cos_sin(turn, HALF_ROTATION)
    return affine(cos, 0.3 * lean_x - sin, 0.3 * w * right, 0.3 * lean_y + sin, cos, 0.3 * h * down)


def change_colours(planes: Tensor, choices: Tensor, magnitudes: Tensor) -> Tensor:
    """Apply the chosen operations of `COLOUR` to each image (c, h, w), one after the other.

    Larger choices do nothing. Images with the same operation are brought together. Operations see
    pixels (h, w, c), but one plane after the other in memory: rows of three numbers would be slow.
    """
    planes = planes.contiguous()
    at = torch.arange(len(planes), device=planes.device)
    choices = choices.where(magnitudes != 0, len(COLOUR)).clamp(max=len(COLOUR))
    for choice, magnitude in zip(choices, magnitudes, strict=True):
        order = choice[at].argsort()
        planes = planes.index_select(0, order)
        at = at[order]
        sizes = torch.bincount(choice, minlength=len(COLOUR) + 1).tolist()
        images = planes.split(sizes)
        amounts = magnitude[at, None, None, None].split(sizes)
        for change, x, m in zip(COLOUR.values(), images, amounts, strict=False):
            if len(x):
                changed = change(x.float().permute(0, 2, 3, 1), m).round_().clamp_(0, 255)
                # By way of short integers: torch is slow to convert floats to bytes.
                x.copy_(changed.permute(0, 3, 1, 2).short())
    return planes.index_select(0, at.argsort())


# Operations on colours. x (b, h, w, c) has whole numbers 0..255; m (b, 1, 1, 1) in -1..1 is the
# magnitude, never 0, which would change nothing. The caller rounds and clamps the result.


def grey(x: Tensor) -> Tensor:
    """Compute the grey level of each pixel."""
    return (x * x.new_tensor(LUMA)).sum(-1, keepdim=True) if x.shape[-1] == 3 else x


def mean_grey(x: Tensor) -> Tensor:
    """Compute the mean grey level of each image.

    It is rounded to a whole number, so that the order of summation hardly ever matters.
    """
    return grey(x.mean((1, 2), keepdim=True)).round()


def depart(origin: Tensor, x: Tensor, m: Tensor) -> Tensor:
    """Move x away from the origin (m > 0) or towards it (m < 0), by at most nine tenths."""
    return (x - origin).mul_(1 + 0.9 * m).add_(origin)


def smooth(x: Tensor) -> Tensor:
    """Compute a 3 x 3 mean with weight 5 in the middle; leave the border as it is."""
    if min(x.shape[1:3]) < 3:
        return x
    down = x[:, :-2] + x[:, 1:-1] + x[:, 2:]
    inner = down[:, :, :-2] + down[:, :, 1:-1] + down[:, :, 2:]
    smoothed = x.clone()
    smoothed[:, 1:-1, 1:-1] = inner.add_(x[:, 1:-1, 1:-1], alpha=4).div_(13)
    return smoothed


def posterize(x: Tensor, m: Tensor) -> Tensor:
    """Drop up to four of the eight bits."""
    step = (1 << (4 * m.abs()).round().int()).float()
    return (x / step).floor_().mul_(step)


def solarize(x: Tensor, m: Tensor) -> Tensor:
    """Invert the pixels at or above a threshold that falls from 256 to 0 as |m| grows."""
    return torch.where(x >= 256 * (1 - m.abs()), 255 - x, x)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel from 0 to 255; leave a channel of one value as it is."""
    low = x.amin((1, 2), keepdim=True)
    high = x.amax((1, 2), keepdim=True)
    varied = high > low
    return (x - low * varied).mul_(255).div_((high - low).where(varied, 255))


def equalize(x: Tensor) -> Tensor:
    """Make the histogram of each channel as flat as possible, by Pillow's definition."""
    b, h, w, c = x.shape
    level = x.permute(0, 3, 1, 2).int().reshape(b * c, h * w)
    slot = level + torch.arange(0, b * c * 256, 256, dtype=torch.int32, device=x.device)[:, None]
    count = torch.bincount(slot.view(-1), minlength=b * c * 256).view(b * c, 256)
    brightest = count.gather(1, level.amax(1, keepdim=True).long())
    step = (h * w - brightest) // 255
    darker = count.cumsum(1).sub_(count) + step // 2
    table = darker.div_(step.clamp(min=1), rounding_mode="floor").clamp_(max=255)
    table = table.where(step > 0, torch.arange(256, device=x.device)).to(x.dtype)
    return table.view(-1).index_select(0, slot.view(-1)).view(b, c, h, w).permute(0, 2, 3, 1)


COLOUR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": lambda x, m: (1 + 0.9 * m) * x,
    "contrast": lambda x, m: depart(mean_grey(x), x, m),
    "saturation": lambda x, m: depart(grey(x), x, m),
    "sharpness": lambda x, m: depart(smooth(x), x, m),
    "posterize": posterize,
    "solarize": solarize,
    "invert": lambda x, m: 255 - x,
    "autocontrast": lambda x, m: autocontrast(x),
    "equalize": lambda x, m: equalize(x),
}


def jitter(x: Tensor, u: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue with probability 0.8; make grey with 0.2.

    The first three change by up to 40 %, the hue by up to 36 degrees, in this fixed order.
    Saturation, hue and grey are one linear map of the colours, as in the YIQ model.
    """
    change = (2 * u[:, 1:5] - 1) * (u[:, :1] < 0.8)
    brightness, contrast, saturation = (1 + 0.4 * change[:, :3]).T[..., None, None, None]
    middle = mean_grey(x)
    if x.shape[-1] == 3:
        saturation = saturation.where(u[:, 5, None, None, None] >= 0.2, 0)
        x = mix(x, colour_matrix(saturation[..., 0], change[:, 3, None, None]))
    return (x - middle).mul_(brightness * contrast).add_(brightness * middle).clamp_(0, 255)


def colour_matrix(saturation: Tensor, m: Tensor) -> Tensor:
    """Compute matrices (b, 3, 3) that turn the colour by about 36 m degrees and scale it.

    The grey level stays the same.
    """
    luma = m.new_tensor(LUMA).expand(3, 3)
    colour = torch.eye(3, device=m.device) - luma
    cos, sin = cos_sin(m, HALF_HUE_TURN)
    return luma + saturation * (cos * colour + sin * m.new_tensor(QUARTER_TURN))


def mix(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiply the colour of each pixel by the matrix (b, 3, 3) of its image, plane by plane."""
    planes = x.permute(0, 3, 1, 2)
    mixed = matrix[:, :, 0, None, None] * planes[:, :1]
    for k in (1, 2):
        mixed.addcmul_(matrix[:, :, k, None, None], planes[:, k : k + 1])
    return mixed.permute(0, 2, 3, 1)


# Geometry: matrices (b, 3, 3) map a place (x, y, 1) of the result to its place in the source, in
# pixels from the centre.


def affine(xx: Tensor, xy: Tensor, x1: Tensor, yx: Tensor, yy: Tensor, y1: Tensor) -> Tensor:
    """Build the matrix [[xx, xy, x1], [yx, yy, y1], [0, 0, 1]] of each element."""
    zero = torch.zeros_like(xx)
    return torch.stack([xx, xy, x1, yx, yy, y1, zero, zero, zero + 1], 1).view(-1, 3, 3)


def cos_sin(m: Tensor, tan_half: float) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine of an angle whose half has the tangent `m * tan_half`.

    The angle is nearly proportional to m.
    """
    t = m * tan_half
    return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)


def random_box(u: Tensor, h: int, w: int) -> Tensor:
    """Draw boxes anywhere in the image, as matrices for `warp`; half of them are flipped.

    A box has 0.2 to 1 of the area, and a ratio of width to height from 3/4 to 4/3.
    """
    area = (0.2 + 0.8 * u[:, 0]) * (h * w)
    v = (2 * u[:, 1] - 1) / 7
    ratio = (1 + v) / (1 - v)  # very nearly log-uniform
    width = (area * ratio).sqrt().clamp(max=w)
    height = (area / ratio).sqrt().clamp(max=h)
    flip = torch.where(u[:, 4] < 0.5, -1.0, 1.0)
    x1 = (u[:, 2] - 0.5) * (w - width)
    y1 = (u[:, 3] - 0.5) * (h - height)
    zero = torch.zeros_like(area)
    return affine(flip * width / w, zero, x1, zero, height / h, y1)


def warp(x: Tensor, matrix: Tensor) -> Tensor:
    """Sample each image bilinearly through its matrix (see `affine`); places outside are black."""
    h, w = x.shape[1:3]
    across = torch.arange(w, device=x.device) - (w - 1) / 2
    down = torch.arange(h, device=x.device)[:, None] - (h - 1) / 2
    # For `grid_sample`, the image reaches from -1 to 1.
    m = matrix[:, :2] * torch.tensor([2 / w, 2 / h], device=x.device)[:, None]
    from_row = m[:, :, 1, None, None] * down + m[:, :, 2, None, None]
    place = m[:, :, 0, None, None] * across + from_row
    source = x.permute(0, 3, 1, 2).float()
    grid = place.permute(0, 2, 3, 1)
    sampled = F.grid_sample(source, grid, padding_mode="border", align_corners=False)
    across, down = place.abs().split(1, dim=1)
    return sampled.mul_((torch.maximum(across, down) <= 1).float()).permute(0, 2, 3, 1)
