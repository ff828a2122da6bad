"""Augmented views of whole batches, made on the device from data that stay there as one tensor.

Images are handled as (batch, height, width, channel) with values 0..255 and black = 0; only the last step normalises.
A random view is made of numbers that are drawn for all rows and then cut to the part that a process works on.
What follows treats each image by itself, and makes parameters with + - * / and the square root only: these are exact to
the last bit wherever an image stands in a batch, so that many processes see the very images that one would see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from candidly.checks import one_of
from candidly.errors import InputError

VIEWS = ("plain", "weak", "strong", "resized", "resized_strong")

BLOCK = 4096  # rows of a table brought to double precision together
CONSTANT = 1e-150  # least standard deviation of a column: squares of smaller numbers underflow
Draw = Callable[
    ..., Tensor
]  # draw(k): (b, k) uniform numbers in [0, 1); draw(k, torch.randn): normal ones


def make_views(
    X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
) -> Views:
    """Views of images, uint8 of shape (n, h, w) or (n, h, w, 1 or 3), or of a table of finite numbers, (n, d).

    A table may also hold versions of each row, (n, k, d), as `candidly.data.encoders.encode_versions` makes them.
    `mean` and `std`, one value per channel (in units of 0..1) or per column, default to those of `X`. Data that are
    already on the device are not copied: leave them unchanged.
    """
    data = _as_tensor(X)
    kind = ImageViews if data.dtype == torch.uint8 and data.ndim in (3, 4) else TableViews
    kind = VersionViews if kind is TableViews and data.ndim == 3 else kind
    return kind(data, mean=mean, std=std, device=device)


class Views(ABC):
    """`views(index, kind, rng)` is a batch for the net. `shape` is that of one example as the net sees it."""

    shape: tuple[int, ...]
    data: Tensor
    mean: Tensor
    std: Tensor

    @abstractmethod
    def __init__(
        self, X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
    ) -> None: ...

    @abstractmethod
    def _view(self, index: Tensor, kind: str, draw: Draw) -> Tensor: ...

    def __len__(self) -> int:
        return len(self.data)

    def __call__(
        self,
        index: Tensor,
        kind: str,
        rng: torch.Generator | None = None,
        part: slice | Tensor = slice(None),
    ) -> Tensor:
        """The rows `index[part]` as float32; random numbers come from `rng` (on the CPU) for the whole of `index`."""
        one_of(kind, VIEWS, "view")
        device = self.data.device

        def draw(k: int, law: Callable[..., Tensor] = torch.rand) -> Tensor:
            return law(len(index), k, generator=rng)[part].to(device)

        return self._view(index[part].to(device), kind, draw)

    def like(self, X: Any) -> Views:
        """Views of other data of the same shape, such as the test set, with this normalisation."""
        data, expected = _as_tensor(X), self.data.shape[1:]
        if expected not in (data.shape[1:], (*data.shape[1:], 1)):
            raise InputError(
                f"X is {_describe(data)}; expected n examples of shape {tuple(expected)} each, as in training. "
                "Bring X to that shape."
            )
        return type(self)(data, mean=self.mean, std=self.std, device=self.data.device)


class ImageViews(Views):
    """Views of uint8 images. The net sees (batch, channel, height, width), laid out in memory channels last."""

    def __init__(
        self, X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
    ) -> None:
        given = _as_tensor(X)
        images = given[..., None] if given.ndim == 3 else given
        if (
            images.dtype != torch.uint8
            or images.ndim != 4
            or images.shape[-1] not in (1, 3)
            or not images.numel()
        ):
            raise InputError(
                f"X is {_describe(given)}; expected images, uint8 of shape (n, h, w) or (n, h, w, 1 or 3). "
                "If channels come first, put them last with np.moveaxis(X, 1, -1)."
            )
        self.data = images.contiguous().to(device)
        _, h, w, c = images.shape
        self.shape = (c, h, w)
        own_mean, own_std = _pixel_moments(images) if mean is None or std is None else (mean, std)
        self.mean, self.std = _moments(
            own_mean if mean is None else mean, own_std if std is None else std, c
        )
        # A whole image of factors: the innermost loop then runs over many numbers, not over three.
        self._factor = (1 / (255 * self.std)).float().expand(h, w, c).contiguous().to(device)
        self._offset = (self.mean / self.std).float().expand(h, w, c).contiguous().to(device)

    def _view(self, index: Tensor, kind: str, draw: Draw) -> Tensor:
        pixels = RECIPES[kind](self.data.index_select(0, index), draw).contiguous().float()
        return pixels.mul_(self._factor).sub_(self._offset).permute(0, 3, 1, 2)


class TableViews(Views):
    """Views of a table, standardised once. Weak: noise of 0.1 standard deviations; strong: of 0.2, and each feature is
    set to its mean with probability 0.2. Tables have no resized views: these are the same as weak and strong."""

    def __init__(
        self, X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
    ) -> None:
        table = _as_tensor(X)
        if table.ndim != 2 or table.is_complex() or not table.numel():
            raise InputError(
                f"X is {_describe(table)}; expected a table of numbers (n, d), or images, uint8 of shape (n, h, w) or "
                "(n, h, w, 1 or 3). Turn images with values 0..1 into (255 * X).round().astype('uint8')."
            )
        _check_finite(table)
        self.shape = (table.shape[1],)
        self._standardise(table, table, mean, std, device)

    def _standardise(
        self, X: Tensor, plain: Tensor, mean: Any, std: Any, device: str | torch.device
    ) -> None:
        own_mean, own_std = _column_moments(plain) if mean is None or std is None else (mean, std)
        mean, std = own_mean if mean is None else mean, own_std if std is None else std
        self.mean, self.std = _moments(mean, std, plain.shape[1])
        self.data = torch.empty(X.shape, dtype=torch.get_default_dtype(), device=device)
        for start in range(0, len(X), BLOCK):
            block = (X[start : start + BLOCK].cpu().double() - self.mean) / self.std
            _check_distance(block, start)
            self.data[start : start + BLOCK] = block

    def _view(self, index: Tensor, kind: str, draw: Draw) -> Tensor:
        rows = self.data.index_select(0, index)
        if kind == "plain":
            return rows
        noise = draw(rows.shape[1], torch.randn)
        if kind in ("weak", "resized"):
            return rows + 0.1 * noise
        return (rows + 0.2 * noise).masked_fill(draw(rows.shape[1]) < 0.2, 0)


class VersionViews(TableViews):
    """Views of a table with versions of each row, (n, 1 + 2 copies, d): the row as it is, weak copies, strong copies.

    A weak view is the row or one of its weak copies, drawn at random; a strong view is one of its strong copies; both
    with noise of 0.1 standard deviations, because copies are few. Resized views are the same as weak and strong ones.
    """

    def __init__(
        self, X: Any, *, mean: Any = None, std: Any = None, device: str | torch.device = "cpu"
    ) -> None:
        table = _as_tensor(X)
        if table.ndim != 3 or table.shape[1] < 3 or table.shape[1] % 2 == 0 or not table.numel():
            raise InputError(
                f"X is {_describe(table)}; expected versions of rows (n, k, d) with an odd k of at least 3: the row as "
                "it is, its weak copies, and as many strong ones. For images, expected uint8."
            )
        _check_finite(table)
        self.shape = (table.shape[2],)
        self._standardise(table, table[:, 0], mean, std, device)

    def _view(self, index: Tensor, kind: str, draw: Draw) -> Tensor:
        versions, width = self.data.shape[1:]
        if kind == "plain":
            return self.data[index, 0]
        copies, u = versions // 2, draw(1)[:, 0]
        mild = kind in ("weak", "resized")
        version = (
            (u * (1 + copies)).long() if mild else 1 + copies + (u * copies).long()
        )  # 1 + ... + u may round up
        chosen = self.data.flatten(0, 1).index_select(0, index * versions + version)
        return chosen + 0.1 * draw(width, torch.randn)

    def like(self, X: Any) -> Views:
        """Views of other rows, (n, d) or with versions, with this normalisation."""
        return make_views(X, mean=self.mean, std=self.std, device=self.data.device)


# Checks


def _as_tensor(X: Any) -> Tensor:
    if isinstance(X, Tensor):
        return X.detach()
    array = np.asarray(X)
    if array.dtype.kind not in "buif":
        raise InputError(
            f"X is {_describe(array)}; expected numbers. Encode text and categories as numbers first."
        )
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _describe(X: Any) -> str:
    return f"{str(X.dtype).removeprefix('torch.')} of shape {tuple(X.shape)}"


def _check_finite(table: Tensor) -> None:
    """Refuse NaN, infinities and numbers too large for float32, in a table (n, d) or (n, k, d)."""
    bad = (~table.float().isfinite()).nonzero()
    if len(bad):
        first = tuple(bad[0].tolist())
        raise InputError(
            f"X holds {table[first].item()} at row {first[0]}, column {first[-1]} "
            f"({len(bad)} such cells in all); expected finite numbers of at most 3.4e38 (float32). "
            "Fill in or rescale these cells, or leave their rows or columns out."
        )


def _check_distance(standardised: Tensor, start: int) -> None:
    """Refuse rows too far from the mean for float32; they are numbered from `start`."""
    bad = (~standardised.float().isfinite()).nonzero()
    if len(bad):
        first = tuple(bad[0].tolist())
        raise InputError(
            f"X at row {start + first[0]}, column {first[-1]} is {standardised[first].item():.2g} "
            "standard deviations from the mean, too far for float32; expected values like those of "
            "the training data. Is the column in the same unit?"
        )


def _moments(mean: Any, std: Any, width: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation as float64 of shape (width,), after a check."""
    moments = []
    for name, value in (("mean", mean), ("std", std)):
        values = torch.as_tensor(value, dtype=torch.float64, device="cpu")
        wrong = (
            values.shape != (width,)
            or not values.isfinite().all()
            or (name == "std" and not (values > 0).all())
        )
        if wrong:
            sign = "positive " if name == "std" else ""
            raise InputError(
                f"{name} is {value}; expected {width} finite {sign}numbers, one per channel or column."
            )
        moments.append(values)
    return moments[0], moments[1]


def _column_moments(table: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column, by blocks in double precision; a constant column has 1."""
    mean = torch.stack([block.cpu().double().sum(0) for block in table.split(BLOCK)]).sum(0) / len(
        table
    )
    squares = torch.stack(
        [((block.cpu().double() - mean) ** 2).sum(0) for block in table.split(BLOCK)]
    ).sum(0)
    std = (squares / len(table)).sqrt()
    constant = (table == table[0]).all(0).cpu() | (std < CONSTANT)
    return mean, std.masked_fill(constant, 1)


def _pixel_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, in units of 0..1, from the exact histogram."""
    histogram = torch.stack(
        [torch.bincount(plane.flatten(), minlength=256) for plane in images.unbind(-1)]
    ).double()
    share = (histogram / histogram.sum(1, keepdim=True)).cpu()
    level = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ level
    std = (share * (level - mean[:, None]) ** 2).sum(1).sqrt()
    return mean, torch.where(std > 0, std, 1.0)


# Recipes: (images, random numbers) -> images


def weak(x: Tensor, draw: Draw) -> Tensor:
    """Crop from a frame of black padding, and flip."""
    h, w = x.shape[1:3]
    pad = h // 8
    row, column = random_window(draw(3), h, w, pad)
    return take(F.pad(x, (0, 0, pad, pad, pad, pad)), row + pad, column + pad)


def strong(x: Tensor, draw: Draw) -> Tensor:
    """Crop from a mirrored frame, flip, two random operations, Cutout (as CRDPLL, with RandAugment for its policy)."""
    h, w = x.shape[1:3]
    row, column = random_window(draw(3), h, w, min(h // 8, w - 1))  # a mirror shows the image once
    x, matrix = rand_augment(take(x, mirror(row, h), mirror(column, w)), draw(4))
    return cutout(warp(x, matrix), draw(2))


def resized(x: Tensor, draw: Draw) -> Tensor:
    """Random resized crop, flip, colour jitter, sometimes grey (PiCO's weak view)."""
    return jitter(warp(x, random_box(draw(5), *x.shape[1:3])), draw(6))


def resized_strong(x: Tensor, draw: Draw) -> Tensor:
    """Random resized crop, flip, two random operations (PiCO's strong view); one resampling in all."""
    box = random_box(draw(5), *x.shape[1:3])
    x, matrix = rand_augment(x, draw(4))
    return warp(x, box @ matrix)


RECIPES: dict[str, Callable[[Tensor, Draw], Tensor]] = {
    "plain": lambda x, draw: x,
    "weak": weak,
    "strong": strong,
    "resized": resized,
    "resized_strong": resized_strong,
}


def random_window(u: Tensor, h: int, w: int, pad: int) -> tuple[Tensor, Tensor]:
    """Rows (b, h) and columns (b, w) of a window moved by up to `pad` pixels; half of the windows run right to left."""
    down, right = ((u[:, :2] * (2 * pad + 1)).long() - pad).T[..., None]
    row, column = torch.arange(h, device=u.device), torch.arange(w, device=u.device)
    return row + down, torch.where(u[:, 2:] < 0.5, w - 1 - column, column) + right


def mirror(place: Tensor, size: int) -> Tensor:
    """Reflect at the first and the last pixel: -1 becomes 1, and `size` becomes size - 2."""
    return size - 1 - (size - 1 - place.abs()).abs()


def take(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The pixels of image i at row[i] and column[i]: whole lines are moved, first the rows, then the columns."""
    b, height, width, c = x.shape
    image = torch.arange(b, device=x.device)[:, None]
    h, w = row.shape[1], column.shape[1]
    lines = x.reshape(b * height, width * c).index_select(0, (row + height * image).flatten())
    upright = lines.view(b, h, width, c).permute(0, 2, 3, 1).reshape(b * width, c * h)
    return (
        upright.index_select(0, (column + width * image).flatten())
        .view(b, w, c, h)
        .permute(0, 3, 1, 2)
    )


def cutout(x: Tensor, u: Tensor) -> Tensor:
    """Blacken a square of half the height around a random pixel; what lies beyond the border is lost."""
    side = x.shape[1] // 2
    inside = []
    for dim in (1, 2):
        size = x.shape[dim]
        start = (u[:, dim - 1 : dim] * size).long() - side // 2
        place = torch.arange(size, device=u.device)
        inside.append(((place >= start) & (place < start + side)).to(x.dtype))
    return x * (1 - inside[0][:, :, None] * inside[1][:, None])[..., None]


def rand_augment(x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Two operations for each image, each with its own magnitude: colours are changed here, geometry is returned.

    `u` (b, 4) holds two choices and two magnitudes. The matrices (b, 3, 3) are for `warp`, which samples only once.
    """
    choices = (u[:, :2] * (len(COLOUR) + len(GEOMETRY))).long()
    choices, magnitudes = choices.T, (2 * u[:, 2:] - 1).T
    changed = change_colours(x.permute(0, 3, 1, 2), choices, magnitudes)
    first, second = moves(choices.flatten(), magnitudes.flatten(), *x.shape[1:3]).chunk(2)
    return changed.permute(0, 2, 3, 1), first @ second


GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def moves(choice: Tensor, magnitude: Tensor, h: int, w: int) -> Tensor:
    """The matrix of the chosen operation of `GEOMETRY` for each image; the unit matrix for choices before them."""
    kind = torch.arange(len(COLOUR), len(COLOUR) + len(GEOMETRY), device=choice.device)
    turn, lean_x, lean_y, right, down = (magnitude * (choice == kind[:, None])).unbind()
    cos, sin = cos_sin(turn, 0.2679)  # tan(30 deg / 2)
    return affine(cos, 0.3 * lean_x - sin, 0.3 * w * right, 0.3 * lean_y + sin, cos, 0.3 * h * down)


def change_colours(planes: Tensor, choices: Tensor, magnitudes: Tensor) -> Tensor:
    """The chosen operations of `COLOUR` on each image (c, h, w), one after the other; choices beyond them do nothing.

    Images with the same operation are brought together. Operations see pixels (h, w, c), but one plane after the other
    in memory: rows of three numbers would be slow.
    """
    planes, at = planes.contiguous(), torch.arange(len(planes), device=planes.device)
    choices = choices.where(magnitudes != 0, len(COLOUR)).clamp(max=len(COLOUR))
    for choice, magnitude in zip(choices, magnitudes, strict=True):
        order = choice[at].argsort()
        planes, at = planes.index_select(0, order), at[order]
        sizes = torch.bincount(choice, minlength=len(COLOUR) + 1).tolist()
        groups = zip(
            COLOUR.values(),
            planes.split(sizes),
            magnitude[at, None, None, None].split(sizes),
            strict=False,
        )
        for change, x, m in groups:
            if len(x):
                changed = change(x.float().permute(0, 2, 3, 1), m).round_().clamp_(0, 255)
                x.copy_(
                    changed.permute(0, 3, 1, 2).short()
                )  # torch is slow to make bytes of floats
    return planes.index_select(0, at.argsort())


# Operations on colours: x (b, h, w, c) holds whole numbers 0..255, m (b, 1, 1, 1) in -1..1 is not 0, which would change
# nothing. The result is rounded and clamped by the caller.

LUMA = (0.299, 0.587, 0.114)
YIQ = np.array(
    [LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)]
)  # grey level, and two axes of colour
QUARTER_TURN = (
    np.linalg.inv(YIQ) @ [[0, 0, 0], [0, 0, -1], [0, 1, 0]] @ YIQ
)  # of the colour, without its grey level


def grey(x: Tensor) -> Tensor:
    return (x * x.new_tensor(LUMA)).sum(-1, keepdim=True) if x.shape[-1] == 3 else x


def mean_grey(x: Tensor) -> Tensor:
    """Mean grey level of each image, as a whole number: so that the order of summation hardly ever matters."""
    return grey(x.mean((1, 2), keepdim=True)).round()


def depart(origin: Tensor, x: Tensor, m: Tensor) -> Tensor:
    """Move x away from the origin (m > 0) or towards it (m < 0), by at most nine tenths."""
    return (x - origin).mul_(1 + 0.9 * m).add_(origin)


def smooth(x: Tensor) -> Tensor:
    """3 x 3 mean with weight 5 in the middle; the border stays as it is."""
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
    """Invert what is brighter than a threshold that falls from 256 to 0."""
    return torch.where(x >= 256 * (1 - m.abs()), 255 - x, x)


def autocontrast(x: Tensor) -> Tensor:
    """Each channel's darkest value becomes 0 and its brightest 255; a channel of one value stays as it is."""
    low, high = x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True)
    varied = high > low
    return (x - low * varied).mul_(255).div_((high - low).where(varied, 255))


def equalize(x: Tensor) -> Tensor:
    """Make the histogram of each channel as flat as can be, by Pillow's definition."""
    b, h, w, c = x.shape
    level = x.permute(0, 3, 1, 2).int().reshape(b * c, h * w)
    slot = level + torch.arange(0, b * c * 256, 256, dtype=torch.int32, device=x.device)[:, None]
    count = torch.bincount(slot.view(-1), minlength=b * c * 256).view(b * c, 256)
    step = (
        h * w - count.gather(1, level.amax(1, keepdim=True).long())
    ) // 255  # of pixels, but the brightest ones
    table = (
        (count.cumsum(1).sub_(count) + step // 2)
        .div_(step.clamp(min=1), rounding_mode="floor")
        .clamp_(max=255)
    )
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
    """Brightness, contrast, saturation (each within 40 %) and hue (36 degrees) with prob. 0.8; grey with prob. 0.2.

    Saturation, hue and grey are one linear map of the colours, as in the YIQ model; all apply in this fixed order.
    """
    change = (2 * u[:, 1:5] - 1) * (u[:, :1] < 0.8)
    brightness, contrast, saturation = (1 + 0.4 * change[:, :3]).T[..., None, None, None]
    middle = mean_grey(x)
    if x.shape[-1] == 3:
        saturation = saturation.where(u[:, 5, None, None, None] >= 0.2, 0)
        x = mix(x, colour_matrix(saturation[..., 0], change[:, 3, None, None]))
    return (x - middle).mul_(brightness * contrast).add_(brightness * middle).clamp_(0, 255)


def colour_matrix(saturation: Tensor, m: Tensor) -> Tensor:
    """Keep the grey level, turn the colour by about 36 m degrees, and scale it: (b, 3, 3)."""
    luma = m.new_tensor(LUMA).expand(3, 3)
    colour = torch.eye(3, device=m.device) - luma
    cos, sin = cos_sin(m, 0.3249)  # tan(36 deg / 2)
    return luma + saturation * (cos * colour + sin * m.new_tensor(QUARTER_TURN))


def mix(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiply the colour of each pixel by the matrix (b, 3, 3) of its image, one plane after the other."""
    planes = x.permute(0, 3, 1, 2)
    mixed = matrix[:, :, 0, None, None] * planes[:, :1]
    for k in (1, 2):
        mixed.addcmul_(matrix[:, :, k, None, None], planes[:, k : k + 1])
    return mixed.permute(0, 2, 3, 1)


# Geometry: matrices (b, 3, 3) that send a place (x, y, 1) of the result to its place in the source, in pixels from the
# centre.


def affine(xx: Tensor, xy: Tensor, x1: Tensor, yx: Tensor, yy: Tensor, y1: Tensor) -> Tensor:
    """[[xx, xy, x1], [yx, yy, y1], [0, 0, 1]] for each element."""
    zero = torch.zeros_like(xx)
    return torch.stack([xx, xy, x1, yx, yy, y1, zero, zero, zero + 1], 1).view(-1, 3, 3)


def cos_sin(m: Tensor, tan_half: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of an angle whose half has the tangent `m * tan_half`: nearly proportional to m."""
    t = m * tan_half
    return (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)


def random_box(u: Tensor, h: int, w: int) -> Tensor:
    """Box of 0.2 to 1 of the area, ratio of width to height 3/4 to 4/3, anywhere in the image; half are flipped."""
    area = (0.2 + 0.8 * u[:, 0]) * (h * w)
    v = (2 * u[:, 1] - 1) / 7
    ratio = (1 + v) / (1 - v)  # very nearly log-uniform
    width, height = (area * ratio).sqrt().clamp(max=w), (area / ratio).sqrt().clamp(max=h)
    flip = torch.where(u[:, 4] < 0.5, -1.0, 1.0)
    x1, y1 = (u[:, 2] - 0.5) * (w - width), (u[:, 3] - 0.5) * (h - height)
    none = torch.zeros_like(area)
    return affine(flip * width / w, none, x1, none, height / h, y1)


def warp(x: Tensor, matrix: Tensor) -> Tensor:
    """Sample each image through its matrix (see `affine`), bilinearly; places beyond the image are black."""
    h, w = x.shape[1:3]
    across = torch.arange(w, device=x.device) - (w - 1) / 2
    down = torch.arange(h, device=x.device)[:, None] - (h - 1) / 2
    m = (
        matrix[:, :2] * torch.tensor([2 / w, 2 / h], device=x.device)[:, None]
    )  # the image spans -1..1
    place = m[:, :, 0, None, None] * across + (
        m[:, :, 1, None, None] * down + m[:, :, 2, None, None]
    )
    source = x.permute(0, 3, 1, 2).float()
    sampled = F.grid_sample(
        source, place.permute(0, 2, 3, 1), padding_mode="border", align_corners=False
    )
    across, down = place.abs().split(1, dim=1)
    return sampled.mul_((torch.maximum(across, down) <= 1).float()).permute(0, 2, 3, 1)
