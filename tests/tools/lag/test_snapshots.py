"""Two moments compared."""

from __future__ import annotations

import json

import pytest

from pocketmq.proto.errors import InvalidArgument
from pocketmq.tools.lag.rows import LagFacts, LagRow, LagVerdict
from pocketmq.tools.lag.snapshots import LagProgress, LagSnapshot, compare, document_of


def row(committed: int | None, end: int | None, *, low: int = 0, held: int = 0) -> LagRow:
    facts = LagFacts(
        topic="T",
        queue_id=0,
        group="G",
        committed_offset=committed,
        min_offset=None if end is None else low,
        max_offset=end,
        held=held,
    )
    return LagRow.of("b", facts, lag_bytes=None, oldest_unread_age_ms=None)


def after_ten_seconds(before: LagRow, after: LagRow) -> LagProgress:
    (found,) = compare(LagSnapshot.of([before], 1_000), [after], 11_000)
    return found


def test_rates_tell_when_a_group_will_have_caught_up() -> None:
    found = after_ten_seconds(row(100, 200), row(150, 220))

    assert (found.read_per_s, found.written_per_s) == (5.0, 2.0)
    assert found.catch_up_s == pytest.approx(70 / 3)
    assert found.row.verdict is LagVerdict.LAGGING


def test_a_group_that_is_too_slow_never_catches_up() -> None:
    assert after_ten_seconds(row(100, 200), row(101, 300)).catch_up_s is None


def test_an_offset_that_does_not_move_stands_still() -> None:
    found = after_ten_seconds(row(100, 200), row(100, 250))

    assert found.row.verdict is LagVerdict.STALLED
    assert found.row.reasons == ("150 messages unread, and no progress for 10 s",)


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (row(100, 100), row(100, 150), LagVerdict.LAGGING),  # nothing was unread at first
        (row(100, 100), row(100, 100), LagVerdict.OK),
        (row(100, 200), row(100, 100), LagVerdict.OK),
        (row(100, 200), row(100, 90), LagVerdict.OFFSET_PAST_END),
        (row(1, 200), row(1, 200, low=9), LagVerdict.EXPIRED_UNREAD),
        (row(None, 200), row(None, 200), LagVerdict.NEVER_COMMITTED),
        (row(200, 200, held=3), row(200, 200, held=3), LagVerdict.IN_FLIGHT),
        (row(5, None), row(5, None), LagVerdict.QUEUE_MISSING),
    ],
)
def test_only_unread_messages_make_a_standstill(
    before: LagRow, after: LagRow, verdict: LagVerdict
) -> None:
    assert after_ten_seconds(before, after).row.verdict is verdict


def test_an_offset_that_was_set_back_tells_no_rate() -> None:
    found = after_ten_seconds(row(100, 200), row(10, 150))

    assert (found.read_per_s, found.written_per_s, found.catch_up_s) == (None, None, None)


def test_without_an_earlier_row_there_are_no_rates() -> None:
    (alone,) = compare(None, [row(1, 2)], 5)
    (new,) = compare(LagSnapshot(1, {}), [row(2, 2)], 5)
    (same_moment,) = compare(LagSnapshot.of([row(1, 2)], 5), [row(1, 2)], 5)

    assert (alone.read_per_s, alone.catch_up_s) == (None, None)
    assert (new.read_per_s, new.catch_up_s) == (None, 0.0)
    assert same_moment.row.verdict is LagVerdict.LAGGING


def test_a_snapshot_that_was_kept_is_the_snapshot() -> None:
    rows = [row(1, 2), row(None, 7)]

    assert LagSnapshot.parse(json.dumps(document_of(rows, 77))) == LagSnapshot.of(rows, 77)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"taken_at_ms":1,"rows":[{}]}', '{"rows":[]}'])
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        LagSnapshot.parse(text)
