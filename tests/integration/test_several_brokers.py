"""`pocketmq serve --brokers N` as a user runs it: where everything is, what outlasts what, and what is refused."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.service_v2.client_addresses import endpoints_at
from pocketmq.client import Producer
from pocketmq.proto.errors import ConfigError, ConnectionLost
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.tools.serve_many import check_many, numbered
from pocketmq.tools.settings import load_settings

from ..free_ports import free_port
from ..served import ServerProcess
from ..waiting import wait_until
from .command import Shell
from .v2_caller import Caller

COUNT = 40


def runs(pid: int) -> bool:
    """Is it neither gone nor waited for by nobody?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def addresses(ready: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["broker"] for one in ready["brokers"]}


def routed(dialled: str, topic: str) -> set[int]:
    """Return the ports that an official client at DIALLED is told for TOPIC."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=endpoints_at([dialled]))
    reply = Caller(dialled).ask("QueryRoute", request, v2.QueryRouteResponse)
    assert reply.status.code == v2.OK
    return {one.broker.endpoints.addresses[0].port for one in reply.message_queues}


@pytest.mark.processes
@pytest.mark.long
def test_brokers_share_topics_come_again_and_stop_together(tmp_path: Path) -> None:
    store = tmp_path / "stores"
    with ServerProcess(store, "--brokers", "2") as server:
        shell = Shell(server.nameserver)
        places = addresses(server.ready)
        assert list(places) == ["broker-1", "broker-2"]
        (made,) = shell.done("topic", "create", "T", "--queues", "4")
        assert made["brokers"] == ["broker-1", "broker-2"]
        with Producer(server.nameserver) as producer:
            sent = [producer.send("T", b"%d" % n).broker for n in range(COUNT)]
        assert set(sent) == set(places)
        ports = {int(place.rpartition(":")[2]) for place in places.values()}
        for place in places.values():
            assert routed(place, "T") == ports

        killed = server.ready["brokers"][1]["pid"]
        os.kill(killed, signal.SIGKILL)
        said = store.with_suffix(".log")
        wait_until(lambda: "a broker serves again broker=broker-2" in said.read_text())
        assert (
            "a broker has ended, and is started again broker=broker-2 code=-9" in said.read_text()
        )
        told = shell.done("brokers")
        assert {one["broker_name"]: one["address"] for one in told} == places
        found = shell.consumed("T", COUNT)
        assert sorted(int(one["body"]) for one in found) == list(range(COUNT))
        code = server.stop()

    assert code == 0
    assert {one.name for one in store.iterdir()} == {"broker-1", "broker-2"}
    assert not any((store / name / "abort").exists() for name in places)
    refused = Shell("")("serve", "--store", str(store))
    assert refused.code == 5
    assert f"Give --brokers 2, or --store {store}/broker-1" in refused.err

    with ServerProcess(store, "--brokers", "3") as more:
        (made,) = Shell(more.nameserver).done("topic", "create", "T", "--queues", "4")
        assert made["brokers"] == ["broker-3"]
        pids = [one["pid"] for one in more.ready["brokers"]]
        more.kill()
        wait_until(lambda: not any(map(runs, pids)))
    assert not any((store / f"broker-{number}" / "abort").exists() for number in (1, 2, 3))
    fewer = Shell("")("serve", "--store", str(store), "--brokers", "2")
    assert fewer.code == 5
    assert "broker-3, whose messages no client could read with --brokers 2" in fewer.err


@pytest.mark.long
@pytest.mark.processes
def test_one_that_cannot_start_ends_all_with_its_code(tmp_path: Path) -> None:
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port + 1)),
        pytest.raises(ConnectionLost) as caught,
    ):
        ServerProcess(tmp_path / "stores", "--brokers", "2", "--port", str(port))

    assert caught.value.details["code"] == "2"
    assert "broker-2 ended with code 2 before it served; all are stopped" in caught.value.message


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--replica-set", "orders"], "those of a --replica-set the same"),
        (["--faults", "redeliver"], "--faults is for one broker"),
        (["--port", "65535"], "2 brokers take the ports from 65535 on"),
    ],
)
def test_what_is_of_one_broker_is_refused(tmp_path: Path, words: list[str], told: str) -> None:
    done = Shell("")("serve", "--brokers", "2", "--store", str(tmp_path / "stores"), *words)

    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_java_slaves_are_of_one_broker(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("broker:\n  java_slaves: true\n")

    with pytest.raises(ConfigError, match="java_slaves needs a single broker"):
        check_many(load_settings(file), 2, with_faults=False)


def test_the_store_of_one_broker_is_not_taken_for_several(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()

    done = Shell("")("serve", "--brokers", "2", "--store", str(tmp_path))

    assert done.code == 5
    assert "holds the store of one broker: leave out --brokers" in done.err
    assert f"moved to {tmp_path}/broker-1" in done.err


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()

    done = Shell("")("serve", "--brokers", "2", "--store", str(tmp_path))

    assert done.code == 5
    assert "is not a store, and has other files (photos)" in done.err


def test_each_has_a_name_a_port_an_address_and_a_store_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("broker:\n  name: west\n  port: 7000\n  advertised_address: mq.example:80\n")

    plain = numbered(load_settings(None).with_options(store=tmp_path), 3)
    named = numbered(load_settings(file), 2).broker
    free = numbered(load_settings(None).with_options(broker_port=0), 2).broker

    assert (plain.broker.name, plain.broker.port) == ("broker-3", 8083)
    assert plain.store.path == str(tmp_path / "broker-3")
    assert (named.name, named.port) == ("west-2", 7001)
    assert named.advertised_address == "mq.example:81"
    assert free.port == 0
