"""Classic clients and users: signed requests do what the user may; others get code 16, and store nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pocketmq.client import Admin

from ...served import ServerProcess, need_own
from .programs import go, java
from .test_classic_clients import GO, JAVA, ready, results

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.processes, pytest.mark.timeout(300)]

#: The scenarios of each client. A scenario's name, capitalized, is its topic, and the beginning of its groups.
CLIENTS: Final = {
    "java 5.5.0": (java("5.5.0"), ("transactions", "requests")),
    "java 4.9.8": (java("4.9.8"), ("sends", "pull")),
    "go": (go(), ("filters",)),
}
MAY: Final = {
    "Pub,Sub": ["Sends", "Transactions", "Requests", "Pull", "GoFilters"],
    "Pub": ["Refused", "DefaultCluster_REPLY_TOPIC"],
    "Sub": ["Readable"],
}
GROUPS: Final = ["sends", "transactions", "repliers", "pull", "go-filters"]
USERS: Final[dict[str, Any]] = {
    "root": {"secret": "root-secret", "type": "Super"},
    "alice": {
        "secret": "alice-secret",
        "policies": [
            {"resource": f"Topic:{topic}", "actions": actions}
            for actions, topics in MAY.items()
            for topic in topics
        ]
        + [{"resource": f"Group:{group}", "actions": "Sub"} for group in GROUPS],
    },
}
#: For topics to which alice may send, which she may only read, and which she may not see.
TOPICS: Final = ("Refused", "Readable", "Secret")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    """Yield a server with USERS, and its log."""
    need_own("grpcio serves gRPC only")
    folder = tmp_path_factory.mktemp("users")
    users = folder / "users.yaml"
    users.touch(0o600)
    users.write_text(yaml.safe_dump({"users": USERS}))
    config = folder / "pocketmq.yaml"
    config.write_text(f"broker:\n  users: {users}\n")
    with ServerProcess(folder / "store", "--config", str(config)) as process:
        with administrator(process) as admin:
            for topic in {*TOPICS, *MAY["Pub,Sub"]} - {
                "Sends"
            }:  # The first message creates that one.
                admin.create_topic(topic, queues=4)
        yield process, folder / "store.log"


def administrator(process: ServerProcess) -> Admin:
    return Admin(process.nameserver, user="root", secret="root-secret")


def stored(process: ServerProcess) -> list[int]:
    """Return how many messages each of TOPICS has."""
    with administrator(process) as admin:
        described = [admin.describe_topic(topic) for topic in TOPICS]
    return [sum(queue.max_offset for queue in one.queues) for one in described]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_signs_does_what_its_user_may_and_nothing_else(
    client: str, server: tuple[ServerProcess, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (process, log), (program, scenarios) = server, CLIENTS[client]
    command, before = ready(program), stored(process)
    expected = {name: (GO if client == "go" else JAVA)[name] for name in scenarios}
    monkeypatch.setenv("CLASSIC_USER", "alice")
    monkeypatch.setenv("CLASSIC_SECRET", "alice-secret")
    found = results(command, process.nameserver, [*scenarios, "refused"])
    refused = found.pop("refused")
    assert found == expected
    if client == "go":
        assert [part.partition(",")[0] for part in refused.split("; ")] == [
            "<nil>",
            "CODE: 16",
            "CODE: 16",
        ]
        assert "User:alice has no permission to access Topic:Secret from 127.0.0.1" in refused
    else:
        assert refused == "0 16 16"
    assert stored(process) == [before[0] + 1, 0, 0]
    assert "alice has no permission to access Topic:Readable from 127.0.0.1" in log.read_text()

    monkeypatch.setenv("CLASSIC_SECRET", "wrong")
    refused = results(command, process.nameserver, ["refused"])["refused"]
    if client == "go":
        assert refused.count("route info not found") == len(TOPICS)
    else:
        assert refused == "16 16 16"
    assert stored(process) == [before[0] + 1, 0, 0]
    assert '"reason": "check signature failed."' in log.read_text()
