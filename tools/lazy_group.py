"""A group of commands that are imported when they are run, and listed, described and completed without."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem

#: Commands of a group: (module and object, what it does).
CommandTable: TypeAlias = Mapping[str, tuple[str, str]]


class LazyGroup(click.Group):
    """A group of commands. The help lists SECTIONS, by title; modules are in PACKAGE."""

    def __init__(
        self,
        *arguments: Any,
        sections: Mapping[str, CommandTable],
        package: str,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self._sections = sections
        self._table = {name: row for table in sections.values() for name, row in table.items()}
        self._package = package

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, _, name = self._table[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f".{module}", self._package), name)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return click.Command.shell_complete(self, ctx, incomplete)
        return [
            CompletionItem(name, help=text)
            for name, (_, text) in self._table.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._table))
        for title, table in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", text) for name, (_, text) in table.items()])
