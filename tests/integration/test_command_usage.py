"""What is said of wrong usage, and how calls end that are broken off."""

import os
import signal
import socket
import subprocess

import pytest

from ..complaint import complaint
from ..served import ServerProcess
from .command import COMMAND, Shell, pocketmq

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "T"],
        ["send", "T", "body", "--stdin"],
        ["send", "T", "body", "--property", "x"],
        ["send", "T", "body", "--key", "two words"],
        ["send", "bad topic", "body"],
        ["consume", "T", "--group", "g", "--from", "latest"],
        ["find"],
        ["find", "--key", "k"],
        ["topic", "update", "T"],
        ["topic", "create", "T", "--queues", "0"],
        ["send", "T", "body", "--nameserver", "nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(call: Shell, arguments: list[str]) -> None:
    done = call(*arguments)

    assert (done.code, done.out) == (2, "")
    assert complaint(done.err).startswith("pocketmq: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "create", "T"],
        ["group", "list"],
        ["send", "T", "body"],
        ["consume", "T", "--group", "g", "--timeout", "1"],
        ["find", "--id", "01" * 17],
        ["brokers"],
    ],
    ids=" ".join,
)
def test_a_name_server_that_is_not_there_is_exit_code_4(arguments: list[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

        done = pocketmq(*arguments, "--nameserver", address)

    assert (done.code, done.out) == (4, "")
    assert complaint(done.err).startswith("pocketmq: ")
    assert address in complaint(done.err)


def test_the_option_wins_over_the_environment(server: ServerProcess) -> None:
    done = pocketmq(
        "brokers", "--nameserver", server.nameserver, "--json", nameserver="127.0.0.1:1"
    )

    assert done.code == 0
    assert done.documents[0]["address"] == server.ready["broker"]


def test_a_reader_that_goes_away_ends_the_command_quietly(
    call: Shell, server: ServerProcess
) -> None:
    call("topic", "create", "Pipe")
    call("send", "Pipe", "--stdin", stdin=b"x" * 100 + b"\n" + b"y" * 100_000 + b"\n")
    environment = os.environ | {"POCKETMQ_NAMESERVER": server.nameserver}
    command = [*COMMAND, "consume", "Pipe", "--group", "g", "--timeout", "10", "--json"]

    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()

    assert (process.returncode, err) == (141, b"")


def test_ctrl_c_ends_a_waiting_consumer_quietly(call: Shell, server: ServerProcess) -> None:
    call("topic", "create", "Endless")
    call("send", "Endless", "one")
    environment = os.environ | {"POCKETMQ_NAMESERVER": server.nameserver}
    command = [*COMMAND, "consume", "Endless", "--group", "g"]

    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out, err) == (130, b"", b"")
    assert call("consume", "Endless", "--group", "g", "--timeout", "0.5").out == ""
