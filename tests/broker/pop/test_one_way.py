"""A group either pops or shares queues."""

from __future__ import annotations

import pytest

from pocketmq.broker.pop.pops import POPS_MS
from pocketmq.proto.errors import GroupInUse

from .popping import GROUP, Popping


async def test_a_group_with_members_does_not_pop(broker: Popping) -> None:
    broker.pops.has_members = lambda group: group == GROUP

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
