"""The health service without a wire: what is asked, and what those who watch are told."""

from __future__ import annotations

import pytest

from pocketmq.proto.errors import Overloaded, ServiceNotFound
from pocketmq.proto.gen import grpc_health_pb2 as pb
from pocketmq.proto.services.health_service import WATCHERS_MAX, HealthService

from ...fake_calls import FakeCall, FakeStream

SERVING, NOT_SERVING = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = pb.HealthCheckResponse.SERVICE_UNKNOWN


class Tank:
    """Something that can be full."""

    has_room = True


def health(tank: Tank | None = None) -> HealthService:
    tank = tank or Tank()
    return HealthService(["a.Service"], {"room": lambda: tank.has_room})


def check(asked: HealthService, name: str) -> int:
    status: int = asked.check(pb.HealthCheckRequest(service=name), FakeCall()).status
    return status


def watch(asked: HealthService, name: str) -> FakeStream:
    stream = FakeStream()
    asked.watch(pb.HealthCheckRequest(service=name), stream)
    return stream


def told(stream: FakeStream) -> list[int]:
    return [reply.status for reply in stream.sent]


@pytest.mark.parametrize("name", ["", "a.Service", "grpc.health.v1.Health", "room"])
def test_everything_serves_between_begin_and_end(name: str) -> None:
    asked = health()

    before = check(asked, name)
    asked.begin()
    between = check(asked, name)
    asked.end()

    assert (before, between, check(asked, name)) == (NOT_SERVING, SERVING, NOT_SERVING)


def test_a_condition_that_does_not_hold_concerns_its_own_name_alone() -> None:
    tank = Tank()
    asked = health(tank)
    asked.begin()

    tank.has_room = False

    assert [check(asked, name) for name in ("room", "", "a.Service")] == [
        NOT_SERVING,
        SERVING,
        SERVING,
    ]


def test_an_unknown_name_fails_a_check_and_is_named() -> None:
    with pytest.raises(ServiceNotFound, match=r"'a\.Servise'") as raised:
        check(health(), "a.Servise")

    assert raised.value.status == "NOT_FOUND"
    assert raised.value.details == {"field": "service", "value": "a.Servise"}


def test_a_list_has_every_name() -> None:
    tank = Tank()
    asked = health(tank)
    asked.begin()
    tank.has_room = False

    statuses = asked.list_all(pb.HealthListRequest(), FakeCall()).statuses

    assert {name: each.status for name, each in statuses.items()} == {
        "": SERVING,
        "a.Service": SERVING,
        "grpc.health.v1.Health": SERVING,
        "room": NOT_SERVING,
    }


def test_who_watches_is_told_the_status_and_each_change_once() -> None:
    tank = Tank()
    asked = health(tank)
    streams = [watch(asked, name) for name in ("", "room")]

    asked.begin()
    asked.look()
    tank.has_room = False
    asked.look()
    asked.look()
    tank.has_room = True
    asked.look()
    asked.end()

    assert [told(stream) for stream in streams] == [
        [NOT_SERVING, SERVING, NOT_SERVING],
        [NOT_SERVING, SERVING, NOT_SERVING, SERVING, NOT_SERVING],
    ]
    assert not any(stream.is_over for stream in streams)


def test_who_watches_an_unknown_name_is_told_so_and_waits() -> None:
    asked = health()

    stream = watch(asked, "nobody")
    asked.begin()
    asked.end()

    assert told(stream) == [SERVICE_UNKNOWN]
    assert not stream.is_over


def test_who_has_gone_is_forgotten() -> None:
    asked = health()
    stream, gone_before = watch(asked, ""), FakeStream()
    assert asked.watchers == 1

    stream.cancel()
    gone_before.cancel()
    asked.watch(pb.HealthCheckRequest(), gone_before)

    assert asked.watchers == 0


def test_so_many_watch_and_no_more() -> None:
    asked = health()
    streams = [watch(asked, "") for _ in range(WATCHERS_MAX)]

    with pytest.raises(Overloaded, match="10000"):
        watch(asked, "")
    streams[0].cancel()

    assert told(watch(asked, "")) == [NOT_SERVING]
