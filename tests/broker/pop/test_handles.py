"""Receipt handles: what they say, and what is none."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from random import Random, SystemRandom

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.broker import Broker
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.pop.handles import Handle, decode_handle, encode_handle, serials_from
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import InvalidReceiptHandle
from pocketmq.store.config import StoreConfig
from pocketmq.store.os_disk import OsDisk

NATURALS = st.integers(0, (1 << 63) - 1)


LITE_HANDLES = st.builds(
    Handle, st.just(False), NATURALS, NATURALS, NATURALS, st.text("aZ09_-", min_size=1, max_size=64)
)


@given(st.builds(Handle, st.booleans(), NATURALS, NATURALS, NATURALS, st.just("")) | LITE_HANDLES)
def test_a_handle_says_what_it_was_made_of(handle: Handle) -> None:
    assert decode_handle(encode_handle(*handle)) == handle


@pytest.mark.slow
@given(st.text(max_size=200))
def test_any_other_text_is_refused_or_is_a_handle(text: str) -> None:
    try:
        decode_handle(text)
    except InvalidReceiptHandle as error:
        assert len(error.message) < 300


@pytest.mark.parametrize(
    "text", ["", "p", "p1-2", "p1-2-3-4", "q1-2-3", "p1-2-g", "p1--2", "1-2-3"]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceiptHandle, match="is not of this broker"):
        decode_handle(text)


def test_a_serial_says_nothing_of_another() -> None:
    found = list(islice(serials_from(Random(1).randbytes), 5_000))

    assert len(set(found)) == len(found)
    assert 0 not in found
    assert max(found) < 1 << 64
    for known in (found, [b - a for a, b in pairwise(found)]):
        counts = [sum(serial >> bit & 1 for serial in known) for bit in range(63)]
        assert all(2_300 < count < 2_700 for count in counts), "each bit is one as often as not"


def test_a_broker_takes_its_serials_from_the_machine(tmp_path: Path) -> None:
    """Whoever sees numbers of a Mersenne Twister knows those to come."""
    store = StoreConfig(path=str(tmp_path))
    built = Broker.build(BrokerConfig(), store, disk=OsDisk(), clock=VirtualClock())

    assert isinstance(built._random, SystemRandom)
