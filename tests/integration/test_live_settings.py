"""`pocketmq config` and SIGHUP: what servers make of settings that change while they run."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pocketmq.client import AsyncAdmin, AsyncProducer
from pocketmq.client.administration.server_settings import AsyncSettings
from pocketmq.proto.errors import InvalidArgument, RouteNotFound, TopicNotFound

from ..served import ServerProcess
from .command import Done, Shell
from .test_users import ALICE, ROOT, USERS, cluster


async def run(nameserver: str, *arguments: str) -> Done:
    """Run the command on a thread, while this loop serves."""
    return await asyncio.to_thread(Shell(nameserver), "config", *arguments)


async def test_the_command_shows_settings_and_changes_what_a_broker_does_at_once(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, of_broker={"topics_max": 500}) as address:
        shown = await run(address, "show", "broker.topics", "broker.port", "--json")
        (server,) = shown.documents
        assert [(one["key"], one["value"], one["live"]) for one in server["settings"]] == [
            ("broker.port", 0, False),
            ("broker.topics_max", 500, True),
        ]
        changed = await run(address, "set", "broker.auto_create_topics", "false")
        assert "broker.auto_create_topics was true, is false" in changed.out
        assert "until the server reads its file again" in changed.out
        async with AsyncProducer(address) as producer:
            with pytest.raises(TopicNotFound):
                await producer.send("orders", b"one")
            await run(address, "set", "broker.auto_create_topics", "true")
            await producer.send("orders", b"two")
        shown = await run(address, "show", "--changed", "broker.auto", "broker.topics")
        assert "broker.topics_max" in shown.out
        assert "broker.auto_create_topics" not in shown.out


async def test_what_needs_a_restart_or_is_wrong_is_refused_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as address:
        for key, value, why in (
            ("broker.port", "1", "broker.port cannot change while the server runs"),
            ("store.retention_ms", "-1", "store.retention_ms is -1: must be at least 0"),
            ("nameserver.brokers_max", "1", "no setting 'nameserver.brokers_max' here"),
        ):
            done = await run(address, "set", key, value)
            assert done.code != 0
            assert why in done.err
        shown = await run(address, "show", "--changed", "store.retention_ms")
        assert "retention" not in shown.out


@pytest.mark.parametrize("words", [("\udcff", "1"), ("broker.topics_max", "\udcff")], ids=ascii)
async def test_text_that_is_not_utf8_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    """So a shell hands over bytes that are not UTF-8."""
    async with cluster(tmp_path) as address:
        refused = await run(address, "set", *words)

    assert refused.code != 0
    assert "'\\udcff', but must be text" in refused.err


async def test_a_name_server_is_asked_by_its_address_for_its_own_settings_alone(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as address, AsyncSettings(address, address) as settings:
        (server,) = await settings.all()
        assert {one.key.partition(".")[0] for one in server.settings} == {"nameserver"}
        ((_, before, after),) = await settings.set("nameserver.topics_per_route_max", "1")
        assert (before.value, after.value) == ("1000", "1")
        async with AsyncAdmin(address) as admin:
            await admin.create_topic("orders")
        with pytest.raises(InvalidArgument, match="no setting"):
            await settings.set("store.retention_ms", "1")


async def test_an_unknown_broker_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    async with cluster(tmp_path) as address, AsyncSettings(address, "nobody") as settings:
        with pytest.raises(RouteNotFound, match=r"'nobody' is not registered \(known: broker-a\)"):
            await settings.all()


async def test_only_who_may_update_the_cluster_changes_settings_and_the_audit_log_says_who(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, USERS) as address:
        for user, code in ((ALICE, 1), (ROOT, 0)):
            monkeypatch.setenv("POCKETMQ_USER", user["user"])
            monkeypatch.setenv("POCKETMQ_SECRET", user["secret"])
            with caplog.at_level(logging.WARNING, "pocketmq.audit"):
                caplog.clear()
                done = await run(address, "set", "store.clean_files_max", "3")
            assert done.code == code, done
            told = [json.loads(one.message) for one in caplog.records]
            assert [one["user"] for one in told] == [user["user"]]
            assert [one["event"] for one in told] == ["denied" if code else "setting changed"]


def until(ask: Callable[[], object], fact: Callable[[], bool]) -> None:
    """ASK the server for something again and again, until FACT is so."""
    deadline = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < deadline
        ask()


@pytest.mark.processes
def test_a_hangup_has_the_file_read_again_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    file, log = tmp_path / "settings.yaml", tmp_path / "store.log"
    file.write_text("store:\n  retention_ms: 1000000\n")
    with ServerProcess(tmp_path / "store", "--config", str(file)) as server:
        shell = Shell(server.nameserver)

        def retention() -> tuple[Any, str]:
            (told,) = shell.done("config", "show", "store.retention_ms")
            (one,) = told["settings"]
            return one["value"], one["origin"].rpartition("/")[2]

        assert retention() == (1_000_000, "settings.yaml:2")
        shell.done("config", "set", "store.retention_ms", "2000000")
        assert retention() == (2_000_000, "set live")

        file.write_text("store:\n  retention_ms: -1\n  clean_files_max: 3\n")
        os.kill(server.pid, signal.SIGHUP)
        until(retention, lambda: "settings not reloaded reason=" in log.read_text())
        assert "settings.yaml:2: store.retention_ms is -1: must be at least 0" in log.read_text()
        assert retention() == (2_000_000, "set live")

        file.write_text("broker: {cluster: other}\nstore:\n\n  retention_ms: 3000000\n")
        os.kill(server.pid, signal.SIGHUP)
        until(retention, lambda: retention()[0] == 3_000_000)
        assert retention() == (3_000_000, "settings.yaml:4")
        until(
            retention,
            lambda: "need a restart were not changed keys=broker.cluster" in log.read_text(),
        )
        lines = [one for one in log.read_text().splitlines() if one.startswith("{")]
        events = [json.loads(one) for one in lines]
        assert [(one["event"], one.get("value")) for one in events] == [
            ("setting changed", "2000000"),
            ("settings not reloaded", None),
            ("setting changed", "3000000"),
        ]
        assert server.stop() == 0


@pytest.mark.processes
def test_a_name_server_without_a_file_goes_on_after_a_hangup(tmp_path: Path) -> None:
    arguments = ("--port", "0", "--log-level", "info")
    log = tmp_path / "names.log"
    with ServerProcess(None, *arguments, verb="nameserver", log=log) as server:
        shell = Shell(server.nameserver)

        def told() -> list[dict[str, Any]]:
            return shell.done("config", "show", "log.level", "--broker", server.nameserver)

        os.kill(server.pid, signal.SIGHUP)
        until(told, lambda: "settings reloaded changes=0" in log.read_text())
        assert told()[0]["settings"][0]["origin"] == "option"
        assert server.stop() == 0
