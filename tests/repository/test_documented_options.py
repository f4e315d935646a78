"""Each option of each verb has a help text, and a page of the documentation that names the verb names the option."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from pocketmq.tools.cli import cli

from .source_tree import ROOT

#: Options of many verbs: it is enough that one page has them.
COMMON = {"--json", "--yes", "--store", "--nameserver", "--tls", "--ca", "--tls-cert", "--tls-key"}
PAGES = [
    path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
]


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


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_in_the_documentation(verb: str) -> None:
    top = " ".join(verb.split()[:2])
    of_verb = [page for page in PAGES if re.search(rf"{top}(?![\w-])", page)]
    missing = [
        name
        for one in options_of(verb)
        for name in (*one.opts, *one.secondary_opts)
        if not any(
            re.search(rf"{name}(?![\w-])", page) for page in (PAGES if name in COMMON else of_verb)
        )
    ]
    assert missing == [], f"name them on a page in docs that has `{top}`, or in README.md"
