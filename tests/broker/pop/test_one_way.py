"""A group either pops or shares queues."""

from __future__ import annotations

import pytest

from pocketmq.broker.pop.service import POPS_MS
from pocketmq.proto.errors import GroupInUse

from .popping import GROUP, TOPIC, Popping, seen


async def test_a_group_with_members_does_not_pop(broker: Popping) -> None:
    broker.sharing.add(GROUP)

    with pytest.raises(GroupInUse, match="has members"):
        broker.pop()
    assert broker.pop(group="other") == []


async def test_a_group_that_pops_is_not_shared_until_a_while_after(broker: Popping) -> None:
    broker.pops.check_not_popped(GROUP)
    broker.wait()
    await broker.clock.advance(POPS_MS - 1)

    with pytest.raises(GroupInUse, match="again in 1 ms"):
        broker.pops.check_not_popped(GROUP)
    await broker.clock.advance(1)

    broker.pops.check_not_popped(GROUP)
    assert broker.pops._popped_ms == {}


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_group_that_pops_again_goes_on_where_those_who_shared_it_have_come(
    broker: Popping, restarted: bool
) -> None:
    broker.send(b"1", b"2", b"3", b"4")
    one, _ = broker.pop(2)
    broker.ack(one)
    await broker.clock.advance(POPS_MS)
    assert broker.committed() == 1

    broker.pops.check_not_popped(GROUP)
    broker.offsets.commit(TOPIC, GROUP, 0, 3)
    if restarted:
        await broker.restart()

    assert seen(broker.pop()) == [(b"4", 1)]
    assert broker.committed() == 3
    assert broker.pops.in_flight == 1
