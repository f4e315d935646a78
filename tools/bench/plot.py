"""The picture of `bench ordinary --plot`: two bars for each kind of work, PocketMQ and the baseline of the same run.

A longer bar is faster: bars are messages per second, and for one send at a time the inverse of the median time. The
bars of one row share a scale, because rates of different rows are far apart. The ratio is next to them, also
below 1. The baseline is Apache RocketMQ, or an echo of the same bytes where the run did not measure it. The text is SVG
without a script, with colours for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final, NamedTuple

from .measure import Figure

#: Keys of the facts of `ordinary`, in the order of the picture, and what a reader calls them.
LABELS: Final = {
    "in_flight": "64 sends in flight",
    "lists_1_thread": "batches of 100, 1 thread",
    "lists_4_threads": "batches of 100, 4 threads",
    "lists_of_values_1_thread": "batches of 100 values, 1 thread",
    "lists_of_values_4_threads": "batches of 100 values, 4 threads",
    "one_at_a_time": "one send at a time",
    "delayed": "delayed, 64 in flight",
    "push_all_read": "push, all fields read",
    "push_body_read": "push, body read",
    "official_64_threads": "official client, 64 threads",
    "official_async_64": "official client, 64 in flight",
    "official_one_at_a_time": "official client, one at a time",
    "official_receive_and_32_acks_1_thread": "official client, receive + ack, 1 thread",
    "official_receive_and_32_acks_8_threads": "official client, receive + ack, 8 threads",
}
#: What a caller waits for: the median time counts.
_WAITED_FOR: Final = frozenset({"one_at_a_time", "official_one_at_a_time"})
_WIDTH: Final = 760
_BARS_X: Final = 282
_BARS_WIDTH: Final = 310
_RATIO_X: Final = 740
_TOP: Final = 78
_ROW: Final = 42
_BAR: Final = 13
_CAPTION_LINE: Final = 18
_STYLE: Final = """\
text { font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1c2733 }
.page { fill: #fff; stroke: #d0d7de } .own { fill: #2f855a } .other { fill: #8a93a0 }
.title { font-size: 16px; font-weight: 600 } .value, .caption { font-size: 11px; fill: #46525f }
.ratio { font-weight: 600; text-anchor: end } .below { fill: #b03a3a } .label { text-anchor: end }
@media (prefers-color-scheme: dark) {
text { fill: #eef2f6 } .page { fill: #1d232b; stroke: #30363d } .own { fill: #7fcf9c } .other { fill: #8a93a0 }
.value, .caption { fill: #c0cad5 } .below { fill: #e88b8b }
}
"""


class PlotRow(NamedTuple):
    """A kind of work, and the messages per second of both; of what is waited for, the inverse of the median time."""

    label: str
    own: float
    other: float
    waited_for: bool = False

    @property
    def ratio(self) -> float:
        return self.own / self.other

    def texts(self) -> tuple[str, str]:
        """Return both values for people."""
        form = _time if self.waited_for else _rate
        return form(self.own), form(self.other)


def compared(figure: Figure) -> tuple[str, list[PlotRow]]:
    """Return the name of the baseline, and what FIGURE measured next to it."""
    version = figure.facts.get("apache_version")
    values = {**figure.facts, **figure.beside}
    rows = []
    for key, label in LABELS.items():
        waited_for = key in _WAITED_FOR
        unit = "p50_ms" if waited_for else "per_second"
        own = values.get(f"{key}_{unit}")
        other = values.get(f"apache_{key}_{unit}" if version else f"{key}_echo_{unit}")
        if own and other:
            both = (1000 / own, 1000 / other) if waited_for else (own, other)
            rows.append(PlotRow(label, *both, waited_for))
    return f"Apache RocketMQ {version}" if version else "echo of the same bytes", rows


def drawn(figure: Figure, *, machine: str, date: str) -> str:
    """Return the picture of FIGURE, which MACHINE gave on DATE."""
    baseline, rows = compared(figure)
    caption = [
        f"A longer bar is faster. The bars of a row have one scale. Ratio: PocketMQ divided by {baseline};",
        "below 1 PocketMQ is slower.",
        figure.what,
        f"{machine}, {date}",
    ]
    text_top = _TOP + len(rows) * _ROW + 12
    height = text_top + len(caption) * _CAPTION_LINE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        ' aria-labelledby="t d">',
        f'<title id="t">Messages per second, PocketMQ and {escape(baseline)}</title>',
        f'<desc id="d">{escape(_told(rows))}</desc>',
        f"<style>\n{_STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
        '<text class="title" x="20" y="30">Messages per second, and median time of one send</text>',
        f'<rect class="own" x="20" y="44" width="13" height="13"/><text x="40" y="55">PocketMQ</text>'
        f'<rect class="other" x="120" y="44" width="13" height="13"/><text x="140" y="55">{escape(baseline)}</text>',
        f'<text class="ratio" x="{_RATIO_X}" y="55">ratio</text>',
    ]
    for number, row in enumerate(rows):
        parts += _row(row, _TOP + number * _ROW)
    parts += [
        f'<text class="caption" x="20" y="{text_top + number * _CAPTION_LINE}">{escape(line)}</text>'
        for number, line in enumerate(caption)
    ]
    return "\n".join([*parts, "</svg>\n"])


def _row(row: PlotRow, top: int) -> Iterator[str]:
    """Yield the two bars of ROW, with its label and ratio."""
    middle = top + _BAR + 4
    yield f'<text class="label" x="{_BARS_X - 12}" y="{middle}">{escape(row.label)}</text>'
    most, (own, other) = max(row.own, row.other), row.texts()
    bars = (("own", row.own, own, top), ("other", row.other, other, top + _BAR + 1))
    for kind, rate, text, y in bars:
        width = max(1.0, _BARS_WIDTH * rate / most)
        yield (
            f'<rect class="{kind}" x="{_BARS_X}" y="{y}" width="{width:.1f}" height="{_BAR}"/>'
            f'<text class="value" x="{_BARS_X + width + 6:.1f}" y="{y + 10}">{text}</text>'
        )
    below = " below" if row.ratio < 1 else ""
    yield f'<text class="ratio{below}" x="{_RATIO_X}" y="{middle}">{row.ratio:.2f}</text>'


def _told(rows: list[PlotRow]) -> str:
    """Return ROWS in words, for readers who do not see the picture."""
    return " ".join(
        f"{row.label}: {' and '.join(row.texts())}, ratio {row.ratio:.2f}." for row in rows
    )


def _rate(value: float) -> str:
    """Return a rate of three digits: the others differ from run to run."""
    return f"{float(f'{value:.3g}'):,.0f}/s"


def _time(value: float) -> str:
    """Return the time whose inverse is VALUE."""
    return f"{1000 / value:.2f} ms"
