from __future__ import annotations

import json
from typing import Any, Self

import pytest

from pocketmq.proto.errors import AlreadyDelivered, InvalidArgument, MessageNotFound, PocketMQError
from pocketmq.tools import cli, send

from ..complaint import complaint


class FakeProducer:
    """Recalls the handle "good", and answers anything else with ERROR."""

    error: PocketMQError = MessageNotFound("nothing waits there")

    def __init__(self, nameserver: str) -> None:
        assert nameserver == "ns:1"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def recall(self, handle: str) -> str:
        if handle != "good":
            raise self.error
        return "01AB"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "Producer", FakeProducer)


def call(*arguments: str) -> int:
    return cli.run(["recall", *arguments, "--nameserver", "ns:1"])


def test_the_id_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("good") == 0
    assert capsys.readouterr().out == "01AB  recalled\n"


def test_programs_get_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("good", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"message_id": "01AB", "recalled": True}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MessageNotFound("nothing waits there"), 3),
        (AlreadyDelivered("it was due"), 5),
        (InvalidArgument("no handle"), 2),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: PocketMQError,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(FakeProducer, "error", error)

    assert call("other") == code

    out, err = capsys.readouterr()
    assert (out, complaint(err)) == ("", f"pocketmq: {error.message}")


def test_a_handle_is_needed(capsys: pytest.CaptureFixture[Any]) -> None:
    assert call() == 2
    assert "HANDLE" in capsys.readouterr().err
