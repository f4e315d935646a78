"""Keys of rows."""

from hypothesis import given, strategies as st

from pocketmq.tools.spark.live.row_keys import row_key, task_key

TASKS = st.tuples(st.text(max_size=20), st.integers(0, 2**40), st.integers(0, 2**20))


@given(TASKS, TASKS)
def test_tasks_have_keys_of_their_own_always_the_same(
    one: tuple[str, int, int], other: tuple[str, int, int]
) -> None:
    assert (task_key(*one) == task_key(*other)) == (one == other)
    assert 0 < task_key(*one) < 2**63


def test_a_key_does_not_change_from_version_to_version() -> None:
    assert row_key(task_key("7b1c", 3, 1), 12) == "371ca78789200217:12"
