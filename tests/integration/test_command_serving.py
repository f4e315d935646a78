"""`pocketmq serve` as a user runs it: its end, its store, its ports, its configuration."""

import subprocess
import sys
from pathlib import Path

import pytest

from ..complaint import complaint
from ..free_ports import free_ports
from ..served import ServerProcess
from .command import pocketmq

pytestmark = pytest.mark.processes


def test_a_clean_stop_leaves_no_abort_file(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ServerProcess(store) as server:
        assert (store / "abort").exists()
        assert pocketmq("send", "T", "kept", nameserver=server.nameserver).code == 0
        code = server.stop()

    with ServerProcess(store) as again:
        got = pocketmq(
            "consume",
            "T",
            "--group",
            "g",
            "--limit",
            "1",
            "--timeout",
            "10",
            nameserver=again.nameserver,
        )
        assert again.ready["recovery"]["clean"] is True

    assert (code, got.out) == (0, "kept\n")
    assert not (store / "abort").exists()


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ServerProcess(store) as server:
        sent = pocketmq(
            "send", "T", "--stdin", nameserver=server.nameserver, stdin=b"line\n" * 1000
        )
        server.kill()

    with ServerProcess(store) as again:
        got = pocketmq(
            "consume",
            "T",
            "--group",
            "g",
            "--limit",
            "1000",
            "--timeout",
            "10",
            nameserver=again.nameserver,
        )
        assert again.ready["recovery"]["clean"] is False

    assert (sent.code, got.code) == (0, 0)
    assert got.out == "line\n" * 1000


def test_a_store_is_not_served_twice(server: ServerProcess) -> None:
    done = pocketmq(
        "serve", "--store", server.ready["store"], "--port", "0", "--nameserver-port", "0"
    )

    assert done.code == 5
    assert server.ready["store"] in complaint(done.err)


@pytest.mark.parametrize(
    ("verb", "which"), [("serve", "nameserver"), ("serve", "broker"), ("nameserver", "nameserver")]
)
def test_a_port_in_use_is_one_line(
    server: ServerProcess, tmp_path: Path, verb: str, which: str
) -> None:
    port = server.ready[which].rpartition(":")[2]
    options = {
        ("serve", "nameserver"): ["--nameserver-port", port, "--port", "0"],
        ("serve", "broker"): ["--nameserver-port", "0", "--port", port],
        ("nameserver", "nameserver"): ["--port", port],
    }[verb, which]
    store = [] if verb == "nameserver" else ["--store", str(tmp_path / "store")]

    done = pocketmq(verb, *options, *store)

    assert done.code == 2
    assert port in complaint(done.err)


def test_a_wrong_key_in_the_configuration_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("broker:\n  prot: 1\n")

    done = pocketmq("serve", "--config", str(file))

    assert (done.code, done.out) == (2, "")
    expected = f"pocketmq: {file}:2: broker.prot: no such key; did you mean 'port'?"
    assert done.err.splitlines() == [expected, "See docs/errors.md#configerror"]


def test_a_store_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "store"
    file.write_text("not a folder")

    done = pocketmq("serve", "--store", str(file), "--port", "0", "--nameserver-port", "0")

    assert done.code == 2
    assert complaint(done.err)


def test_brokers_and_name_servers_run_apart(tmp_path: Path) -> None:
    with (
        ServerProcess(None, "--port", "0", verb="nameserver") as nameserver,
        ServerProcess(
            tmp_path / "store",
            "--port",
            "0",
            "--nameserver",
            nameserver.nameserver,
            "--name",
            "broker-x",
            verb="broker",
        ) as broker,
    ):
        (shown,) = pocketmq("brokers", "--json", nameserver=nameserver.nameserver).documents

        assert (shown["broker_name"], shown["address"]) == ("broker-x", broker.ready["broker"])
        assert shown["writable"] is True


def test_a_configuration_file_is_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        f"nameserver: {{port: 0}}\nbroker: {{port: 0, name: from-file}}\nstore: {{path: {tmp_path}/mq, flush: sync}}\n"
    )

    with ServerProcess(None, "--config", str(file), verb="serve") as server:
        (receipt,) = pocketmq("send", "T", "x", "--json", nameserver=server.nameserver).documents

    assert (receipt["broker"], receipt["durability"]) == ("from-file", "disk")
    assert (tmp_path / "mq" / "commitlog").is_dir()


@pytest.mark.long
def test_a_folder_of_other_things_is_refused_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("three years")

    refused = pocketmq("serve", "--store", str(tmp_path), "--port", "0", "--nameserver-port", "0")

    assert refused.code == 5
    assert "thesis.txt" in refused.err
    assert "--force" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with ServerProcess(tmp_path, "--force") as server:
        assert server.ready["store"] == str(tmp_path)
    with ServerProcess(tmp_path):  # Now it holds a store.
        assert (tmp_path / "thesis.txt").read_text() == "three years"


@pytest.mark.long
def test_a_replica_whose_registry_is_away_waits_for_it_and_can_be_stopped(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    replica = ("--replica-set", "orders", "--replica-id", "1", "--zookeeper", "127.0.0.1:1")
    ports = ("--replication-listen", f"127.0.0.1:{port}", "--port", "0")
    command = [sys.executable, "-m", "pocketmq", "broker", "--store", str(tmp_path / "store")]
    with subprocess.Popen([*command, *replica, *ports], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any(b"no answer from the metadata store" in line for line in process.stderr)
        process.terminate()
        assert process.wait(timeout=10) == 0
    assert not (tmp_path / "store" / "abort").exists()
