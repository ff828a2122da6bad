"""Draw which folders of a package import from which, or print how long they are.

    python tools/import_graph.py --out docs/images/imports.svg
    python tools/import_graph.py --table
    python tools/import_graph.py OLD/src/candidly --flat --out docs/images/imports-before.svg

A box is a folder, or a group of modules that the contract in pyproject.toml names together; the
boxes come in the order of that contract, and an arrow points from a box to one that it imports.
Arrows to the last layer are left out. The wider an arrow, the more modules import one another. With
`--flat` the contract is ignored: each module of the top level has a box of its own, above all that
it imports. Arrows of imports that only type checkers follow are dashed; arrows that point upwards
or sideways are red.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
ENTRY_POINTS = ("__init__", "__main__")  # of the package: they import for users, not for modules
TOP = "(top level)"

# All in inches.
BOX_HEIGHT = 0.5
TITLE_LETTER = 0.078
NOTE_LETTER = 0.056
MARGIN = 0.22
LEVEL = 0.95
LAYERED_WIDTH = 7.5
GAP = 0.3
COLOURS = {"down": "#3b6ea5", "against": "#c8102e"}
STARTS = 5  # of the search for places
ATTEMPTS = 1000  # to find better places, from each start


@dataclass(frozen=True)
class Tree:
    """Modules of a package: number of lines by dotted name, and imports between them.

    `imports` maps (importer, imported) to whether only type checkers follow the import.
    """

    package: str
    lines: dict[str, int]
    imports: dict[tuple[str, str], bool]


def read_tree(folder: Path) -> Tree:
    """Parse all modules below a package's folder."""
    files = {_module_name(path, folder): path for path in sorted(folder.rglob("*.py"))}
    lines: dict[str, int] = {}
    imports: dict[tuple[str, str], bool] = {}
    for name, path in files.items():
        text = path.read_text()
        lines[name] = len(text.splitlines())
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for target, for_types in _imported(ast.parse(text), package):
            found = _known(target, files)
            if found and found != name:
                imports[name, found] = for_types and imports.get((name, found), True)
    return Tree(folder.name, lines, imports)


def _module_name(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(node: ast.AST, package: str, for_types: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield each imported name, and whether only type checkers import it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, for_types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parents = package.split(".")[: len(package.split(".")) - child.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            yield from ((f"{base}.{alias.name}", for_types) for alias in child.names)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            body = ast.Module(child.body, [])
            yield from _imported(body, package, for_types=True)
            yield from _imported(ast.Module(child.orelse, []), package, for_types)
        else:
            yield from _imported(child, package, for_types)


def _known(name: str, files: dict[str, Path]) -> str | None:
    """Find the module that holds an imported name."""
    while name and name not in files:
        name = name.rpartition(".")[0]
    return name or None


def contract_layers(path: Path) -> list[list[str]]:
    """Read the layers of import-linter's contract; modules of one layer are listed together."""
    contracts = tomllib.loads(path.read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [[name.strip() for name in layer.split(":")] for layer in layers]


@dataclass
class Box:
    """A node of the picture: its modules, and where it is drawn."""

    title: str
    note: str
    modules: set[str]
    width: float = 0.0
    x: float = 0.0
    y: float = 0.0

    def __post_init__(self) -> None:
        text = max(len(self.title) * TITLE_LETTER, len(self.note) * NOTE_LETTER)
        self.width = max(self.width, text + MARGIN)


def make_boxes(tree: Tree, layers: list[list[str]] | None) -> list[list[Box]]:
    """Group the modules into boxes, one list per level; without layers, levels go by imports."""
    if layers is not None:
        found = [[_layer_box(tree, names)] for names in layers]
        (last,) = found[-1]
        last.note += "; arrows to this box are left out"
        last.width = max(last.width, LAYERED_WIDTH)
        return found
    names = sorted({_top_name(tree, module) for module in tree.lines} - {None, *ENTRY_POINTS})
    boxes = {name: _layer_box(tree, [f"{tree.package}.{name}"]) for name in names}
    level = _levels(boxes, tree)
    found = [[] for _ in range(max(level.values()) + 1)]
    for name, box in boxes.items():
        found[max(level.values()) - level[name]].append(box)
    return found


def _top_name(tree: Tree, module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == tree.package else None


def _layer_box(tree: Tree, names: list[str]) -> Box:
    modules = {
        module
        for module in tree.lines
        if any(module == name or module.startswith(f"{name}.") for name in names)
    }
    short = sorted(name.partition(".")[2] for name in names)
    lines = sum(tree.lines[module] for module in modules)
    note = f"{lines:,} lines"
    if len(modules) > 1:
        note = f"{len(modules)} modules, {note}"
    return Box(", ".join(short), note, modules)


def _levels(boxes: dict[str, Box], tree: Tree) -> dict[str, int]:
    """Put each box above all that it imports; boxes of a cycle share a level."""
    edges = box_edges(list(boxes.values()), tree)
    names = list(boxes)
    below = {name: {names[j] for (i, j) in edges if names[i] == name} for name in names}
    reach = {name: set(targets) for name, targets in below.items()}
    for middle in names:
        for name in names:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    level = dict.fromkeys(names, 0)
    for _ in names:
        for name in names:
            for target in below[name]:
                in_cycle = name in reach[target]
                level[name] = max(level[name], level[target] + (not in_cycle))
    return level


def box_edges(boxes: list[Box], tree: Tree) -> dict[tuple[int, int], tuple[int, bool]]:
    """(importer, imported) -> number of pairs of modules, and whether all are for types alone."""
    owner = {module: k for k, box in enumerate(boxes) for module in box.modules}
    pairs: Counter[tuple[int, int]] = Counter()
    for_types: dict[tuple[int, int], bool] = {}
    for (importer, imported), typing_only in tree.imports.items():
        i, j = owner.get(importer), owner.get(imported)
        if i is None or j is None or i == j:
            continue
        pairs[i, j] += 1
        for_types[i, j] = typing_only and for_types.get((i, j), True)
    return {edge: (pairs[edge], for_types[edge]) for edge in pairs}


def place(levels: list[list[Box]], edges: dict[tuple[int, int], Any]) -> None:
    """Choose places so that few arrows cross each other or a box; the best of several starts."""
    costs = [_climb(levels, edges, seed) for seed in range(STARTS)]
    _climb(levels, edges, int(np.argmin(costs)))


def _climb(levels: list[list[Box]], edges: dict[tuple[int, int], Any], seed: int) -> float:
    """Move boxes at random as long as that lowers the cost, and return it."""
    rng = np.random.default_rng(seed)
    boxes = [box for level in levels for box in level]
    for depth, level in enumerate(levels):
        for box in level:
            box.y = -LEVEL * depth
    width = max(sum(box.width + GAP for box in level) for level in levels)
    order = [rng.permutation(len(level)) for level in levels]
    shift = np.array([rng.uniform(-1, 1) for _ in levels])

    def spread() -> None:
        for level, places, offset in zip(levels, order, shift, strict=True):
            row = [level[k] for k in places]
            free = width - sum(box.width for box in row)
            gap = free / (len(row) + 1)
            x = gap * (1 + offset * 0.95 * (1 if len(row) == 1 else 0.3))
            for box in row:
                box.x = x + box.width / 2
                x += box.width + gap

    spread()
    best = _cost(boxes, edges)
    for _ in range(ATTEMPTS):
        k = int(rng.integers(len(levels)))
        old_order, old_shift = order[k].copy(), shift[k]
        if len(levels[k]) > 1 and rng.random() < 0.8:
            a, b = rng.integers(len(levels[k]), size=2)
            order[k][[a, b]] = order[k][[b, a]]
        else:
            shift[k] = rng.uniform(-1, 1)
        spread()
        cost = _cost(boxes, edges)
        if cost <= best:
            best = cost
        else:
            order[k], shift[k] = old_order, old_shift
    spread()
    return best


def _cost(boxes: list[Box], edges: dict[tuple[int, int], Any]) -> float:
    """Count crossings of arrows, and (with more weight) arrows that run through a box."""
    centre = np.array([[box.x, box.y] for box in boxes])
    half = np.array([[box.width / 2, BOX_HEIGHT / 2] for box in boxes])
    pairs = np.array(list(edges))
    start, end = centre[pairs[:, 0]], centre[pairs[:, 1]]
    steps = np.linspace(0.04, 0.96, 24)[:, None, None, None]
    points = start[None, :, None] * (1 - steps) + end[None, :, None] * steps
    inside = (np.abs(points - centre[None, None]) < half + 0.04).all(-1).any(0)
    inside[np.arange(len(pairs)), pairs[:, 0]] = False
    inside[np.arange(len(pairs)), pairs[:, 1]] = False

    def side(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        cross = (b - a)[..., 0] * (c - a)[..., 1] - (b - a)[..., 1] * (c - a)[..., 0]
        return np.sign(cross)

    a, b = start[:, None], end[:, None]
    c, d = start[None], end[None]
    crossing = (side(a, b, c) * side(a, b, d) < 0) & (side(c, d, a) * side(c, d, b) < 0)
    length = np.abs(start - end)[:, 0].sum()
    return 10.0 * inside.sum() + crossing.sum() / 2 + 0.05 * length


def draw(levels: list[list[Box]], edges: dict[tuple[int, int], tuple[int, bool]]) -> Any:
    """Draw boxes and arrows."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    boxes = [box for level in levels for box in level]
    left = min(box.x - box.width / 2 for box in boxes) - 0.15
    right = max(box.x + box.width / 2 for box in boxes) + 0.15
    bottom = min(box.y for box in boxes) - 0.45
    figure = Figure(figsize=(right - left, 0.45 - bottom))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, 0.45)
    axis.axis("off")
    patches = []
    for box in boxes:
        corner = (box.x - box.width / 2, box.y - BOX_HEIGHT / 2)
        patch = FancyBboxPatch(
            corner,
            box.width,
            BOX_HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.07",
            facecolor="#f4f6f9",
            edgecolor="#444444",
            linewidth=0.9,
            zorder=3,
        )
        axis.add_patch(patch)
        patches.append(patch)
        axis.text(box.x, box.y + 0.09, box.title, ha="center", va="center", fontsize=9, zorder=4)
        style = {"ha": "center", "va": "center", "color": "#555555", "zorder": 4}
        axis.text(box.x, box.y - 0.12, box.note, fontsize=7, **style)
    for (i, j), (count, for_types) in edges.items():
        against = boxes[i].y <= boxes[j].y
        arrow = FancyArrowPatch(
            (boxes[i].x, boxes[i].y),
            (boxes[j].x, boxes[j].y),
            patchA=patches[i],
            patchB=patches[j],
            shrinkA=1,
            shrinkB=2,
            arrowstyle="-|>",
            mutation_scale=8,
            connectionstyle="arc3,rad=0.25" if against else "arc3",
            linestyle=(0, (4, 3)) if for_types else "-",
            linewidth=0.5 + 0.35 * np.log2(1 + count),
            color=COLOURS["against" if against else "down"],
            alpha=0.75,
            zorder=2,
        )
        axis.add_patch(arrow)
    return figure


def size_table(tree: Tree) -> str:
    """Write modules and lines of each folder, and of the modules beside them, as Markdown."""
    groups: dict[str, list[int]] = {}
    for module, lines in tree.lines.items():
        parts = module.split(".")
        prefix = ".".join(parts[:2])
        is_folder = any(other.startswith(f"{prefix}.") for other in tree.lines)
        name = f"`{parts[1]}/`" if len(parts) > 1 and is_folder else TOP
        groups.setdefault(name, []).append(lines)
    lines_of = sorted(groups.items(), key=lambda item: (item[0] != TOP, item[0]))
    rows = [f"| {name} | {len(group)} | {sum(group):,} |" for name, group in lines_of]
    total = sum(tree.lines.values())
    head = ["| folder | modules | lines |", "|---|---|---|"]
    return "\n".join([*head, *rows, f"| all | {len(tree.lines)} | {total:,} |"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", type=Path, default=ROOT / "src" / "candidly")
    parser.add_argument("--out", type=Path, help="the picture: .svg, .png or .pdf")
    parser.add_argument("--flat", action="store_true", help="ignore the contract")
    parser.add_argument("--table", action="store_true", help="print the sizes of the folders")
    chosen = parser.parse_args()
    if not (chosen.out or chosen.table):
        parser.error("name a picture with --out, or ask for --table")
    tree = read_tree(chosen.source)
    if chosen.table:
        print(size_table(tree))
    if chosen.out:
        import matplotlib

        layers = None if chosen.flat else contract_layers(ROOT / "pyproject.toml")
        levels = make_boxes(tree, layers)
        boxes = [box for level in levels for box in level]
        edges = box_edges(boxes, tree)
        if layers is not None:
            edges = {(i, j): edge for (i, j), edge in edges.items() if j != len(boxes) - 1}
        place(levels, edges)
        # The same picture gives the same file: no date, and names of parts that are not random.
        with matplotlib.rc_context({"svg.hashsalt": "imports", "svg.fonttype": "path"}):
            metadata = {"Date": None} if chosen.out.suffix == ".svg" else None
            draw(levels, edges).savefig(chosen.out, dpi=150, metadata=metadata)


if __name__ == "__main__":
    main()
