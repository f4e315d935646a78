"""Draws docs/img/demo.svg, the animated terminal of README, from README's quickstart: `make demo-svg`.

A test runs these commands and compares what they print, so the picture shows what a reader gets. Each line has a CSS
animation. There is no script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Final

from .source_tree import ROOT

PICTURE: Final = ROOT / "docs/img/demo.svg"
SECONDS: Final = 20.0
_TYPED_PER_S: Final = 28
_PAUSE_S: Final = 0.7
#: The message of `--delay 5s` is due so much later; the picture does not make you wait for all of it.
_DELAY_S: Final = 2.0
_LINE_HEIGHT: Final = 24
_WIDTH: Final = 760
_STYLE: Final = """\
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; fill: #24292f }
.window { fill: #f6f8fa; stroke: #d0d7de } .typed { fill: #0550ae; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .window { fill: #0d1117; stroke: #30363d } .typed { fill: #79c0ff }
}
"""


@dataclass(frozen=True)
class Line:
    """A line of the terminal: when it begins, and how long it is typed; 0: it is printed at once."""

    text: str
    begin_s: float
    typing_s: float


def lines(readme: str) -> Iterator[Line]:
    """Yield the lines of both terminals of the quickstart in README."""
    _, serve, second = re.split(r"```console\n", readme)[:3]
    start = serve.partition("```")[0].strip().splitlines()[-1]
    now_s = 0.5
    for text in [f"{start} &", *second.partition("```")[0].strip().splitlines()]:
        if text.startswith("$ "):
            typing_s = len(text) / _TYPED_PER_S
            yield Line(text, now_s, typing_s)
            now_s += typing_s + _PAUSE_S
        else:
            now_s += _DELAY_S if text == "not yet" else 0
            yield Line(text, now_s, 0)
            now_s += _PAUSE_S


def drawn(readme: str) -> str:
    """Return the picture of README's quickstart."""
    rules, texts = list[str](), list[str]()
    for number, line in enumerate(lines(readme)):
        begin, end = (100 * at / SECONDS for at in (line.begin_s, line.begin_s + line.typing_s))
        hidden, shown = "clip-path: inset(0 100% 0 0)", "clip-path: inset(0 0 0 0)"
        steps = f"{begin:.2f}% {{ {hidden}; animation-timing-function: steps({len(line.text)}) }}"
        rules.append(
            f"@keyframes l{number} {{ 0% {{ {hidden} }} {steps} {max(end, begin + 0.01):.2f}%, 97% {{ {shown} }}"
            f" 98%, 100% {{ {hidden} }} }}\n.l{number} {{ animation: l{number} {SECONDS:g}s step-end infinite }}\n"
        )
        kind = " typed" if line.typing_s else ""
        y = 40 + number * _LINE_HEIGHT
        texts.append(f'<text class="l{number}{kind}" x="24" y="{y}">{escape(line.text)}</text>\n')
    height = 40 + len(texts) * _LINE_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
        ' aria-label="A terminal: start a broker, send a message, read it, send a delayed one, read that">\n'
        f"<style>\n{_STYLE}{''.join(rules)}</style>\n"
        f'<rect class="window" x="1" y="1" width="{_WIDTH - 2}" height="{height - 2}" rx="8"/>\n'
        f"{''.join(texts)}</svg>\n"
    )


def main() -> None:
    PICTURE.write_text(drawn((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
