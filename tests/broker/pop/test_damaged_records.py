"""Records whose lengths do not agree any more: they hold up nothing, and cost nothing else."""

from __future__ import annotations

import struct

import pytest

from ...runs import records_of
from .popping import INVISIBLE_MS, TOPIC, Popping

#: Where the length of the body lies in a record between IPv4 hosts.
_BODY_SIZE_AT = 84


def damage(broker: Popping, offset: int, topic: str = TOPIC) -> None:
    """Make the body of the message at OFFSET longer than its record."""
    record = records_of(broker.store, topic, 0)[offset]
    file = broker.store.log.files.file_at(record.log_offset)
    assert file is not None
    file.put(record.log_offset - file.start + _BODY_SIZE_AT, struct.pack(">i", 1 << 20))


@pytest.mark.parametrize("ordered", [False, True])
async def test_the_others_come_and_it_is_given_up_at_the_end(
    broker: Popping, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker.group(retry_times_max=1, consume_message_orderly=ordered)
    broker.send(b"1", b"2", b"3", properties=[{"__SHARDINGKEY": key} for key in "abc"])
    damage(broker, 1)

    one, two, three = broker.pop()
    broker.ack(one, three)
    assert [one.offset, two.offset, three.offset] == [0, 1, 2]
    await broker.clock.advance(INVISIBLE_MS)
    assert [again.offset for again in broker.pop()] == [1]
    await broker.clock.advance(INVISIBLE_MS)
    broker.ask()

    assert not broker.answer().deliveries
    assert "is damaged and given up group=g topic=T queue=0 offset=1" in caplog.text
    assert broker.committed() == 3
    assert broker.dead() == []
