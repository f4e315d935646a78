"""What goes wrong when a server process starts: one line that says what to do, an exit code, and no traceback."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ..served import ServerProcess
from .command import pocketmq

pytestmark = pytest.mark.processes


def serve(*arguments: str, verb: str = "serve") -> tuple[int, str]:
    """Run a server that does not come up; return its exit code and what it says about it."""
    done = pocketmq(verb, *arguments)
    return done.code, done.err


def check_complaint(code: int, said: str, *words: str) -> None:
    assert code not in (0, -9), said
    _, *where = said.strip().splitlines()
    assert {line.partition("#")[0] for line in where} <= {"See docs/errors.md"}, said
    assert "Traceback" not in said
    for word in words:
        assert word in said


def free_ports() -> tuple[str, ...]:
    return ("--port", "0", "--nameserver-port", "0")


def test_the_second_server_on_a_store_refuses_and_the_first_lives(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store") as first:
        code, said = serve("--store", str(tmp_path / "store"), *free_ports())

        check_complaint(code, said, str(tmp_path / "store"))
        assert first.stop() == 0


@pytest.mark.parametrize("option", ["--port", "--nameserver-port"])
def test_a_port_in_use_is_named(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = "--port" if option == "--nameserver-port" else "--nameserver-port"

        code, said = serve("--store", str(tmp_path / "store"), option, port, other, "0")

    check_complaint(code, said, f"127.0.0.1:{port}", "in use")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("broker:\n  prot: 8081\n", ("prot", "'port'", ":2")),
        ("brokre:\n  port: 8081\n", ("brokre", "'broker'")),
        ("nameserver:\n  port: 70000\n", ("nameserver.port", "70000", "65535")),
        ("nameserver:\n  port: soon\n", ("nameserver.port", "soon")),
        ("store:\n  log_file_size_bytes: 3\n", ("store.log_file_size_bytes", "1024")),
        ("broker: [\n", ("broken.yaml",)),
    ],
    ids=["key", "section", "range", "type", "least", "syntax"],
)
def test_a_wrong_setting_is_named_with_its_place(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    config = tmp_path / "broken.yaml"
    config.write_text(text, encoding="utf-8")

    code, said = serve("--store", str(tmp_path / "store"), "--config", str(config), *free_ports())

    check_complaint(code, said, *words)
    assert not (tmp_path / "store").exists()


def test_a_store_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")

    code, said = serve("--store", str(tmp_path / "file" / "store"), *free_ports())

    check_complaint(code, said, str(tmp_path / "file"))
