"""The drawing docs/packages.svg: packages and their folders as boxes sized by lines, imports as arrows.

It depends only on the sources: the same sources give the same bytes. `make call-paths` updates it.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import Final, NamedTuple

from .source_tree import ROOT
from .structure import package_imports, package_sizes

DRAWING: Final = ROOT / "docs" / "packages.svg"
#: From the top down: a package imports only from rows below its own.
_ROWS: Final = (("tools",), ("broker", "client", "nameserver"), ("store",), ("proto",))
#: Size of the drawing, of the gaps between rows, and of the margins next to them, in pixels.
_WIDTH: Final = 960
_GAP: Final = 44
_SIDE: Final = 70
_TITLE: Final = 20
#: Lines of code per square pixel. The smallest boxes are larger.
_LINES: Final = 0.22
#: The minimum width of a box, so that its name fits.
_LEAST: Final = 104

_STYLE: Final = """
svg { font: 11px system-ui, sans-serif; background: #fff }
.package { fill: #e8eef7; stroke: #5b7aa8 } .folder { fill: #fff; stroke: #a9bad3 }
text { fill: #1b2635 } .title { font-weight: 600; font-size: 13px } .small { fill: #56657a; font-size: 10px }
.arrow { fill: none; stroke: #b4552d } .head { fill: #b4552d } .count { fill: #8a3c1a; font-size: 10px }
@media (prefers-color-scheme: dark) {
svg { background: #12171f }
.package { fill: #1d2733; stroke: #6f8fbd } .folder { fill: #12171f; stroke: #46586f }
text { fill: #e4eaf2 } .small { fill: #9aa9bc }
.arrow { stroke: #e58a5c } .head { fill: #e58a5c } .count { fill: #f0ab86 }
}
"""


class _Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def drawn() -> str:
    """Return the drawing."""
    lines = package_sizes()
    boxes: dict[str, _Box] = {}
    y = float(_TITLE)
    for row in _ROWS:
        available = _WIDTH - 2 * _SIDE - 10 * (len(row) - 1)
        total = sum(lines[package].total() for package in row)
        height = total / available / _LINES + _TITLE
        widths = _shares([lines[package].total() for package in row], available)
        x = float(_SIDE)
        for package, width in zip(row, widths, strict=True):
            boxes[package] = _Box(x, y, width, height)
            x += width + 10
        y += height + _GAP
    parts = [_package(package, box, lines[package]) for package, box in boxes.items()]
    parts += _drawn_arrows(boxes)
    height = y - _GAP + _TITLE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img"'
        f' aria-label="The packages of PocketMQ and their imports"><style>{_STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _shares(sizes: list[int], width: float) -> list[float]:
    """Divide WIDTH in proportion to SIZES, with a minimum of _LEAST for each."""
    small = [size * width / sum(sizes) < _LEAST for size in sizes]
    left = width - _LEAST * sum(small)
    large = sum(size for size, is_small in zip(sizes, small, strict=True) if not is_small)
    return [
        _LEAST if is_small else size * left / large
        for size, is_small in zip(sizes, small, strict=True)
    ]


def _package(package: str, box: _Box, folders: Counter[str]) -> str:
    parts = [
        _rectangle("package", box),
        f'<text class="title" x="{box.x + 8:.0f}" y="{box.y + 17:.0f}">{package}/'
        + (f' <tspan class="small">{folders.total():,} lines</tspan>' if box.width > 160 else "")
        + "</text>",
    ]
    # Rows of boxes, the largest first. The height of a row is in proportion to its lines.
    inner = _Box(box.x + 6, box.y + 24, box.width - 12, box.height - 30)
    named = sorted(folders.items(), key=lambda item: (-item[1], item[0]))
    count = max(1, min(len(named), round(inner.height / 46)))
    rows: list[list[tuple[str, int]]] = [[] for _ in range(count)]
    for item in named:
        min(rows, key=lambda row: sum(size for _, size in row)).append(item)
    total = sum(folders.values())
    y = inner.y
    for row in [row for row in rows if row]:
        height = inner.height * sum(size for _, size in row) / total
        x = inner.x
        for (folder, size), width in zip(
            row, _spread([size for _, size in row], inner.width), strict=True
        ):
            at = _Box(x, y, width - 4, height - 4)
            parts.append(_rectangle("folder", at))
            parts.append(_label(folder, size, at))
            x += width
        y += height
    return "\n".join(parts)


def _spread(sizes: list[int], width: float) -> list[float]:
    return [width * size / sum(sizes) for size in sizes]


def _label(folder: str, size: int, box: _Box) -> str:
    """Return the name of FOLDER if it fits into BOX, with its size if that fits as well; else a tooltip."""
    name = f"{folder}/" if folder else "top level"
    if box.width < 6.2 * len(name) + 6 or box.height < 14:
        return f"<title>{escape(name)} {size:,}</title>"
    text = f'<text x="{box.x + 4:.0f}" y="{box.y + 12:.0f}">{escape(name)}'
    if box.width > 6.2 * len(name) + 46:
        text += f' <tspan class="small">{size:,}</tspan>'
    return text + "</text>"


def _rectangle(kind: str, box: _Box) -> str:
    return (
        f'<rect class="{kind}" x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}"'
        f' height="{box.height:.0f}" rx="3"/>'
    )


def _drawn_arrows(boxes: dict[str, _Box]) -> list[str]:
    """Draw arrows to the next row straight down, and arrows to later rows in the margins."""
    row_of = {package: number for number, row in enumerate(_ROWS) for package in row}
    counted = sorted(package_imports().items())
    sides = {"left": 0, "right": 0}
    found = []
    for (above, below), count in counted:
        up, down = boxes[above], boxes[below]
        width = 1 + min(5, count / 80)
        if row_of[below] == row_of[above] + 1:
            x = min(up, down, key=lambda box: box.width)
            middle = x.x + x.width / 2
            path = f"M{middle:.0f} {up.y + up.height:.0f}V{down.y - 7:.0f}"
            tip, label = (middle, down.y), (middle + 6, down.y - _GAP / 2 + 4)
            head = f"M{tip[0] - 5:.0f} {tip[1] - 8:.0f}h10l-5 8z"
        else:
            side = "left" if above in ("broker", "tools") else "right"
            number = sides[side] = sides[side] + 1
            edge, sign = (_SIDE, -1) if side == "left" else (_WIDTH - _SIDE, 1)
            away = edge + sign * (6 + 18 * number)
            leave = up.x + 14 * number if side == "left" else up.x + up.width - 14 * number
            start, end = up.y + up.height, down.y + 10 + 16 * number
            path = (
                f"M{leave:.0f} {start:.0f}V{start + 10 * number:.0f}H{away:.0f}"
                f"V{end:.0f}H{edge + sign * 7:.0f}"
            )
            head = f"M{edge + sign * 8:.0f} {end - 5:.0f}v10l{-sign * 8} -5z"
            label = (edge + sign * 20 - 14, end - 4)
        found.append(
            f'<g class="arrow-of" data-from="{above}" data-to="{below}"><path class="arrow" d="{path}"'
            f' stroke-width="{width:.1f}"/><path class="head" d="{head}"/>'
            f'<text class="count" x="{label[0]:.0f}" y="{label[1]:.0f}">{count}</text></g>'
        )
    return found
