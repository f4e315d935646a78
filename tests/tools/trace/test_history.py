"""The core of `pocketmq trace`: copies and evidence in, a story out."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO

import numpy as np
import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from pocketmq.broker.queue_stats import MovedBy, QueueStats, ScanResult
from pocketmq.proto.message_id import offset_message_id
from pocketmq.proto.record import SYS_COMMIT, Host, Record
from pocketmq.proto.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from pocketmq.tools.find.files import StoredRecord
from pocketmq.tools.trace.command import print_story
from pocketmq.tools.trace.evidence import Evidence, Filter, GroupReading, PopMark, TimerMark
from pocketmq.tools.trace.group_views import wants
from pocketmq.tools.trace.history import history_of, history_of_gone
from pocketmq.tools.trace.timeline import GroupView, Story

T0 = 1_700_000_000_000
HOST = Host.parse("127.0.0.1", 10911)


def copy(
    at: int,
    topic: str = "T",
    *,
    queue: int = 0,
    offset: int = 0,
    tries: int = 0,
    sys_flag: int = 0,
    extra: Mapping[str, str] | None = None,
    **properties: str,
) -> StoredRecord:
    """Return a record at log offset AT, stored AT ms after T0."""
    record = Record(
        topic=topic,
        body=b"x",
        queue_id=queue,
        queue_offset=offset,
        log_offset=at,
        sys_flag=sys_flag,
        reconsume_times=tries,
        store_timestamp_ms=T0 + at,
        store_host=HOST,
        properties={"UNIQ_KEY": "U"} | properties | dict(extra or {}),
    )
    return StoredRecord(record, b"", at, "/store/commitlog/0")


def readings(group: str, committed: int, **more: int) -> dict[tuple[str, int], list[GroupReading]]:
    return {
        ("T", 0): [
            GroupReading(group, committed, T0 + 9000, more.get("earlier"), more.get("earlier_ms"))
        ]
    }


def kinds(story: Story) -> list[str]:
    return [event.kind for event in story.events]


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize("name", ["traceparent", "TRACE_CONTEXT"])
def test_the_trace_is_told_that_the_sender_named(name: str) -> None:
    """By itself, or as official clients do."""
    story = history_of([copy(0, extra={name: TRACE})], Evidence())

    assert story.document("b")["trace"] == TRACE
    with Console(record=True, width=200, file=StringIO()) as console:
        print_story(console, story.document("b"))
    assert f"trace {TRACE}" in console.export_text()
    assert history_of([copy(0)], Evidence()).trace is None


def test_a_message_that_nobody_read_is_in_its_topic() -> None:
    story = history_of([copy(100)], Evidence())

    assert (story.state, story.conclusion) == ("stored", "in its topic T/0 at offset 0")
    assert kinds(story) == ["stored"]
    assert story.groups == []


# ---------------------------------------------------------------- groups


class TestStatistics:
    """What our broker's statistics tell of a group that is beyond a message."""

    def view(self, stats: QueueStats, tag: str = "b", offset: int = 4) -> GroupView:
        evidence = Evidence(readings=readings("g", 9), stats={("g", "T", 0): stats})
        (view,) = history_of([copy(100, offset=offset, TAGS=tag)], evidence).groups
        return view

    def looked(self, *looks: tuple[int, int, str], member: str = "m") -> QueueStats:
        """Return the statistics of LOOKS that stepped over all from one offset to another, with a tag."""
        stats = QueueStats()
        for begin, end, tag in looks:
            nothing = np.zeros(0, np.int64)
            look = ScanResult(begin, end, nothing, end - begin, 0)
            stats.look(look, ("TAG", tag), member, T0 + 500)
        return stats

    def test_a_message_that_the_filter_of_its_time_did_not_want_was_skipped(self) -> None:
        view = self.view(self.looked((0, 5, "a"), (5, 9, "b")))

        assert view.verdict == "filtered"
        assert view.text == "filtered out in g by m, with filter 'a'"
        assert view.before_ms == T0 + 500

    def test_one_that_it_wanted_was_read(self) -> None:
        view = self.view(self.looked((0, 5, "b"), (5, 9, "a")))

        assert (view.verdict, view.filter_known) == ("read", True)

    def test_a_move_of_an_administrator_is_no_reading(self) -> None:
        stats = QueueStats()
        stats.move(MovedBy(T0 + 700, "me@here (127.0.0.1:9)", 2, 9))

        view = self.view(stats)

        assert (view.verdict, view.before_ms) == ("moved", T0 + 700)
        assert view.text.startswith(
            "skipped by g: me@here (127.0.0.1:9) reset its offset from 2 to 9 at 2023-11-14"
        )
        assert self.view(stats, offset=1).verdict == "read"

    def test_a_group_that_was_moved_before_it_began_left_out_what_was_there(self) -> None:
        stats = QueueStats()
        stats.move(MovedBy(T0 + 700, "me", None, 9))

        assert "reset its offset from the beginning to 9" in self.view(stats).text

    def test_a_move_back_leaves_nothing_out(self) -> None:
        stats = QueueStats()
        stats.move(MovedBy(T0 + 700, "me", 2, 9))
        stats.move(MovedBy(T0 + 800, "me", 9, 3))

        assert self.view(stats).verdict == "read"

    def test_where_it_is_not_known_which_filter_looked_both_are_told(self) -> None:
        stats = self.looked((0, 9, "a"))
        stats.looks.clear()

        view = self.view(stats)

        assert view.verdict == "filtered"
        assert view.text.endswith(
            "with filter 'a', or read before: the filters used are not known any more"
        )
        assert self.view(stats, tag="a").verdict == "read"


def test_the_table_of_offsets_bounds_when_a_message_was_read() -> None:
    (view,) = history_of([copy(100)], Evidence(readings=readings("g", 1))).groups

    assert (view.verdict, view.before_ms) == ("read", T0 + 9000)


def test_the_backup_of_the_table_narrows_the_time_from_either_side() -> None:
    after = history_of(
        [copy(100, offset=4)], Evidence(readings=readings("g", 9, earlier=3, earlier_ms=T0 + 4000))
    ).groups[0]
    before = history_of(
        [copy(100, offset=4)], Evidence(readings=readings("g", 9, earlier=5, earlier_ms=T0 + 4000))
    ).groups[0]

    assert after.before_ms == T0 + 9000
    assert "after 2023-11-14 22:13:24.000Z" in after.text
    assert before.before_ms == T0 + 4000


def test_a_group_that_has_not_come_so_far_says_how_far_it_is() -> None:
    (view,) = history_of([copy(100, offset=7)], Evidence(readings=readings("g", 5))).groups

    assert view.verdict == "not yet"
    assert "its offset was 5 (2 messages before it)" in view.text


@pytest.mark.parametrize(
    ("wanted", "properties", "answer"),
    [
        (Filter("TAG", "A || B"), {"TAGS": "B"}, True),
        (Filter("TAG", "A || B"), {"TAGS": "C"}, False),
        (Filter("TAG", "A"), {}, False),
        (Filter("SQL92", "n > 5"), {"n": "6"}, True),
        (Filter("SQL92", "n > 5"), {"n": "5"}, False),
        (Filter("SQL92", "n > 5"), {}, False),
        (Filter("SQL92", "n >"), {"n": "6"}, None),
        (Filter("CLASS", "x"), {}, None),
    ],
    ids=str,
)
def test_a_filter_is_asked_as_a_broker_would(
    wanted: Filter, properties: Mapping[str, str], answer: bool | None
) -> None:
    assert wants(wanted, copy(1, extra=properties).record) is answer


def test_a_group_with_a_tag_filter_never_got_what_it_turns_down() -> None:
    evidence = Evidence(readings=readings("h", 9), filters={("T", "h"): Filter("TAG", "A")})

    (view,) = history_of([copy(100, TAGS="B")], evidence).groups

    assert (view.verdict, view.text) == ("filtered", "h did not receive it: tag filter 'A'")


def test_a_failure_shows_that_a_group_read_before_its_offset_moved() -> None:
    back = copy(200, SCHEDULE_TOPIC, queue=2, tries=1, DELAY="3", REAL_TOPIC="%RETRY%g")
    evidence = Evidence(readings=readings("g", 0), due_ms={200: T0 + 10_200})

    story = history_of([copy(100), back], evidence)

    assert kinds(story) == ["stored", "sent back"]
    assert story.groups[0].before_ms == T0 + 200
    assert story.state == "retrying"
    assert "waits until 2023-11-14 22:13:30.200Z" in story.conclusion


def test_a_dead_letter_that_was_purged_is_said_so() -> None:
    dead = copy(300, "%DLQ%g", tries=3, DLQ_REASON="ValueError: no")
    purge = {("%DLQ%g", 0): [GroupReading("CID_RMQ_SYS_DEAD_LETTERS", 1, T0 + 9000)]}

    story = history_of([copy(100), dead], Evidence(readings=purge))

    assert story.state == "dead letter"
    assert any("ValueError: no" in event.text for event in story.events)
    assert any("purged from the dead letters" in event.text for event in story.events)
    assert "CID_RMQ_SYS" not in str(story.document("b"))


@pytest.mark.parametrize("committed", [0, 1])
@pytest.mark.parametrize(("topic", "state"), [("T", "stored"), ("%RETRY%g", "retrying")])
def test_a_dead_letter_that_was_sent_again_is_said_so(
    topic: str, state: str, committed: int
) -> None:
    """It died after one retry. Whether its group read it since shows the offset in the queue of the resent copy."""
    copies = [
        copy(100),
        copy(200, "%RETRY%g", tries=1),
        copy(300, "%DLQ%g", tries=2),
        copy(400, topic, queue=3),
    ]
    evidence = Evidence(
        readings={
            ("T", 0): [GroupReading("g", 1, T0 + 9000)],
            ("%RETRY%g", 0): [GroupReading("g", 1, T0 + 9000)],
            ("%DLQ%g", 0): [GroupReading("CID_RMQ_SYS_DEAD_LETTERS", 0, T0 + 9000)],
            (topic, 3): [GroupReading("g", committed, T0 + 9000)],
        }
    )

    story = history_of(copies, evidence)

    resent = f"resent from the dead letters of g, to {topic}/3 at offset 0"
    assert any(event.text == resent for event in story.events)
    if committed:
        assert story.state == "stored"
        assert story.conclusion.startswith(f"{resent}; read by g before ")
    else:
        assert (story.state, story.conclusion) == (state, f"{resent}; not read by g since")
    assert "CID_RMQ_SYS" not in str(story.document("b"))


def test_what_failed_again_after_it_was_sent_again_is_retried() -> None:
    copies = [
        copy(100),
        copy(200, "%RETRY%g", tries=1),
        copy(300, "%DLQ%g", tries=2),
        copy(400, offset=1),
        copy(500, "%RETRY%g", offset=1, tries=1),
    ]

    story = history_of(copies, Evidence())

    assert story.state == "retrying"
    assert story.conclusion == (
        "resent from the dead letters of g, to T/0 at offset 1; 1 retry for g, not read since"
    )


def test_a_retry_of_another_group_is_no_dead_letter_sent_again() -> None:
    copies = [
        copy(100),
        copy(200, "%RETRY%h", tries=1),
        copy(300, "%DLQ%g", tries=2),
        copy(400, "%RETRY%g2", tries=1),
    ]

    story = history_of(copies, Evidence())

    assert story.conclusion == "1 retry for g2, not read since"


def test_a_popped_message_is_held_until_its_time_is_over() -> None:
    mark = PopMark(False, "p", T0 + 500, T0 + 500, 30_000, copy(500, TIMER_TOPIC))
    ack = PopMark(True, "p", T0 + 900, T0 + 500, None, copy(900, TIMER_TOPIC))

    held = history_of([copy(100)], Evidence(pops={("T", 0, 0): [mark]}))
    done = history_of([copy(100)], Evidence(pops={("T", 0, 0): [mark, ack]}))

    assert (kinds(held), held.groups[0].verdict) == (["stored", "popped"], "held")
    assert held.events[1].due_ms == T0 + 30_500
    assert (kinds(done), done.groups[0].verdict) == (
        ["stored", "popped", "acknowledged"],
        "acknowledged",
    )


def test_a_change_of_the_hidden_time_is_no_acknowledgement() -> None:
    marks = [
        PopMark(False, "p", T0 + 500, T0 + 500, 10_000, copy(500, TIMER_TOPIC)),
        PopMark(False, "p", T0 + 900, T0 + 900, 60_000, copy(900, TIMER_TOPIC)),
        PopMark(True, "p", T0 + 901, T0 + 500, None, copy(901, TIMER_TOPIC)),
    ]

    story = history_of([copy(100)], Evidence(pops={("T", 0, 0): marks}))

    assert kinds(story) == ["stored", "popped", "popped"]
    assert story.events[2].text == "invisible time changed by p, invisible for 60 s"
    assert story.groups[0].verdict == "held"


# ---------------------------------------------------------------- what is missing


def test_a_first_copy_whose_file_expired_is_told_as_gone() -> None:
    origin = offset_message_id(HOST.address, HOST.port, 50)
    retry = copy(2000, "%RETRY%g", tries=1, RETRY_TOPIC="T", ORIGIN_MESSAGE_ID=origin)

    story = history_of([retry], Evidence(log_begin=1000, log_begin_ms=T0 + 1000))

    assert kinds(story) == [
        "gone",
        "retried",
    ]
    assert "log offset 50, is gone: file expired: the log begins at 1,000" in story.events[0].text
    assert story.topic == "T"


def test_a_waiting_copy_that_was_handed_on_says_so() -> None:
    waits = copy(100, SCHEDULE_TOPIC, queue=0, offset=3, DELAY="1", REAL_TOPIC="T", REAL_QID="0")
    timed = copy(100, TIMER_TOPIC, TIMER_OUT_MS=str(T0 + 5000), REAL_TOPIC="T", REAL_QID="0")
    mark = TimerMark("/store/timerlog/0", 52, T0 + 5000, is_roll=False, is_delete=False)

    by_level = [history_of([waits], Evidence(delay_progress={1: next_})).state for next_ in (3, 4)]
    by_timer = [
        history_of([timed], Evidence(timer_marks={100: mark}, timers_read_ms=T0 + ms)).state
        for ms in (5000, 6000)
    ]

    assert by_level == by_timer == ["waiting", "stored"]


def test_a_half_message_that_was_given_up_is_seen_by_nobody() -> None:
    half = copy(100, HALF_TOPIC, REAL_TOPIC="T", REAL_QID="0", PGROUP="p")
    checked = copy(200, HALF_TOPIC, offset=1, REAL_TOPIC="T", TRANSACTION_CHECK_TIMES="15")
    given_up = copy(300, CHECK_MAX_TIME_TOPIC, REAL_TOPIC="T", TRANSACTION_CHECK_TIMES="15")

    story = history_of([half, checked, given_up], Evidence())

    assert (kinds(story), story.state) == (["half", "checked", "given up"], "given up")


def test_the_outcome_of_a_transaction_is_its_copy_or_its_mark() -> None:
    half = copy(100, HALF_TOPIC, offset=7, REAL_TOPIC="T", REAL_QID="0")
    mark = copy(300, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    outcomes = {(0, 7): mark}

    rolled_back = history_of([half], Evidence(outcomes=outcomes))
    committed = history_of([half, copy(200, sys_flag=SYS_COMMIT)], Evidence(outcomes=outcomes))

    assert (kinds(rolled_back), rolled_back.state) == (["half", "rolled back"], "rolled back")
    assert (kinds(committed), committed.state) == (["half", "committed"], "stored")


def test_an_id_that_was_sent_twice_is_told_twice() -> None:
    assert kinds(history_of([copy(100), copy(200, offset=1)], Evidence())) == [
        "stored",
        "sent again",
    ]


def test_what_is_gone_says_when_it_was_about_stored() -> None:
    story = history_of_gone(
        "its id names log offset 5", T0, Evidence(log_begin=1000, log_changed_ms=T0 + 5)
    )

    assert story.state == "gone"
    assert "stored at about 2023-11-14 22:13:20.000Z" in story.conclusion
    assert story.events[0].time_ms == T0 + 5


# ---------------------------------------------------------------- whatever stands in a log


_NAMES = (
    "UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY", "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "TRANSACTION_CHECK_TIMES", "ORIGIN_GROUP", "1ST_POP_TIME",
    "DLQ_ORIGIN_TOPIC", "TAGS",
)  # fmt: skip
_TOPICS = (
    "T", "%RETRY%g", "%RETRY%g_T", "%DLQ%g", SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, CHECK_MAX_TIME_TOPIC,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_REVIVE_LOG_c",
)  # fmt: skip
_values = st.one_of(
    st.sampled_from(["T", "%RETRY%g", "g", "-1", "9" * 30, "0" * 32, "F" * 32, "٣"]),
    st.text(max_size=8),
)


_extras: st.SearchStrategy[dict[str, str]] = st.dictionaries(
    st.sampled_from(_NAMES).map(str), _values, max_size=6
)


@st.composite
def _copies(draw: st.DrawFn) -> list[StoredRecord]:
    return [
        copy(
            draw(st.integers(0, 10_000)),
            draw(st.sampled_from(_TOPICS)),
            offset=draw(st.integers(-5, 5)),
            tries=draw(st.integers(-1, 3)),
            sys_flag=draw(st.sampled_from([0, 4, 8, 12])),
            extra=draw(_extras),
        )
        for _ in range(draw(st.integers(1, 5)))
    ]


@given(_copies(), st.integers(-2, 5), st.booleans())
def test_any_records_make_a_story(
    copies: list[StoredRecord], committed: int, is_filtered: bool
) -> None:
    places = {(one.record.topic, one.record.queue_id) for one in copies}
    evidence = Evidence(
        readings={place: [GroupReading("g", committed, T0)] for place in places},
        filters={("T", "g"): Filter("TAG", "A")} if is_filtered else {},
        due_ms={one.log_offset: T0 for one in copies[::2]},
        delay_progress={1: committed},
        outcomes={(0, 0): copies[0]},
        log_begin=5000,
    )

    story = history_of(copies, evidence)
    document = story.document("b")

    assert story.conclusion
    assert [event.time_ms or 0 for event in story.events] == sorted(
        event.time_ms or 0 for event in story.events
    )
    assert document["state"] == story.state
