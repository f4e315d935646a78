"""Which subscription of a group is served while its members change over."""

from __future__ import annotations

from hypothesis import given, strategies as st

from pocketmq.broker.groups.grace import Grace

GRACE_MS = 100


def test_many_superseded_subscriptions_are_forgotten() -> None:
    grace: Grace[int] = Grace()
    grace.winner(-1, [], 0, GRACE_MS)
    for number in range(100):
        grace.winner(number, [-1, number], 0, GRACE_MS)
        grace.winner(-2, [-1, number], 0, GRACE_MS)
        assert grace.winner(number, [number, -2], GRACE_MS, GRACE_MS) == -2
    assert len(grace._superseded) <= 16


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from("abc"), st.sampled_from(["join", "leave"])),
        max_size=40,
    )
)
def test_somebody_is_always_served_and_a_lone_subscription_at_once(
    steps: list[tuple[int, str, str]],
) -> None:
    """Members of a, b and c join, leave, and are removed as the coordinator does when a period ends."""
    grace: Grace[str] = Grace()
    members: list[str] = []
    now_ms = 0
    for passes_ms, name, what in steps:
        now_ms += passes_ms
        ends_ms = grace.ends_ms(members, now_ms, GRACE_MS)
        if ends_ms is not None and ends_ms <= now_ms:
            newest = grace.newest
            members = [one for one in members if one == newest]
            assert members, "who wins is there"
        if what == "leave" and name in members:
            members.remove(name)
        elif what == "join":
            won = grace.winner(name, members, now_ms, GRACE_MS)
            if won is None:
                members.append(name)
            else:
                assert won in members
                assert won != name
        assert not set(members) or grace.winner(members[0], [members[0]], now_ms, GRACE_MS) is None
