"""Signs of life: the known ones as Apache takes them, the others with more patience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from ...recorded_v2 import recorded_group
from .connected import PRODUCER, Connected, consumer

#: Clients that the broker does not know are welcome, as are groups that do not exist yet, and the probe of Go.
BETTER = {f"heartbeat-{number:02}" for number in (1, 2, 3, 5, 6, 12, 16, 21, 22, 23, 24)}


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    return Connected(tmp_path)


def beat(connected: Connected, **fields: Any) -> v2.Code:
    code: v2.Code = connected.ask("Heartbeat", v2.HeartbeatRequest(**fields)).status.code
    return code


def test_signs_of_life_are_taken_as_apache_takes_them(connected: Connected) -> None:
    for case in recorded_group("heartbeat")["cases"]:
        if case["rpc"] == "Telemetry":
            settings = PRODUCER if "producer" in case["title"] else consumer()
            connected.open(case["metadata"]["x-mq-client-id"]).say(settings)
            continue
        code = connected.ask_recorded(case)["status"]["code"]
        recorded = case["responses"][0]["body"]["status"]["code"]
        assert (case["id"], code) == (case["id"], "OK" if case["id"] in BETTER else recorded)


def test_a_consumers_heartbeat_names_its_group(connected: Connected) -> None:
    assert beat(connected, client_type=v2.PUSH_CONSUMER) == v2.ILLEGAL_CONSUMER_GROUP
    assert beat(connected, client_type=v2.PRODUCER) == v2.OK


def test_only_a_probe_that_says_nothing_may_be_nameless(connected: Connected) -> None:
    codes = [
        connected.ask("Heartbeat", request, metadata={}).status.code
        for request in (v2.HeartbeatRequest(), v2.HeartbeatRequest(client_type=v2.PRODUCER))
    ]

    assert codes == [v2.OK, v2.CLIENT_ID_REQUIRED]
    assert not len(connected.sessions)


def test_a_client_that_says_goodbye_is_gone_even_with_a_bad_group(connected: Connected) -> None:
    gone: list[str] = []
    connected.events.client_gone.append(gone.append)
    connected.open().say(consumer())

    request = v2.NotifyClientTerminationRequest(group=v2.Resource(name="a/b"))
    answer = connected.ask("NotifyClientTermination", request)

    assert answer.status.code == v2.ILLEGAL_CONSUMER_GROUP
    assert gone == ["c"]
    assert connected.sessions.find("c") is None


def test_beyond_the_bound_of_clients_others_stay_and_new_ones_are_refused(tmp_path: Path) -> None:
    connected = Connected(tmp_path, clients_max=1)
    assert beat(connected) == v2.OK

    answer = connected.ask("Heartbeat", v2.HeartbeatRequest(), {"x-mq-client-id": "other"})

    assert answer.status.code == v2.TOO_MANY_REQUESTS
    assert "(broker.clients_max)" in answer.status.message
    assert beat(connected) == v2.OK
