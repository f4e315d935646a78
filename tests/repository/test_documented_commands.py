"""Commands that the documentation shows exist, with the options that it gives them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pocketmq.tools.cli import cli

from .source_tree import ROOT, name_of

#: What of a page may hold the whole table: Apache's verbs and PocketMQ's.
DIFFERENCES = ROOT / "docs" / "mqadmin.md"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
_ENDS = re.compile(r"^(?:[|;&<>#]|\d?>)")


def typed(text: str) -> Iterator[str]:
    """Yield the commands `pocketmq …` in blocks of TEXT that show a prompt, without what the shell adds."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if found := re.match(r"\s*\$ (?:\w+=\S* )*pocketmq (.+)", line):
                yield found[1]


def fault(line: str) -> str:
    """Return what is wrong with the command LINE, without `pocketmq`; empty: nothing."""
    command: click.Command = cli
    for word in words_of(line):
        if isinstance(command, click.Group):
            context = click.Context(command)
            found = None if word.startswith("-") else command.get_command(context, word)
            if found is not None:
                command = found
                continue
            takes_others = any(isinstance(one, click.Argument) for one in command.params)
            if not word.startswith("-") and not takes_others:
                return f"{line}: there is no {word}"
        if word.startswith("--") and word.split("=")[0] not in options_of(command):
            return f"{line}: there is no {word}"
    return ""


def words_of(line: str) -> Iterator[str]:
    """Yield the words of LINE up to what is the shell's."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    for word in lexer:
        if _ENDS.match(word):
            return
        yield word


def options_of(command: click.Command) -> set[str]:
    """Return the options of COMMAND, `--help` and `--version` among them."""
    return {
        "--help",
        "--version",
        *(name for one in command.params for name in (*one.opts, *one.secondary_opts)),
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    assert [said for line in typed(page.read_text("utf-8")) if (said := fault(line))] == []


def test_what_stands_for_a_command_of_mqadmin_exists() -> None:
    section = DIFFERENCES.read_text("utf-8").split("| mqadmin |")[1].split("\n\n")[0]
    cells = [row.strip("|").split("|")[-1] for row in section.splitlines()[2:]]
    named = [one for cell in cells for one in re.findall(r"`([^`]+)`", cell)]

    assert len(named) > 30
    assert [said for line in named if not line.startswith("curl ") if (said := fault(line))] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    page = "```console\n$ pocketmq lag --groups x | head\n$ pocketmq lags\n$ lags\n```\n$ pocketmq no\n"

    assert [fault(line) for line in typed(page)] == [
        "lag --groups x | head: there is no --groups",
        "lags: there is no lags",
    ]
    assert fault("config get store.x") == "config get store.x: there is no get"
    assert fault("topic create orders --queues 8 --type=FIFO > receipt.txt") == ""
