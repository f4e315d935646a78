"""Numbers, lengths of time and times on the command line that are too large, too small or no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click
import pytest

from pocketmq.tools import cli

from ..complaint import complaint

HUGE = "9" * 5_000


def parameters(
    command: click.Command, path: tuple[str, ...] = (), parent: click.Context | None = None
) -> Iterator[tuple[str, click.Parameter]]:
    """Yield the parameters of COMMAND and of all below it, with the words that name the command."""
    context = click.Context(command, info_name=path[-1] if path else "pocketmq", parent=parent)
    for parameter in command.params:
        yield " ".join(path), parameter
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from parameters(child, (*path, name), context)


def test_every_number_has_a_limit_and_an_error_that_names_it() -> None:
    found = [
        (where, parameter)
        for where, parameter in parameters(cli.cli)
        if isinstance(parameter.type, click.types.FloatParamType | click.types.IntParamType)
        and parameter.name != "seed"  # Any number is one.
    ]
    assert len(found) > 60
    for where, parameter in found:
        kind, convert = parameter.type, cast(Any, parameter.type).convert
        assert isinstance(kind, click.IntRange | click.FloatRange), (where, parameter.name)
        assert kind.min is not None, (where, parameter.name)
        assert kind.max is not None, (where, parameter.name)
        assert kind.max < 1 << 63, (where, parameter.name)
        for value in ("nan", "inf", "1e400", "-1", str(1 << 63), HUGE):
            with pytest.raises(click.BadParameter):
                convert(value, parameter, None)


@pytest.mark.parametrize(
    "words",
    [
        ("dead-letters", "list", "G", f"--from={1 << 63}"),
        ("dead-letters", "purge", "G", "--yes", f"--below={1 << 63}"),
        ("dead-letters", "resend", "G", str(1 << 63)),
        ("find", "--topic=T", "--queue=0", f"--offset={1 << 63}"),
        ("inspect", "{store}", "log", f"--limit={1 << 63}"),
        ("group", "plan", "--members=2", f"--queues=T={HUGE}"),
        ("group", "reset-offset", "G", "--topic=T", "--to-first", f"--queue={HUGE}"),
        ("group", "describe", "G", "--interval=99999999999999d"),
        ("top", "--once", "--interval=99999999999999d"),
        ("lag", "--watch", "--interval=99999999999999d"),
        ("health", "--timeout=99999999999999d"),
        ("health", f"--broker=127.0.0.1:{HUGE}"),
        ("replicas", "transfer", "S", "1", "--timeout=99999999999999d"),
        ("clock", "advance", "99999999999999d"),
        ("send", "T", "body", "--at=0001-01-01"),
        ("send", "T", "body", "--at=9999-12-31T23:59:59.999999-23:59"),
        ("consume", "T", "--from=0001-01-01T00:00:00+14:00"),
        ("consume", "T", "--from=253402300800001"),
        ("find", "--topic=T", "--since=1960-01-01"),
        ("size", "builtins:len", "--topic=T", f"--peak={HUGE}"),
        ("replay", "{file}", f"--speed={HUGE}"),
    ],
    ids=lambda words: " ".join(words)[:60],
)
def test_what_is_out_of_range_is_wrong_usage(
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POCKETMQ_NAMESERVER", "127.0.0.1:1")
    (tmp_path / "file").touch()
    (tmp_path / "commitlog").mkdir()
    paths = {"{store}": str(tmp_path), "{file}": str(tmp_path / "file")}

    assert cli.run([paths.get(word, word) for word in words]) == 2

    assert complaint(capsys.readouterr().err).startswith("pocketmq: ")


def test_the_last_instant_of_the_calendar_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    until = "--until=9999-12-31T23:59:59.999999Z"

    assert cli.run(["find", "--topic=T", "--key=k", until, "--nameserver=127.0.0.1:1"]) == 4
    assert "no name server" in capsys.readouterr().err
