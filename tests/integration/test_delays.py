"""Delayed messages through a whole broker: sent, told when they are due, recalled, delivered, across a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import AlreadyDelivered, InvalidDelay
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.recall_handle import encode_handle
from pocketmq.proto.record import Record, decode_record, encode_record

from .whole_broker import TOPIC, Peer, broker, store_config

START_MS = 1_700_000_000_250


def _run(*messages: tuple[str, dict[str, str]]) -> pb.ProduceRun:
    """Return a run of MESSAGES: an id, which is the body too, and properties."""
    encoded = [
        encode_record(
            Record(
                topic=TOPIC,
                body=name.encode(),
                born_timestamp_ms=START_MS,
                properties={"UNIQ_KEY": name, **properties},
            )
        )
        for name, properties in messages
    ]
    sizes = [len(record) for record in encoded]
    return pb.ProduceRun(run_id=1, topic=TOPIC, records=b"".join(encoded), sizes=sizes)


async def _arrived(peer: Peer) -> list[tuple[int, str]]:
    """Return when, from the start of the clock, and what arrived in the topic."""
    reply = await peer.fetch()
    data, at, found = reply.records, 0, []
    while at < len(data):
        record = decode_record(data, at)
        found.append((record.store_timestamp_ms - START_MS, record.body.decode()))
        at += record.total_size
    return found


@pytest.mark.long
async def test_each_comes_at_its_instant_and_what_is_recalled_does_not(tmp_path: Path) -> None:
    clock = VirtualClock(START_MS)
    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        await peer.create_topic()
        reply = await peer.produce(
            _run(
                ("hours", {"DELAY": "18"}),
                ("now", {}),
                ("timed", {"TIMER_DELAY_MS": "90001"}),
                ("a millisecond later", {"TIMER_DELIVER_MS": str(START_MS + 90_002)}),
                ("recalled", {"TIMER_DELAY_SEC": "120"}),
                ("level", {"DELAY": "1"}),
            )
        )
        assert [due and due - START_MS for due in reply.due_ms] == [
            7_200_000,
            0,
            90_001,
            90_002,
            120_000,
            1_000,
        ]
        handle = encode_handle(TOPIC, "broker-a", START_MS + 120_000, "recalled")
        await server.advance("1m")
        status = await peer.ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)
        assert status.delayed_waiting == 4
        request = pb.RecallRequest(topic=TOPIC, handle=handle)
        recalled = await peer.ask("Recall", request, pb.RecallReply)
        assert recalled.message_id == "recalled"
        assert await _arrived(peer) == [(0, "now"), (1_000, "level")]

    async with broker(store_config(tmp_path), clock=clock) as (server, peer):
        await server.advance("3h")

        assert await _arrived(peer) == [
            (0, "now"),
            (1_000, "level"),
            (90_001, "timed"),
            (90_002, "a millisecond later"),
            (7_200_000, "hours"),
        ]
        status = await peer.ask("Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply)
        assert status.delayed_waiting == 0
        again = await peer.ask("Recall", request, pb.RecallReply)
        assert again.message_id == "recalled", "the answer may have been lost"
        delivered = encode_handle(TOPIC, "broker-a", START_MS + 90_001, "timed")
        with pytest.raises(AlreadyDelivered):
            await peer.ask(
                "Recall", pb.RecallRequest(topic=TOPIC, handle=delivered), pb.RecallReply
            )


async def test_a_delay_beyond_the_limit_or_a_time_that_has_passed_stores_nothing(
    tmp_path: Path,
) -> None:
    async with broker(store_config(tmp_path), clock=VirtualClock(START_MS)) as (server, peer):
        await peer.create_topic()
        end = server.store.max_log_offset
        for properties in (
            {"TIMER_DELAY_SEC": str(3 * 86_400 + 1)},
            {"TIMER_DELIVER_MS": str(START_MS - 1)},
            {"DELAY": "soon"},
        ):
            error = await peer.refusal(_run(("good", {}), ("bad", properties)))
            assert isinstance(error, InvalidDelay)
            assert error.details["index"] == "1"
        assert server.store.max_log_offset == end
