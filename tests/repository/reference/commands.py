"""docs/cli.md: all verbs of the command, from click."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from textwrap import dedent
from typing import Final

import click

from pocketmq.tools.cli import cli
from pocketmq.tools.lazy_group import LazyGroup
from pocketmq.tools.options import nameserver_option

from .markdown import code, plain, sentence, table

#: Options that many verbs have: they are listed once.
_COMMON: Final = ("--nameserver", "--tls", "--tls-ca", "--tls-cert", "--tls-key")
_EXAMPLE: Final = re.compile(r"(Examples?): ")
_NEXT_CODE: Final = re.compile(r", (?=\d+ )")


def sections() -> dict[str, Callable[[], str]]:
    """Return what makes each section of the command's help, by title."""
    assert isinstance(cli, LazyGroup)
    return {title: _section(tuple(table)) for title, table in cli._sections.items()}


def _section(names: tuple[str, ...]) -> Callable[[], str]:
    def make() -> str:
        root = click.Context(cli, info_name="pocketmq")
        return "\n".join(_verb(root, name, "###") for name in names)

    return make


def _verb(parent: click.Context, name: str, level: str) -> str:
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    pieces = command.collect_usage_pieces(context)
    usage = " ".join((context.command_path, *pieces))
    parts = [f"{level} {context.command_path}", f"```\n{usage}\n```", *_prose(command.help)]
    if options := _options(context):
        parts.append(options)
    parts += _prose(command.epilog)
    if isinstance(command, click.Group):
        parts += [_verb(context, one, "####") for one in command.list_commands(context)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _prose(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a help TEXT; what click does not wrap is a block of code."""
    for paragraph in (text or "").replace("\f", "").split("\n\n"):
        if paragraph.strip().startswith("\b"):
            block = dedent(paragraph.strip().removeprefix("\b").strip("\n"))
            example = _EXAMPLE.match(block)
            if example is None:
                yield f"```\n{block}\n```"
            else:
                commands = block[example.end() :].splitlines()
                lines = "\n".join(f"$ {command.strip()}" for command in commands)
                yield f"{example[1]}:\n\n```console\n{lines}\n```"
        elif paragraph.strip():
            yield plain(paragraph)


def _options(context: click.Context) -> str:
    records = [
        (one.opts[0], record)
        for one in context.command.get_params(context)
        if isinstance(one, click.Option)
        and "--help" not in one.opts
        and (record := one.get_help_record(context)) is not None
    ]
    common = [name for name, record in records if record == _common().get(name)]
    rows = [
        (code(record[0]), plain(sentence(record[1])))
        for name, record in records
        if name not in common
    ]
    listed = table(("Option", "Meaning"), rows) if rows else ""
    if common:
        names = "connection options" if "--nameserver" in common else "TLS options"
        listed += f"\nAlso the [{names}](#connection-options)."
    return listed


@cache
def _common() -> dict[str, tuple[str, str]]:
    """Return the help of the options of all verbs that call servers."""
    command = nameserver_option(click.command("any")(lambda: None))
    context = click.Context(command)
    records = {
        one.opts[0]: one.get_help_record(context)
        for one in command.params
        if isinstance(one, click.Option)
    }
    return {name: record for name in _COMMON if (record := records[name]) is not None}


def connection_options() -> str:
    """Return the options of all verbs that call servers."""
    rows = [(code(names), plain(sentence(text))) for names, text in _common().values()]
    return table(("Option", "Meaning"), rows)


def exit_codes() -> str:
    """Return the exit codes."""
    words = " ".join((cli.epilog or "").replace("\b", "").split()).partition("Exit codes: ")[2]
    codes = (one.partition(" ") for one in _NEXT_CODE.split(words.partition(". ")[0]))
    rows = [(number, plain(sentence(meaning))) for number, _, meaning in codes]
    return table(("Exit code", "Meaning"), rows)
