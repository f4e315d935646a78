"""Routes and assignments: as Apache's, and clients are sent where they came from."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.service_v2.client_addresses import endpoints_at
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.format.state_tables import TopicConfig

from ...recorded_names import topic
from .connected import OWN, Connected, cases

#: Apache's brokers in local mode name their own address, whatever a client has dialled; these are wrong for some.
BETTER = {"query-route-22", "query-route-23", "query-route-24"}
#: … and fail for an access point without a scheme.
SCHEMELESS = {"query-route-27"}


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    return Connected(tmp_path)


def without_texts(body: dict[str, Any], *, echoes: bool = True) -> dict[str, Any]:
    """Return BODY without what may vary: the sentence of the status, and where clients connect to."""
    body = dict(body, status=body["status"]["code"])
    for queue in [
        *body.get("message_queues", ()),
        *(one["message_queue"] for one in body.get("assignments", ())),
    ]:
        if not echoes:
            queue["broker"].pop("endpoints")
    return body


@pytest.mark.parametrize("case", [*cases("query-route"), *cases("query-assignment")])
def test_routes_are_apaches(connected: Connected, case: dict[str, Any]) -> None:
    name = case["id"]
    dialled = case["request"].get("endpoints", {})
    echoes = name not in BETTER and bool(dialled.get("addresses"))

    answer = connected.ask_recorded(case)

    if name in SCHEMELESS:
        assert answer["status"]["code"] == "OK"
        return
    recorded = case["responses"][0]["body"]
    assert without_texts(answer, echoes=echoes) == without_texts(deepcopy(recorded), echoes=echoes)


def route(connected: Connected, name: str, dialled: str) -> Any:
    request = v2.QueryRouteRequest(topic=v2.Resource(name=name), endpoints=endpoints_at([dialled]))
    return connected.ask("QueryRoute", request)


def test_every_queue_names_the_access_point_that_the_client_dialled(connected: Connected) -> None:
    answer = route(connected, "R-normal", "forwarded:18081")

    endpoints = [queue.broker.endpoints for queue in answer.message_queues]
    assert endpoints == [endpoints_at(["forwarded:18081"])] * 4


def test_a_client_that_does_not_say_gets_the_brokers_address(connected: Connected) -> None:
    answer = connected.ask("QueryRoute", v2.QueryRouteRequest(topic=v2.Resource(name="R-normal")))

    assert answer.message_queues[0].broker.endpoints == endpoints_at([OWN])


def test_queues_to_read_and_write_come_first(connected: Connected) -> None:
    for name, read, written in (("more-read", 3, 1), ("more-written", 1, 3)):
        made = TopicConfig(name=name, read_queues=read, write_queues=written, permission=6)
        connected.topics.create(made, update=False)

    permissions = {
        name: [queue.permission for queue in route(connected, name, OWN).message_queues]
        for name in ("more-read", "more-written")
    }

    assert permissions == {
        "more-read": [v2.READ_WRITE, v2.READ, v2.READ],
        "more-written": [v2.READ_WRITE, v2.WRITE, v2.WRITE],
    }


def test_a_topic_that_nobody_may_use_has_queues_all_the_same(connected: Connected) -> None:
    connected.topics.create(topic("closed", "", 2, 0), update=False)

    answer = route(connected, "closed", OWN)

    assert [queue.permission for queue in answer.message_queues] == [v2.NONE, v2.NONE]


def test_asking_for_a_topic_does_not_make_it(tmp_path: Path) -> None:
    connected = Connected(tmp_path, auto_create_topics=True)

    assert route(connected, "new", OWN).status.code == v2.TOPIC_NOT_FOUND
    assert route(connected, "new", OWN).status.code == v2.TOPIC_NOT_FOUND


SET = ("10.0.0.1:8081", "10.0.0.2:8081", "10.0.0.3:8081")


@pytest.mark.parametrize(
    ("dialled", "told"),
    [("10.0.0.2:8081", "10.0.0.2:8081"), ("forwarded:18081", "forwarded:18081"), ("", SET[0])],
)
@pytest.mark.parametrize("language", ["HTTP", "NODE_JS", "node_js"])
def test_clients_of_node_are_told_one_replica(
    tmp_path: Path, language: str, dialled: str, told: str
) -> None:
    connected = Connected(tmp_path, SET)
    fields: dict[str, Any] = {"topic": v2.Resource(name="R-normal")}
    if dialled:
        fields["endpoints"] = endpoints_at([dialled])
    metadata = {"x-mq-client-id": "c", "x-mq-language": language}

    answer = connected.ask("QueryRoute", v2.QueryRouteRequest(**fields), metadata)
    fields["group"] = v2.Resource(name="R-g")
    assigned = connected.ask("QueryAssignment", v2.QueryAssignmentRequest(**fields), metadata)

    brokers = [queue.broker for queue in answer.message_queues]
    brokers += [one.message_queue.broker for one in assigned.assignments]
    assert {one.SerializeToString() for one in (broker.endpoints for broker in brokers)} == {
        endpoints_at([told]).SerializeToString()
    }


def test_other_clients_are_told_all_replicas(tmp_path: Path) -> None:
    connected = Connected(tmp_path, SET)
    request = v2.QueryRouteRequest(
        topic=v2.Resource(name="R-normal"), endpoints=endpoints_at(SET[1:2])
    )

    answer = connected.ask("QueryRoute", request, {"x-mq-client-id": "c", "x-mq-language": "JAVA"})

    assert answer.message_queues[0].broker.endpoints == endpoints_at(SET)
