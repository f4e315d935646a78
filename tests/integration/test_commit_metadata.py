"""Texts that are committed with offsets: over the wire, through the synchronous face, in the command's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.client import OffsetAndMetadata, PullConsumer
from pocketmq.proto.errors import InvalidArgument, LeaseLost
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .command import Shell
from .whole_broker import TOPIC, Peer, broker, run_of, store_config


async def commit(peer: Peer, offset: int, text: str | None = None, lease: int = 0) -> None:
    one = pb.GroupOffset(topic=TOPIC, queue=0, offset=offset, metadata=text, lease=lease)
    request = pb.CommitOffsetsRequest(group="g", offsets=[one])
    await peer.ask("CommitOffsets", request, pb.CommitOffsetsReply)


async def told(peer: Peer) -> tuple[int, str]:
    request = pb.GroupOffsetsRequest(group="g")
    (one,) = (await peer.ask("GroupOffsets", request, pb.GroupOffsetsReply)).offsets
    return one.offset, one.metadata


async def test_what_is_refused_leaves_offset_and_text_as_they_were(tmp_path: Path) -> None:
    async with broker(store_config(tmp_path)) as (_, peer):
        await peer.create_topic()
        await peer.produce(run_of([b"a", b"b"]))
        await commit(peer, 1, "ü" * 512)
        with pytest.raises(InvalidArgument, match="1026 bytes") as caught:
            await commit(peer, 2, "ü" * 513)
        assert caught.value.details["limit"] == "1024"
        queue = pb.QueueLease(topic=TOPIC, queue=0)
        asked = pb.LeaseRequest(group="g", member_id="m", queues=[queue])
        (lease,) = (await peer.ask("LeaseQueues", asked, pb.LeaseReply)).queues
        for wrong in (0, lease.token + 1):
            with pytest.raises(LeaseLost):
                await commit(peer, 2, "fenced", wrong)

        assert await told(peer) == (1, "ü" * 512)
        await commit(peer, 2, "held", lease.token)
        assert await told(peer) == (2, "held")
        await commit(peer, 1, None, lease.token)
        assert await told(peer) == (1, "")


@pytest.mark.processes
def test_a_text_is_committed_and_described(call: Shell) -> None:
    call("topic", "create", "Annotated", "--queues", "1")
    call("send", "Annotated", "m0", "m1")
    with PullConsumer("noting", "Annotated", call.nameserver, auto_commit=False) as consumer:
        (message,) = consumer.poll(1, timeout_ms=20_000)
        (queue,) = consumer.queues("Annotated")
        assert message.queue == queue.number
        consumer.commit_sync({queue: (1, "invoice 17\x1b[31m")})
        assert consumer.committed(queue) == OffsetAndMetadata(1, "invoice 17\x1b[31m")

    describe = ("group", "describe", "noting", "--topic", "Annotated", "--interval", "0s")
    (found,) = call(*describe, "--json").documents
    shown = call(*describe).out
    call("consume", "Annotated", "--group", "noting", "--limit", "1", "--timeout", "10")
    later = call(*describe).out

    assert [one["metadata"] for one in found["queues"]] == ["invoice 17\x1b[31m"]
    assert "offset metadata" in shown
    assert "invoice 17\\x1b[31m" in shown
    assert "offset metadata" not in later
