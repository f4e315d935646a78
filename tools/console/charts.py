"""Coordinates of lines and bars in the console's charts, and of the hands of its clock. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin


def line_points(values: Sequence[float], width: int, height: int) -> str:
    """Return the points of a line through VALUES, in order of time, for SVG."""
    top = max(values, default=0) or 1
    step = width / max(1, len(values) - 1)
    return " ".join(
        f"{at * step:.1f},{height - 4 - value / top * (height - 12):.1f}"
        for at, value in enumerate(values)
    )


def bar_boxes(values: Sequence[float], width: int, height: int) -> list[tuple[str, ...]]:
    """Return x, y, width and height of a bar for each of VALUES."""
    top = max(values, default=0) or 1
    step = width / max(1, len(values))
    boxes = []
    for at, value in enumerate(values):
        size = value / top * (height - 8)
        box = at * step + 1, height - size, max(1, step - 2), size
        boxes.append(tuple(f"{number:.1f}" for number in box))
    return boxes


def clock_lines(time_ms: int) -> list[tuple[str, ...]]:
    """Return class and ends of the marks and hands of a clock at TIME_MS in UTC, around the point 0, 0."""
    minutes = time_ms // 60_000 % 720
    marks = [("grid", hour / 12, 40, 45) for hour in range(12)]
    hands = [("line", minutes / 720, 0, 24), ("line", minutes % 60 / 60, 0, 36)]
    lines = []
    for kind, turn, begin, end in (*marks, *hands):
        across, up = sin(2 * pi * turn), -cos(2 * pi * turn)
        places = across * begin, up * begin, across * end, up * end
        lines.append((kind, *(f"{place:.1f}" for place in places)))
    return lines
