"""Each option of each verb has a help text, which docs/cli.md shows (test_reference.py)."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from pocketmq.tools.cli import cli


def verbs(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    """Yield COMMAND, which WORDS name, and all of its sub-commands."""
    yield " ".join(words), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) is not None:
                yield from verbs(found, *words, name)


VERBS = dict(verbs(cli, "pocketmq"))


def options_of(verb: str) -> list[click.Option]:
    """Return what `--help` of VERB lists."""
    parameters = VERBS[verb].params
    return [one for one in parameters if isinstance(one, click.Option) and not one.hidden]


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_has_a_help_text(verb: str) -> None:
    assert [one.opts[0] for one in options_of(verb) if not one.help] == []
