"""Retry policies: how long a failed message waits before it is redelivered. Pure.

The policy is the `groupRetryPolicy` of the group, as in RocketMQ. A retry is counted by the reconsume times that its
message had when it failed: 0 for the first retry.

    policy in subscriptionGroup.json                        retry with reconsume times r waits
    CUSTOMIZED without a list (the default of groups)       delay level 3 + r
    CUSTOMIZED with `customizedRetryPolicy.next`            next[r + 2], or the last one
    EXPONENTIAL                                             initial × multiplier ** r, at most max

RocketMQ computes the same, including the two leading entries of a list, which no retry uses. RocketMQ applies the
policy to POP consumers only, and delays messages of classic consumers by level; PocketMQ applies it to both. Intervals
that are set here are stored with the first one twice in front, so that a Java broker on the same store, and a client
that gets only the list, wait as long or longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..proto import errors
from ..proto.time_text import format_duration
from ..store.format.beans import Object
from ..store.format.java_json import Json

INTERVALS_MAX: Final = 64
INTERVAL_LEAST_MS: Final = 1_000

#: Entries of Apache's lists before the one of the first retry.
_UNUSED: Final = 2
#: Apache's defaults of an exponential policy.
_INITIAL_MS: Final = 5_000
_LONGEST_MS: Final = 7_200_000
_MULTIPLIER: Final = 2
_EXPONENTIAL_BEAN: Final = "exponentialRetryPolicy"
#: Apache's: the exponent grows no further.
_EXPONENT_MAX: Final = 32
#: Policies in a store may say anything. What is beyond counts as this: retention is over long before, and clients take
#: nanoseconds of 64 bits.
_INTERVAL_MOST_MS: Final = 100 * 365 * 86_400_000
_MULTIPLIER_MOST: Final = 1_000
_LISTED_MOST: Final = 1_024


def intervals_of(policy: Object) -> tuple[int, ...]:
    """Return the milliseconds before the first retry, the second …; the last one repeats. None: by delay level.

    A policy that is not one of Apache's, or not well formed, counts as none.
    """
    if policy.get("type", "CUSTOMIZED") == "CUSTOMIZED":
        return _customized(policy.get("customizedRetryPolicy"))
    growing = exponential_of(policy) if isinstance(policy.get(_EXPONENTIAL_BEAN), dict) else None
    return () if growing is None else _grown(*growing)


def announced_intervals_of(policy: Object) -> tuple[int, ...]:
    """Return what clients of `apache.rocketmq.v2` make of POLICY.

    As `intervals_of`, but they use all of a list, and an exponential policy that says nothing is one to them.
    """
    if policy.get("type", "CUSTOMIZED") == "CUSTOMIZED":
        return _listed(policy.get("customizedRetryPolicy"))
    growing = exponential_of(policy)
    return () if growing is None else _grown(*growing)


def _customized(bean: object) -> tuple[int, ...]:
    intervals = _listed(bean)
    return intervals[_UNUSED:] or intervals[-1:]


def _listed(bean: object) -> tuple[int, ...]:
    listed = bean.get("next") if isinstance(bean, dict) else None
    if not isinstance(listed, list):
        return ()
    intervals = tuple(_natural(value, -1, _INTERVAL_MOST_MS) for value in listed[:_LISTED_MOST])
    return () if -1 in intervals else intervals


def exponential_of(policy: Object) -> tuple[int, int, int] | None:
    """Return the first and the longest interval of an exponential POLICY, ms, and its multiplier; None for another.

    What it does not say is Apache's default.
    """
    if policy.get("type") != "EXPONENTIAL":
        return None
    said = policy.get(_EXPONENTIAL_BEAN)
    bean = said if isinstance(said, dict) else {}
    initial = _natural(bean.get("initial"), _INITIAL_MS, _INTERVAL_MOST_MS)
    longest = _natural(bean.get("max"), _LONGEST_MS, _INTERVAL_MOST_MS)
    return initial, longest, _natural(bean.get("multiplier"), _MULTIPLIER, _MULTIPLIER_MOST)


def _grown(initial: int, longest: int, multiplier: int) -> tuple[int, ...]:
    intervals: list[int] = []
    for exponent in range(_EXPONENT_MAX + 1):
        interval = min(longest, initial * multiplier**exponent)
        if intervals and (interval == intervals[-1] == longest or multiplier == 1):
            break
        intervals.append(interval)
    return tuple(intervals)


def _natural(value: object, default: int, most: int) -> int:
    """Return VALUE if it is a whole number, not negative, but MOST for a larger one; or else DEFAULT."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return default
    return min(value, most)


def policy_of(intervals_ms: Sequence[int]) -> Object:
    """Return the policy that keeps INTERVALS_MS; none: the default, by delay level."""
    if not intervals_ms:
        return {"type": "CUSTOMIZED"}
    listed: list[Json] = [*[intervals_ms[0]] * _UNUSED, *intervals_ms]
    return {"customizedRetryPolicy": {"next": listed}, "type": "CUSTOMIZED"}


def changed_policy(
    group: str, existing: Object, intervals_ms: Sequence[int], *, longest_ms: int
) -> Object:
    """Return the policy of GROUP once it is to keep INTERVALS_MS: the EXISTING one if it does so already.

    Raises InvalidArgument for more than INTERVALS_MAX, or one outside INTERVAL_LEAST_MS to LONGEST_MS.
    """
    if tuple(intervals_ms) == intervals_of(existing):
        return existing
    if len(intervals_ms) > INTERVALS_MAX:
        raise errors.InvalidArgument(
            f"group {group!r}: {len(intervals_ms)} retry intervals, the limit is {INTERVALS_MAX}:"
            " the last one repeats, so list the different ones",
            field="retry_intervals_ms",
            limit=INTERVALS_MAX,
            value=len(intervals_ms),
        )
    for interval_ms in intervals_ms:
        if not INTERVAL_LEAST_MS <= interval_ms <= longest_ms:
            raise errors.InvalidArgument(
                f"group {group!r}: a retry interval is {interval_ms} ms, must be"
                f" {format_duration(INTERVAL_LEAST_MS)} to {format_duration(longest_ms)}",
                field="retry_intervals_ms",
                limit=longest_ms,
                value=interval_ms,
            )
    return policy_of(intervals_ms)
