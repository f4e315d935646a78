"""Users as a file has them, and who a call comes from."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.proto.access.signing import signed
from pocketmq.proto.access.users import User, UserEntry, Users, read_users
from pocketmq.proto.errors import ConfigError, NotAuthenticated

DATE = "20260101T000000Z"


def plain(user: str, secret: str) -> str:
    return secret


def users(**keys: dict[str, Any]) -> Users:
    return Users(read_users({"users": keys}, "users.yaml").values(), plain)


def caller(known: Users, user: str, secret: str) -> User | None:
    return known.caller(dict(signed(user, secret, DATE)))


def test_a_user_is_known_by_the_signature_and_known_again() -> None:
    known = users(alice={"secret": "s1"}, bob={"secret": "s2", "type": "Super"})
    for _ in range(2):
        alice, bob = caller(known, "alice", "s1"), caller(known, "bob", "s2")
        assert alice is known.find("alice")
        assert bob is not None
        assert bob.is_super
    assert known.caller({}) is None


def test_an_unknown_user_and_a_wrong_secret_say_the_same() -> None:
    known = users(alice={"secret": "s1"}, gone={"secret": "s2", "status": "disable"})
    told = set()
    for user, secret in (("alice", "s2"), ("mallory", "s1"), ("gone", "s1"), ("nobody", "-")):
        with pytest.raises(NotAuthenticated) as caught:
            caller(known, user, secret)
        told.add(caught.value.message)
    assert told == {"check signature failed."}


def test_a_disabled_user_hears_so_with_the_right_secret_only() -> None:
    known = users(gone={"secret": "s", "status": "disable", "certificates": ["gone.example"]})
    with pytest.raises(NotAuthenticated, match="User:gone is disabled"):
        caller(known, "gone", "s")
    with pytest.raises(NotAuthenticated, match="User:gone is disabled"):
        known.certified(["gone.example"])


def test_a_certificate_names_a_user_and_one_only() -> None:
    known = users(alice={"secret": "s", "certificates": ["a.example"]})
    assert known.certified(["b.example", "a.example"]) is known.find("alice")
    assert known.certified(["b.example"]) is None
    assert known.certified([]) is None
    with pytest.raises(ConfigError, match=r"'a\.example' also belongs to 'alice'"):
        users(
            alice={"secret": "s", "certificates": ["a.example"]},
            bob={"secret": "s", "certificates": ["a.example"]},
        )


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, r"users\.alice\.secret: must be a text"),
        ({"secret": 1234}, r"users\.alice\.secret: must be a text"),
        ({"secret": ""}, "1 to 1024"),
        ({"secret": "s", "typ": "Super"}, r"users\.alice\.typ: no such key; did you mean 'type'"),
        ({"secret": "s", "type": "Root"}, "must be Normal or Super"),
        ({"secret": "s", "status": "off"}, "must be enable or disable"),
        (
            {"secret": "s", "policies": [{"actions": ["Pub"]}]},
            r"policies\[0\]\.resource: must be a text",
        ),
        (
            {"secret": "s", "policies": [{"resource": "Topic:a", "actions": ["Any"]}]},
            r"policies\[0\]\.actions: 'Any' is not an action",
        ),
        (
            {"secret": "s", "policies": [{"resource": "Topic:a", "actions": [], "decision": "No"}]},
            "must be Allow or Deny",
        ),
        (
            {"secret": "s", "policies": [{"resource": "*", "actions": "Pub", "sources": ["x"]}]},
            "'x' is not an IPv4 or IPv6 address",
        ),
        (
            {"secret": "s", "policies": [{"resource": "*", "actions": "Pub"}] * 1_001},
            "1001 policies, the limit is 1000",
        ),
    ],
)
def test_what_is_wrong_in_the_file_is_named_and_no_secret_told(
    keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        read_users({"users": {"alice": keys}}, "users.yaml")
    assert caught.value.message.startswith("users.yaml")


@pytest.mark.parametrize("name", ["", "a/b", "a,b", "a b", "a\n", "a" * 256])
def test_a_name_that_no_header_can_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="it must have 1 to 255 bytes"):
        UserEntry(name, "s")


def test_a_user_is_written_as_read() -> None:
    document = {
        "secret": "env:X",
        "type": "Normal",
        "status": "disable",
        "certificates": ["c"],
        "policies": [
            {
                "resource": "Topic:a*",
                "actions": ["Pub", "Sub"],
                "decision": "Deny",
                "sources": ["10.0.0.0/8"],
            }
        ],
        "default_policies": [{"resource": "*", "actions": ["All"], "decision": "Allow"}],
    }
    entry = read_users({"users": {"alice": document}}, "users.yaml")["alice"]
    assert entry.to_document() == document
    assert "env:X" not in repr(entry)
