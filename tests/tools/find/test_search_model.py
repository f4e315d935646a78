"""Look-ups in files against a plain list of what was sent: any keys, times and bounds."""

from __future__ import annotations

from contextlib import closing
from tempfile import TemporaryDirectory

from hypothesis import given, settings, strategies as st

from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools.find.search import StoreSearch, TimeRange

from ...runs import Hand, make_run, small_config

#: "Aa" and "BB" have one hash, and so have "AaBB" and "BBAa".
KEYS = ("Aa", "BB", "AaBB", "BBAa", "x", "y")
T0 = 1_700_000_000_000

sends = st.lists(
    st.tuples(
        st.sampled_from(["T", "U"]),
        st.lists(st.sampled_from(KEYS), max_size=3),
        st.sampled_from([0, 1, 400, 999, 1000, 5000]),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=40, deadline=None)
@given(sends, st.integers(0, 20_000), st.integers(0, 20_000), st.integers(1, 10))
def test_the_newest_messages_of_a_key_in_a_range_of_time(
    sent: list[tuple[str, list[str], int]], begin: int, length: int, count: int
) -> None:
    clock, stored = Hand(T0), []
    times = TimeRange(T0 + begin, T0 + begin + length)
    # Index files of 39 keys, and log files of some ten messages, so that both roll.
    with TemporaryDirectory() as folder:
        config = small_config(folder, index_slots=10, index_entries=40)  # type: ignore[arg-type]
        with closing(MessageStore.open(config, disk=OsDisk(), now_ms=clock)) as store:
            for topic, keys, pause_ms in sent:
                clock.now_ms += pause_ms
                run = make_run(topic, 0, [b"body"], {"KEYS": " ".join(keys)} if keys else {})
                offset = int(store.append(run).log_offsets[0])
                stored.append((topic, keys, clock.now_ms, offset))
        search = StoreSearch(OsDisk(), folder)

        for topic, key in ((topic, key) for topic in ("T", "U") for key in KEYS):
            found = search.by_key(topic, key, times=times, count=count)

            wanted = [
                offset
                for its_topic, keys, time_ms, offset in stored
                if its_topic == topic and key in keys and time_ms in times
            ]
            assert [one.log_offset for one in found.hits] == wanted[-count:]
            assert found.more == (len(wanted) > count)
            assert (found.strays, found.expired, found.unreadable) == (0, [], [])
            others = search.by_time(topic, None, times, count=100)
            assert [one.log_offset for one in others.hits] == [
                offset
                for its_topic, _, time_ms, offset in stored
                if its_topic == topic and time_ms in times
            ]
