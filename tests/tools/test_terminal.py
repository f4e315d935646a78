"""What others wrote does not reach the terminal's controls, whichever verb prints it."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from hypothesis import given, strategies as st

from pocketmq.tools import terminal

SOURCES = Path(__file__).parents[2] / "tools"
#: Sequences of rich and of our own: colours, and on a screen in place.
STYLE = re.compile(r"\x1b\[[0-9;]*m")
HARMFUL = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        self.flush()
        bytes_io = self.buffer
        assert isinstance(bytes_io, io.BytesIO)
        return bytes_io.getvalue().decode()


@contextmanager
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Have standard output and error be one terminal within the block, which escapes."""
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", made)
        patched.setattr(sys, "stderr", made)
        with terminal.guarded():
            yield made
        assert sys.stdout is made


@given(st.text())
def test_what_is_printable_stays_and_no_control_is_left(text: str) -> None:
    shown = terminal.printable(text)
    assert not HARMFUL.search(shown.replace("\r\n", "\n"))
    if not HARMFUL.search(text):
        assert shown == text
    assert not re.search(r"[\t\n\r]", terminal.one_line(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\u009b2J"),
        ("a\rb", r"a\rb"),
        ("a\r\nb\tc", "a\r\nb\tc"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\x7f\ud800", r"\u007f\ud800"),
        ("größe 🙂 👩‍🔬 שלום", "größe 🙂 👩‍🔬 שלום"),
    ],
)
def test_controls_are_shown_by_their_numbers(text: str, shown: str) -> None:
    assert terminal.printable(text) == shown


def test_text_on_a_terminal_is_escaped_bytes_and_own_sequences_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with on_terminal(monkeypatch) as out:
        click.echo("\x1b[2J")
        sys.stdout.writelines(["\x07"])
        logging.StreamHandler(sys.stdout).emit(logging.makeLogRecord({"msg": "\x1b]52;c;\x07"}))
        terminal.own(sys.stdout).write("\r\x1b[K")
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\x1b")
    assert out.text == "\\x1b[2J\n\\x07\\x1b]52;c;\\x07\n\r\x1b[K\x1b"


def test_text_into_a_pipe_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    with terminal.guarded():
        sys.stdout.write("\x1b[2J\n")
    assert pipe.getvalue() == "\x1b[2J\n"


def test_rich_escapes_text_in_tables_live_views_and_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    with on_terminal(monkeypatch) as out:
        console = terminal.console(width=200)
        table = Table("\x1b]0;title\x07")
        table.add_row("\x1b[2J[red]x[/red]:smile:", Text("\x9b2J", style="bold"))
        console.print(table)
        console.print("\x1b[8m[link=x]y[/link]", style="dim")
        with Live(table, console=console, auto_refresh=False):
            pass
    text = STYLE.sub("", out.text)
    assert r"\x1b[2J[red]x[/red]:smile:" in text
    assert r"\x1b[8m[link=x]y[/link]" in text
    for harmful in ("\x1b]", "\x1b[2J", "\x1b[8m", "\x9b", "\x07", "]8;"):
        assert harmful not in out.text, harmful


def test_no_verb_makes_a_console_of_its_own() -> None:
    elsewhere = [
        f"{path.name}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        if path.name != "terminal.py"
        for line in path.read_text().splitlines()
        if re.search(r"\bConsole\(|rich\.print|\bRprint\(", line)
    ]
    assert elsewhere == []
