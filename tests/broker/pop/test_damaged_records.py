"""Records that are damaged underneath the broker: they hold up nothing, and no wrong body is delivered or copied."""

from __future__ import annotations

import struct

import pytest

from ...runs import records_of
from .popping import INVISIBLE_MS, TOPIC, Popping

#: Where the length of the body lies in a record between IPv4 hosts.
_BODY_SIZE_AT = 84
_BODY_AT = 88


def damage(broker: Popping, offset: int, at: int, topic: str = TOPIC) -> None:
    """Change what stands AT a place of the message at OFFSET: the size of its body, or the body."""
    record = records_of(broker.store, topic, 0)[offset]
    file = broker.store.log.files.file_at(record.log_offset)
    assert file is not None
    changed = struct.pack(">i", 1 << 20) if at == _BODY_SIZE_AT else b"?"
    file.put(record.log_offset - file.start + at, changed)


@pytest.mark.parametrize("at", [_BODY_SIZE_AT, _BODY_AT])
@pytest.mark.parametrize("ordered", [False, True])
async def test_the_others_come_and_it_does_not(broker: Popping, ordered: bool, at: int) -> None:
    broker.group(consume_message_orderly=ordered)
    broker.send(b"1", b"2", b"3", properties=[{"__SHARDINGKEY": key} for key in "abc"])
    damage(broker, 1, at)

    one, three = broker.pop()
    broker.ack(one, three)

    assert [one.offset, three.offset] == [0, 2]
    assert broker.committed() == 3


@pytest.mark.parametrize("at", [_BODY_SIZE_AT, _BODY_AT])
@pytest.mark.parametrize("ordered", [False, True])
async def test_one_that_was_damaged_in_flight_does_not_come_again_and_makes_no_dead_letter(
    broker: Popping, ordered: bool, at: int
) -> None:
    broker.group(retry_times_max=0, consume_message_orderly=ordered)
    broker.send(b"1", b"2", b"3", properties=[{"__SHARDINGKEY": key} for key in "abc"])
    one, _, three = broker.pop()
    broker.ack(one, three)
    damage(broker, 1, at)

    await broker.clock.advance(INVISIBLE_MS)
    broker.ask()

    assert not broker.answer().deliveries
    assert broker.committed() == 3
    assert broker.dead() == []
