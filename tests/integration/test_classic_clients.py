"""Classic clients and PocketMQ's on one topic: each receives what the other sent; a group belongs to one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.client import AsyncProducer, AsyncPullConsumer, Message
from pocketmq.proto.errors import GroupInUse
from pocketmq.proto.remoting.codes import ResponseCode

from ..broker.remoting.classic import Classic, consumer, records
from ..served import need_own
from .whole_broker import serving, store_config


async def test_both_protocols_share_a_topic_but_no_group(tmp_path: Path) -> None:
    need_own("grpcio serves gRPC only")
    async with (
        serving(store_config(tmp_path)) as (nameserver, broker),
        await Classic.connect(broker) as classic,
        AsyncProducer(nameserver) as producer,
    ):
        sent = await classic.send("orders", b"classic", properties={"UNIQ_KEY": "a", "KEYS": "k"})
        receipt = await producer.send(Message("orders", b"own", keys=["k"]))
        assert sent.code == 0
        read = []
        for queue in range(4):
            read += records((await classic.pull("orders", queue)).body)
        assert sorted(one.body for one in read) == [b"classic", b"own"]
        assert {one.message_id for one in read} >= {
            sent.fields["msgId"],
            receipt.offset_message_id,
        }

        async with AsyncPullConsumer("own", "orders", nameserver) as own:
            seen: list[bytes] = []
            while len(seen) < 2:
                seen += [message.body for message in await own.poll()]
            assert sorted(seen) == [b"classic", b"own"]
            refused = await classic.beat(consumer("own", "orders"))
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "'own' has members that use PocketMQ's protocol" in refused.remark

        await classic.beat(consumer("theirs", "orders"))
        with pytest.raises(GroupInUse, match="'theirs' has members that use the remoting protocol"):
            async with AsyncPullConsumer("theirs", "orders", nameserver) as own:
                await own.poll()
