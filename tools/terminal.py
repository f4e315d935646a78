"""Text on terminals: what others wrote is shown without the control characters that a terminal acts on.

Topics, keys, tags, properties, bodies, client ids and host names come from others. On a terminal an escape sequence in
them could change the title, clear the screen, write to the clipboard or hide text. So each such character is shown as
`\\x1b` or `\\u202e` instead:

    C0 but newline and tab; a carriage return without a newline      DEL and C1
    bidirectional controls, line and paragraph separators            lone surrogates

    with guarded(): …                 all text on standard output and error, where that is a terminal
    console()                         what rich prints: its own sequences remain, the text in them is escaped
    own(sys.stdout).write("\\r\\x1b[K")  a sequence of the command's own

Bytes (`sys.stdout.buffer`) pass as they are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

if TYPE_CHECKING:  # Rich takes a moment to import, which few commands need.
    from rich.console import Console
    from rich.text import Text

_SPECIAL: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL: Final = re.compile(f"[\0-\x08\x0b\x0c\x0e-\x1f{_SPECIAL}]|\r(?!\n)")
_BREAKS: Final = re.compile(r"[\t\n\r]")
_ASCII_MAX: Final = 0x7F


def printable(text: str) -> str:
    """Return TEXT with its control characters escaped; newlines and tabs remain."""
    return text if text.isprintable() else _CONTROL.sub(_escaped, text)


def one_line(text: str) -> str:
    """Return TEXT with its control characters escaped, newlines and tabs too."""
    return text if text.isprintable() else _BREAKS.sub(_escaped, printable(text))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if found[0] in "\t\n\r":
        return {"\t": "\\t", "\n": "\\n", "\r": "\\r"}[found[0]]
    # The longer form is JSON's as well, where C0 never comes unescaped.
    return f"\\x{code:02x}" if code < _ASCII_MAX else f"\\u{code:04x}"


class _Guarded:
    """A text STREAM to a terminal that escapes what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self.unguarded = stream

    def write(self, text: str) -> int:
        self.unguarded.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unguarded, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Escape what is printed on terminals within the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_guard, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _guard(stream: TextIO) -> TextIO:
    return cast("TextIO", _Guarded(stream)) if stream is not None and stream.isatty() else stream


def own(stream: TextIO) -> TextIO:
    """Return the stream below STREAM that escapes nothing."""
    return cast("TextIO", getattr(stream, "unguarded", stream))


def console(*, stderr: bool = False, **options: Any) -> Console:
    """Return a console of rich with OPTIONS on standard output, or error.

    It escapes the text of what it is given to print, and takes no markup unless OPTIONS say so.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class EscapingConsole(Console):
        def render_str(self, text: str, **settings: Any) -> Text:
            return super().render_str(printable(text), **settings)  # Before it is measured.

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control is None:
                    segment = Segment(printable(segment.text), segment.style)
                yield segment

    settings: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False, **options}
    stream = sys.stderr if stderr else sys.stdout
    return EscapingConsole(file=own(stream), stderr=stderr, **settings)
