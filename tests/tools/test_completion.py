"""Names of topics and groups are proposed where a verb wants one, and only where a broker answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from pocketmq import client
from pocketmq.proto.errors import ConnectionLost
from pocketmq.tools.cli import cli

TOPICS = ("orders", "orders-eu", "pay;ments", "%RETRY%billing", "a b", "$(x)")
GROUPS = ("billing", "bookings")


class FakeAdmin:
    asked: list[str | None]
    failure: Exception | None

    def __init__(self, nameserver: str | None, **_: Any) -> None:
        self.asked.append(nameserver)

    def __enter__(self) -> FakeAdmin:
        if self.failure is not None:
            raise self.failure
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topics(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in TOPICS]

    def groups(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in GROUPS]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    FakeAdmin.asked, FakeAdmin.failure = [], None
    monkeypatch.setattr(client, "Admin", FakeAdmin)
    return FakeAdmin


def proposed(*words: str) -> list[str]:
    *before, incomplete = words
    shell = ShellComplete(cli, {}, "pocketmq", "_POCKETMQ_COMPLETE")
    return [item.value for item in shell.get_completions(before, incomplete)]


@pytest.mark.parametrize(
    "words",
    [
        ("send", "ord"),
        ("consume", "ord"),
        ("record", "ord"),
        ("topic", "describe", "ord"),
        ("topic", "delete", "ord"),
        ("find", "--topic", "ord"),
        ("lag", "--topic", "ord"),
        ("top", "--topic", "ord"),
        ("lint", "--topic", "ord"),
        ("group", "describe", "billing", "--topic", "ord"),
        ("group", "reset-offset", "billing", "--topic", "ord"),
    ],
    ids=" ".join,
)
def test_topics_are_proposed(words: tuple[str, ...], admin: type[FakeAdmin]) -> None:
    assert proposed(*words) == ["orders", "orders-eu"]


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "orders", "--group", "b"),
        ("group", "describe", "b"),
        ("group", "delete", "b"),
        ("group", "reset-offset", "b"),
        ("dead-letters", "list", "b"),
        ("lag", "--group", "b"),
        ("top", "--group", "b"),
        ("lint", "--group", "b"),
    ],
    ids=" ".join,
)
def test_groups_are_proposed(words: tuple[str, ...], admin: type[FakeAdmin]) -> None:
    assert proposed(*words) == ["billing", "bookings"]


def test_names_that_a_shell_would_run_or_cut_are_not_proposed(admin: type[FakeAdmin]) -> None:
    assert proposed("send", "") == ["orders", "orders-eu", "%RETRY%billing"]


def test_what_is_made_is_not_proposed(admin: type[FakeAdmin]) -> None:
    assert proposed("topic", "create", "ord") == []
    assert proposed("group", "create", "b") == []


def test_the_name_servers_of_the_line_are_asked(admin: type[FakeAdmin]) -> None:
    proposed("send", "--nameserver", "10.0.0.1:9876", "ord")
    assert admin.asked == ["10.0.0.1:9876"]


def test_nothing_is_proposed_where_nobody_answers(admin: type[FakeAdmin]) -> None:
    admin.failure = ConnectionLost("nobody")
    assert proposed("send", "ord") == []
