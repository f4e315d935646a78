"""The service about connections, over carriers that count and one that does not."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.errors import InvalidArgument, Unsupported
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc.carrier import ConnectionFigures, ConnectionTotals, CountsConnections
from pocketmq.proto.services.connections_service import PAGE_MAX, TEXT_MAX, ConnectionsService

from ...fake_calls import FakeCall
from .counting import TOTALS, Counting, figures


def listed(carrier: object, **asked: int) -> pb.ConnectionListReply:
    return ConnectionsService(lambda: carrier).list_open(
        pb.ConnectionListRequest(**asked), FakeCall()
    )


@pytest.mark.parametrize("kind", [ConnectionFigures, ConnectionTotals])
def test_the_wire_has_the_fields_that_carriers_tell(kind: type) -> None:
    message = getattr(pb, kind.__name__)

    assert {field.name for field in fields(kind)} == set(message.DESCRIPTOR.fields_by_name)


def test_what_the_carrier_counts_is_told() -> None:
    one, other = figures(1), figures(2)

    reply = listed(Counting(one, other))

    assert [{name: getattr(each, name) for name in asdict(one)} for each in reply.connections] == [
        asdict(one),
        asdict(other),
    ]
    assert reply.next_id == 0
    assert (reply.totals.open, reply.totals.accepted, reply.totals.refused) == (2, 1_007, 4)
    assert dict(reply.totals.closed) == TOTALS.closed


def test_pages_follow_each_other_until_all_are_told() -> None:
    carrier = Counting(*map(figures, (1, 2, 5, 6, 9)))

    first = listed(carrier, max_connections=2)
    second = listed(carrier, first_id=first.next_id, max_connections=2)
    third = listed(carrier, first_id=second.next_id, max_connections=2)

    pages = [[each.id for each in page.connections] for page in (first, second, third)]
    assert pages == [[1, 2], [5, 6], [9]]
    assert (first.next_id, second.next_id, third.next_id) == (5, 9, 0)


@pytest.mark.parametrize("asked", [0, PAGE_MAX, PAGE_MAX + 1, 2**31 - 1])
def test_a_page_is_no_longer_than_its_bound(asked: int) -> None:
    carrier = Counting(*map(figures, range(1, PAGE_MAX + 2)))

    reply = listed(carrier, max_connections=asked)

    assert len(reply.connections) == PAGE_MAX
    assert reply.next_id == PAGE_MAX + 1


@pytest.mark.parametrize("field", ["first_id", "max_connections"])
def test_a_negative_number_is_refused_by_name(field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"{field} is -1") as raised:
        listed(Counting(), **{field: -1})

    assert raised.value.details["field"] == field


def test_what_peers_say_of_themselves_is_cut_and_made_fit_to_travel() -> None:
    odd = figures(1, user_agent="a" * 1_000, last_path="/\udce9" * 150)

    (told,) = listed(Counting(odd)).connections

    assert told.user_agent == "a" * TEXT_MAX
    assert told.last_path == ("/\\udce9" * 150)[:TEXT_MAX]


def test_a_carrier_that_does_not_count_says_what_would() -> None:
    carrier = GrpcioCarrier([])
    assert not isinstance(carrier, CountsConnections)

    with pytest.raises(
        Unsupported, match=r"no metrics of connections.*grpcio.*--grpc builtin"
    ) as raised:
        listed(carrier)

    assert raised.value.status == "UNIMPLEMENTED"
