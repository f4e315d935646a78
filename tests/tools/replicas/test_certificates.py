"""Replicas that show each other certificates, in processes of their own: they follow, and strangers are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pocketmq.proto.rpc import Certificate

from ...authority import Authority
from ...free_ports import free_port
from ...integration.command import Done, Shell
from ...served import ServerProcess
from ...zookeeper.servers import running

pytestmark = [pytest.mark.java, pytest.mark.processes]

OURS, OTHERS = Authority(), Authority("others")


def settings(
    folder: Path, replica_id: int, port: int, shown: Certificate, zookeeper: str = "127.0.0.1:1"
) -> Path:
    """Write the settings of a replica that shows SHOWN, and return their file."""
    folder.mkdir()
    files = {"tls_cert": shown.chain, "tls_key": shown.key, "tls_ca": shown.authorities}
    for name, content in files.items():
        (folder / f"{name}.pem").write_bytes(content)
    section: dict[str, Any] = {
        "replica_set": "orders",
        "replica_id": replica_id,
        "zookeeper": [zookeeper],
        "listen": f"127.0.0.1:{port}",
        "address": f"127.0.0.1:{port}",
        **{name: str(folder / f"{name}.pem") for name in files},
    }
    file = folder / "pocketmq.yaml"
    file.write_text(yaml.safe_dump({"replication": section}), encoding="utf-8")
    return file


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.long
def test_replicas_follow_over_tls_and_take_no_stranger(tmp_path: Path, stack: ExitStack) -> None:
    (server,) = stack.enter_context(running(tmp_path / "zookeeper"))
    first = free_port()  # None that a connection takes meanwhile.
    ports = [first, first + 1, first + 2]
    shown = (
        OURS.certificate(),
        OURS.certificate(),
        replace(OTHERS.certificate(), authorities=OURS.pem),
    )
    files = [
        settings(tmp_path / f"{at}", at, port, one, server.address)
        for at, (port, one) in enumerate(zip(ports, shown, strict=True), 1)
    ]
    shell = Shell("")

    def cluster(*words: str) -> Done:
        return shell("replicas", *words, "--zookeeper", server.address)

    addresses = [f"{at}=127.0.0.1:{port}" for at, port in enumerate(ports, 1)]
    made = cluster("init", "orders", *addresses, "--yes", "--config", str(files[0]))
    assert made.code == 0, made
    processes = [
        ServerProcess(file.parent / "store", "--port", "0", "--config", str(file), verb="broker")
        for file in files
    ]
    for process in processes:
        stack.callback(process.kill)

    status = cluster("status", "orders", "--json", "--config", str(files[0]))
    while status.documents[0]["in_sync"] != [1, 2]:  # The third one leaves, and cannot come back.
        status = cluster("status", "orders", "--json", "--config", str(files[0]))
    (told,) = status.documents
    errors = {one["replica"]: one["error"] for one in told["replicas"]}
    assert errors[1] is errors[2] is None
    assert "TLS failed" in errors[3]

    (told,) = cluster("status", "orders", "--json").documents
    assert all(one["error"] for one in told["replicas"]), "who shows nothing is told nothing"
    (told,) = cluster("status", "orders", "--json", "--config", str(files[2])).documents
    assert all(one["error"] for one in told["replicas"] if one["replica"] != 3)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("tls_cert.pem", "replication.tls_cert: .* cannot be used"),
        ("tls_key.pem", "replication.tls_cert: .* with .* cannot be used"),
        ("tls_ca.pem", "replication.tls_ca: .* cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, spoil: str, words: str) -> None:
    file = settings(tmp_path / "1", 1, 8082, OURS.certificate())
    (tmp_path / "1" / spoil).write_bytes(b"nothing")

    done = Shell("")("replicas", "status", "--config", str(file))

    assert done.code != 0
    assert re.search(words, done.err), done
