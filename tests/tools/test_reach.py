"""Servers do not listen beyond this machine where nobody is asked who he is, unless that is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.tools import cli, serve


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what has begun to run."""
    begun: list[str] = []

    async def run(self: object) -> None:
        begun.append("running")

    monkeypatch.setattr(serve._Servers, "run", run)
    monkeypatch.setattr(serve, "configure_logging", lambda *_: None)
    monkeypatch.setattr(serve, "keep_freed_memory", lambda: None)
    return begun


def config(folder: Path, section: str, host: str, *more: str) -> str:
    path = folder / "pocketmq.yaml"
    address = ["  advertised_address: here.example:8081"] if section == "broker" else []
    lines = [f"{section}:", f"  host: {host}", *address, *(f"  {line}" for line in more)]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "'::'", "server.example"])
@pytest.mark.parametrize("section", ["broker", "nameserver"])
def test_other_machines_are_let_in_only_if_that_is_meant(
    tmp_path: Path,
    started: list[str],
    capsys: pytest.CaptureFixture[str],
    section: str,
    host: str,
) -> None:
    file = config(tmp_path, section, host)
    for verb in ("serve", section):
        assert cli.run([verb, "--config", file]) == 2
        assert f"{section}.host is {host.strip(chr(39))}" in capsys.readouterr().err
    assert started == []
    for verb in ("serve", section):
        assert cli.run([verb, "--insecure", "--config", file]) == 0
    guarded = config(tmp_path, section, host, "users: /etc/pocketmq/users.yaml")
    assert cli.run([section, "--config", guarded]) == 0
    assert len(started) == 3


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3", "'::1'"])
def test_loopback_needs_no_users(tmp_path: Path, started: list[str], host: str) -> None:
    assert cli.run(["broker", "--config", config(tmp_path, "broker", host)]) == 0
    assert started == ["running"]


def test_the_environment_may_say_that_it_is_meant(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKETMQ_INSECURE", "1")
    assert cli.run(["broker", "--config", config(tmp_path, "broker", "0.0.0.0")]) == 0
    assert started == ["running"]


def test_host_listens_elsewhere_only_where_that_is_meant(
    started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["--advertised-address", "here.example:8081"]
    for words in (["serve", *here], ["broker", *here], ["nameserver"]):
        assert cli.run([*words, "--host", "0.0.0.0"]) == 2
        assert ".host is 0.0.0.0: other machines can connect" in capsys.readouterr().err
        assert started == []
        assert cli.run([*words, "--host", "0.0.0.0", "--insecure"]) == 0
        assert cli.run([*words, "--host", "127.0.0.2"]) == 0
        assert len(started) == 2
        started.clear()


def test_host_of_all_interfaces_wants_an_address_for_clients(
    started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["serve", "--host", "0.0.0.0", "--insecure"]) == 2
    assert "--advertised-address" in capsys.readouterr().err
    assert started == []
