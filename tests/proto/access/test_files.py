"""The file of users."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pocketmq.proto.access.files import UserFile, WatchedUsers
from pocketmq.proto.access.secret_files import read_secret
from pocketmq.proto.access.signing import own_credentials
from pocketmq.proto.access.users import UserEntry, changed
from pocketmq.proto.errors import ConfigError

from ...waiting import until


def file_of(folder: Path, *names: str) -> UserFile:
    file = UserFile(folder / "users.yaml")
    with file.change(make=True) as users:
        for name in names:
            users[name] = UserEntry(name, f"{name}-secret")
    return file


def test_what_is_written_is_read_by_its_owner_only(tmp_path: Path) -> None:
    file = file_of(tmp_path, "alice")
    assert file.path.stat().st_mode & 0o777 == 0o600
    with file.change() as users:
        users["bob"] = UserEntry("bob", "s", is_super=True)
        users["alice"] = changed(users["alice"], enabled=False)
    found = file.read()
    assert [(one.name, one.type, one.status) for one in found.values()] == [
        ("alice", "Normal", "disable"),
        ("bob", "Super", "enable"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["users.yaml"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = file_of(tmp_path, "alice")
    file.path.chmod(mode)
    with pytest.raises(ConfigError, match=f"its mode is {mode:04o}: chmod 600"):
        file.read()


def test_an_error_within_a_change_changes_nothing(tmp_path: Path) -> None:
    file = file_of(tmp_path, "alice")
    before = file.path.read_bytes(), file.mark()
    with pytest.raises(KeyError), file.change() as users:  # noqa: PT012  (that is what is asked)
        del users["alice"]
        raise KeyError
    assert (file.path.read_bytes(), file.mark()) == before


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    file.path.write_text("users:\n  alice: {secret: a}\n  alice: {secret: b}\n")
    with pytest.raises(ConfigError, match=r"users\.alice: given twice"):
        file.read()


def test_secrets_are_read_from_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALICE", "from-env")
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("from-file\nsecond line\n")
    told = [f"file:{path}", "env:ALICE", "inline:env:ALICE", "p:lain", "plain"]
    assert [read_secret("alice", one) for one in told] == [
        "from-file",
        "from-env",
        "env:ALICE",
        "p:lain",
        "plain",
    ]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"users\.alice\.secret: .*0644"):
        read_secret("alice", f"file:{path}")
    with pytest.raises(ConfigError, match="the environment variable BOB is not set"):
        read_secret("alice", "env:BOB")


def test_own_credentials_come_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("s3\n")
    environment = {"POCKETMQ_USER": "alice", "POCKETMQ_SECRET": "s1"}
    assert own_credentials({}) is None
    assert own_credentials(environment) == ("alice", "s1")
    assert own_credentials(environment, "bob", "s2") == ("bob", "s2")
    assert own_credentials({"POCKETMQ_USER": "alice", "POCKETMQ_SECRET_FILE": str(path)}) == (
        "alice",
        "s3",
    )
    for partial in ({"POCKETMQ_USER": "alice"}, {"POCKETMQ_SECRET": "s"}):
        with pytest.raises(ConfigError, match="give a user and a secret together"):
            own_credentials(partial)


DEEP = "users: " + "[" * 2_000 + "]" * 2_000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("users:\n  alice: {secret: 2026-13-45}", "looks like a date or a number"),
        ("users:\n  alice: {secret: !!bool s3cret}", "looks like a date or a number"),
        ("users:\n  alice: {secret: file:~nosuchuser/s}", "is not a valid path"),
        ('users:\n  alice: {secret: "file:a\\0b"}', "is not a valid path"),
        ('users:\n  alice: {secret: "a\\ud800b"}', "is not UTF-8"),
        ('users:\n  "a\\ud800b": {secret: s}', "it must have 1 to 255 bytes"),
        (DEEP, "too deep"),
        ("users:\n  alice: s3cret", "users.alice: must be keys with values, not str"),
        ("users:\n  alice: {q9z9}", "users.alice: a key is unknown; known are"),
        ("users:\n  alice:\n    secret: *s3cret", ":3: not YAML"),
        ("s3cret", "must be sections, not str"),
    ],
)
def test_whatever_the_file_holds_the_error_is_of_the_configuration_and_tells_no_secret(
    tmp_path: Path, text: str, told: str
) -> None:
    file = file_of(tmp_path)
    file.path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        WatchedUsers(str(file.path), lambda: 0, plaintext=False)
    assert told in caught.value.message
    assert not any(secret in str(caught.value) for secret in ("s3cret", "q9z9"))


async def test_a_watched_file_is_read_again_and_its_changes_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    lines: list[str] = []
    file = file_of(tmp_path, "alice", "gone")
    watched = WatchedUsers(str(file.path), lambda: 0, plaintext=False, write=lines.append)
    watched.start()
    try:
        first = watched.guard.users
        with file.change() as users:
            users["bob"] = UserEntry("bob", "bob-secret", is_super=True)
            users["alice"] = changed(users["alice"], enabled=False)
            del users["gone"]
        watched.reload()
        await until(lambda: watched.guard.users is not first)
        second = watched.guard.users
        assert second.find("bob") is not None
        assert watched.own_credentials() == ("bob", "bob-secret")
        file.path.write_text("users: [")
        watched.reload()
        await until(lambda: "users not reloaded" in lines[-1])
        assert watched.guard.users is second
        assert "not YAML" in caplog.text
    finally:
        await watched.stop()
    told = "\n".join(lines)
    for event in ("user created", "user changed", "user deleted", "users reloaded"):
        assert f'"event": "{event}"' in told
    assert "secret" not in told


async def test_a_bug_while_the_file_is_read_ends_no_watching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    file = file_of(tmp_path, "alice")
    watched = WatchedUsers(str(file.path), lambda: 0, plaintext=False, write=lines.append)

    said = "s3cret"

    def broken(*_: object) -> None:
        raise TypeError(said)

    watched.start()
    try:
        with monkeypatch.context() as patched:
            patched.setattr("pocketmq.proto.access.files.read_users", broken)
            watched.reload()
            await until(lambda: bool(lines))
        assert "internal error: TypeError" in lines[0]
        assert watched.guard.users.find("alice") is not None
        file_of(tmp_path, "bob")
        watched.reload()
        await until(lambda: watched.guard.users.find("bob") is not None)
    finally:
        await watched.stop()
    assert "users not reloaded" in caplog.text
    assert said not in caplog.text + "".join(lines)


async def test_a_change_is_seen_without_being_told_of(tmp_path: Path) -> None:
    file = file_of(tmp_path, "alice")
    watched = WatchedUsers(str(file.path), lambda: 0, plaintext=False)
    watched.start()
    try:
        with file.change() as users:
            del users["alice"]
        await until(lambda: len(watched.guard.users) == 0)
    finally:
        await watched.stop()
