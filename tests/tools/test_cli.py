import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pocketmq import __version__
from pocketmq.proto import speedups
from pocketmq.proto.errors import (
    BY_NAME,
    ConfigError,
    ConnectionLost,
    CorruptRecord,
    InvalidName,
    PocketMQError,
    RequestTimeout,
    RouteNotFound,
    SendFailed,
    StoreLocked,
    TopicExists,
    TopicNotFound,
)
from pocketmq.tools import cli
from pocketmq.tools.lazy_group import LazyGroup

from ..recorded import recorded_store


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"pocketmq {__version__} ({speedups.running()})\n"


@pytest.mark.processes
def test_the_version_tells_that_the_python_code_runs() -> None:
    environment = {**os.environ, speedups.VARIABLE: "1"}
    words = [sys.executable, "-m", "pocketmq", "--version"]

    told = subprocess.check_output(words, text=True, env=environment)

    assert told == f"pocketmq {__version__} (pure)\n"


@pytest.mark.processes
def test_help_lists_every_verb_without_importing_any() -> None:
    code = (
        "import sys; from pocketmq.tools import cli; code = cli.run(['--help']);"
        "loaded = {name for name in sys.modules if name.startswith('pocketmq.tools.')};"
        "wanted = {'pocketmq.tools.' + one for one in ('cli', 'lazy_group', 'terminal')};"
        "sys.exit(code or (loaded != wanted and str(loaded))"
        " or any(name in sys.modules for name in ('numpy', 'grpc', 'rich', 'yaml')))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")} >= {
        "serve", "nameserver", "broker", "topic", "group", "send", "consume", "find", "inspect", "bench", "demo",
    }  # fmt: skip


@pytest.mark.parametrize("verb", cli.cli.list_commands(click.Context(cli.cli)))
def test_every_verb_can_be_loaded_and_explains_itself(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: pocketmq {verb}")


def every_command(
    command: click.Command, parent: click.Context | None, name: str
) -> Iterator[click.Context]:
    """Yield a context for COMMAND and each command below it."""
    context = click.Context(command, info_name=name, parent=parent)
    yield context
    if isinstance(command, click.Group):
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            assert found is not None
            yield from every_command(found, context, one)


def test_the_help_of_a_command_begins_with_a_short_sentence() -> None:
    long = {}
    for context in every_command(cli.cli, None, "pocketmq"):
        first = " ".join((context.command.help or "").split("\n\n")[0].split())
        if not (0 < len(first) <= 70 and first.endswith(".")):
            long[context.command_path] = first

    assert long == {}


def test_every_option_has_a_help_text() -> None:
    silent = [
        f"{context.command_path} {option.opts[0]}"
        for context in every_command(cli.cli, None, "pocketmq")
        for option in context.command.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ]

    assert silent == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], "pocketmq: No such command 'nope'. See: pocketmq --help\n"),
        (["snd"], "pocketmq: No such command 'snd'. Did you mean 'send'? See: pocketmq --help\n"),
        (
            ["cluster", "status"],
            "pocketmq: No such command 'cluster'. Use 'brokers' or 'replicas'. See: pocketmq --help\n",
        ),
        (
            ["replicas", "move", "orders", "2"],
            "pocketmq: No such command 'move'. Use 'transfer'. See: pocketmq replicas --help\n",
        ),
        (
            ["topic", "creat"],
            "pocketmq: No such command 'creat'. Did you mean 'create'? See: pocketmq topic --help\n",
        ),
        (["--nope"], "pocketmq: No such option '--nope'. See: pocketmq --help\n"),
        (
            ["completion", "tcsh"],
            "pocketmq: Invalid value for '{bash|zsh|fish}': 'tcsh' is not one of 'bash', 'zsh', 'fish'."
            " See: pocketmq completion --help\n",
        ),
        (
            ["topic", "create", "T", "--queues", "many"],
            "pocketmq: Invalid value for '--queues': 'many' is not a whole number."
            " See: pocketmq topic create --help\n",
        ),
        (
            ["consume", "T", "--timeout", "soon"],
            "pocketmq: Invalid value for '--timeout': 'soon' is not a number of seconds."
            " See: pocketmq consume --help\n",
        ),
        (
            ["inspect", "no/such/store"],
            "pocketmq: Invalid value for 'STORE': no such folder: no/such/store: check the path."
            " See: pocketmq inspect --help\n",
        ),
    ],
    ids=[
        "verb",
        "verb alike",
        "old verb",
        "old verb of a verb",
        "verb of a verb",
        "option",
        "value",
        "whole number",
        "seconds",
        "no full stop",
    ],
)
def test_wrong_usage_is_one_line_that_says_where_help_is(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("arguments", "old", "new"),
    [
        (["export", "store", "--from", "2026-01-01"], "--from", "--since"),
        (["inspect", "{store}", "log", "--to", "5"], "--to", "--until"),
        (["lag", "store", "--since", "before.json"], "--since", "--compare"),
        (["top", "--times", "2"], "--times", "--iterations"),
        (["diff", "a", "b", "--times"], "--times", "--compare-times"),
        (["consume", "T", "--count", "2"], "--count", "--limit"),
        (["export", "store", "--to", "out"], "--to", "--output"),
        (["dead-letters", "resend", "G", "--to", "T"], "--to", "--to-topic"),
        (["lag", "store", "--out", "rows.json"], "--out", "--output"),
        (["diff", "a", "b", "--set", "maxIndexNum=1"], "--set", "--broker-conf"),
        (["acl", "create", "u", "Pub", "T", "--from", "10.0.0.1"], "--from", "--source"),
        (["replicas", "init", "s", "1=b:1", "--from", "1"], "--from", "--seed-from"),
        (["serve", "--torture", "reorder"], "--torture", "--faults"),
        (["topic", "list", "--ca", "x.pem"], "--ca", "--tls-ca"),
    ],
)
def test_an_option_that_was_renamed_is_refused_with_its_new_name(
    arguments: list[str], old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "commitlog").mkdir()  # `inspect` wants a store before it reads options of a view.
    assert cli.run([one.format(store=tmp_path) for one in arguments]) == 2
    assert f"No such option {old!r}. Use {new!r}. See: " in capsys.readouterr().err


def test_without_a_verb_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    assert "Topics and groups:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SendFailed, 1),
        (PocketMQError, 1),
        (ConfigError, 2),
        (InvalidName, 2),
        (TopicNotFound, 3),
        (ConnectionLost, 4),
        (RequestTimeout, 4),
        (TopicExists, 5),
        (StoreLocked, 5),
        (CorruptRecord, 6),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_exit_codes_tell_what_kind_of_error_it_was(error: type[PocketMQError], code: int) -> None:
    assert cli.exit_code(error("no")) == code


def test_every_error_has_an_exit_code_that_the_help_explains() -> None:
    assert {cli.exit_code(error("no")) for error in BY_NAME.values()} <= {1, 2, 3, 4, 5, 6}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A command that raises what is put into the list."""
    raised: list[BaseException] = []

    @click.command()
    def command() -> None:
        raise raised[0]

    monkeypatch.setattr(cli.cli, "get_command", lambda _ctx, _name: command)
    return raised


def test_an_error_is_one_line_and_the_next_says_where_it_is_explained(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(TopicNotFound("topic 'X' is not there:\n  create it"))

    assert cli.run(["send"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "pocketmq: topic 'X' is not there: create it",
        "See docs/errors.md#topicnotfound",
    ]


def test_with_json_an_error_is_one_line(
    failing: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    @click.option("--json", is_flag=True)
    def command(**_: object) -> None:
        raise failing[0]

    failing.append(TopicNotFound("topic 'X' is not there"))
    monkeypatch.setattr(cli.cli, "get_command", lambda _ctx, _name: command)

    assert cli.run(["send", "--json"]) == 3
    assert capsys.readouterr().err == "pocketmq: topic 'X' is not there\n"


def test_an_error_without_a_class_of_its_own_refers_to_no_page(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(PocketMQError("it ended"))

    assert cli.run(["send"]) == 1
    assert capsys.readouterr().err == "pocketmq: it ended\n"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()], ids=["ctrl-c", "abort"])
def test_an_interrupt_ends_quietly(
    failing: list[BaseException], error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(error)

    assert cli.run(["send"]) == 130
    assert capsys.readouterr() == ("", "")


def test_what_the_system_refuses_is_one_line(
    failing: list[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    failing.append(PermissionError(13, "Permission denied", "/store"))

    assert cli.run(["send"]) == 1
    assert capsys.readouterr().err == "pocketmq: /store: Permission denied\n"


def test_no_route_because_no_name_server_answers_is_exit_code_4(
    failing: list[BaseException],
) -> None:
    error = RouteNotFound("no route")
    error.__cause__ = ConnectionLost("cannot reach 127.0.0.1:1")
    failing.append(error)

    assert cli.run(["send"]) == 4


def test_a_fault_of_our_own_is_not_hidden(failing: list[BaseException]) -> None:
    failing.append(ZeroDivisionError("a fault"))

    with pytest.raises(ZeroDivisionError, match="a fault"):
        cli.run(["send"])


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["completion", shell]) == 0
    assert f"_POCKETMQ_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_verbs_are_completed_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LazyGroup, "get_command", None)

    found = cli.cli.shell_complete(click.Context(cli.cli), "se")

    assert [item.value for item in found] == ["serve", "send"]


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (["inspect"], ["checkpoint"]),
        (["doctor"], []),
        (["lag"], ["--group", "G_failing", "--json"]),
        (["find", "--key", "nothing"], []),
        (["trace", "TopicTest/0/0"], ["--json"]),
    ],
    ids=lambda words: words[0] if words else "",
)
def test_a_store_is_a_word_or_an_option(
    before: list[str], behind: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(recorded_store("consumption", tmp_path / "store"))

    def told(*named: str) -> tuple[int, str]:
        code = cli.run([*before, *named, *behind])
        return code, "".join(capsys.readouterr())

    as_word = told(store)

    assert as_word[1]
    assert told("--store", store) == as_word
    assert told(f"--store={store}") == as_word


@pytest.mark.parametrize(
    "verb",
    ["inspect", "doctor", "lag", "find", "trace", "export", "repair", "fork", "diff", "spark lag",
     "spark audit", "spark tags", "spark export", "spark replay"],
)  # fmt: skip
def test_every_verb_that_takes_stores_says_so_alike(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*verb.split(), "--help"]) == 0

    assert "--store STORE" in capsys.readouterr().out


@pytest.mark.parametrize("tag", ["a ||", "|| a", "a || || b"])
def test_a_tag_is_not_left_out_beside_the_bars(
    tag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["consume", "T", "--group", "g", "--tag", tag]) == 2

    assert "a side of || is empty" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["group update", "topic update", "user update", "acl update"])
def test_updates_show_no_defaults_because_they_change_only_what_is_given(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*verb.split(), "--help"]) == 0

    words = " ".join(capsys.readouterr().out.split())
    before_nameserver, _, _ = words.partition("--nameserver")
    assert "[default:" not in before_nameserver


def test_creating_a_group_shows_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["group", "create", "--help"]) == 0

    words = " ".join(capsys.readouterr().out.split()).replace("no- fifo", "no-fifo")
    defaults = ("no-fifo", "16", "10s to 2h", "1", "grace", "consume")
    assert [one for one in defaults if f"[default: {one}]" not in words] == []
