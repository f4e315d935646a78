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

#: Leading entries of RocketMQ's lists, which no retry uses.
_UNUSED: Final = 2
#: RocketMQ's defaults of an exponential policy.
_INITIAL_MS: Final = 5_000
_LONGEST_MS: Final = 7_200_000
_MULTIPLIER: Final = 2
_EXPONENTIAL_BEAN: Final = "exponentialRetryPolicy"
#: RocketMQ's limit of the exponent.
_EXPONENT_MAX: Final = 32
#: Limit of intervals in a store's policies, which may contain any number. Retention is always
#: shorter, and clients need nanoseconds in 64 bits.
_INTERVAL_MOST_MS: Final = 100 * 365 * 86_400_000
_MULTIPLIER_MOST: Final = 1_000
_LISTED_MOST: Final = 1_024


def retry_intervals_of(policy: Object) -> tuple[int, ...]:
    """Return the milliseconds before the first retry, the second, and so on; the last one applies to all further
    retries.

    Empty: by delay level, also for a policy that is malformed or not one of RocketMQ's.
    """
    if policy.get("type", "CUSTOMIZED") == "CUSTOMIZED":
        return _customized(policy.get("customizedRetryPolicy"))
    growing = exponential_of(policy) if isinstance(policy.get(_EXPONENTIAL_BEAN), dict) else None
    return () if growing is None else _grown(*growing)


def announced_retry_intervals_of(policy: Object) -> tuple[int, ...]:
    """Return the intervals that clients of `apache.rocketmq.v2` compute from POLICY.

    They differ from `retry_intervals_of`: clients use all entries of a list, and know an exponential policy without
    parameters.
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
    """Return (first interval in ms, longest interval in ms, multiplier) of an exponential POLICY; None for another one.

    Missing values are RocketMQ's defaults.
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
    """Return VALUE if it is a whole number from 0 to MOST, MOST if it is larger, and DEFAULT for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return default
    return min(value, most)


def policy_of(intervals_ms: Sequence[int]) -> Object:
    """Return the policy with INTERVALS_MS; empty: the default policy, by delay level."""
    if not intervals_ms:
        return {"type": "CUSTOMIZED"}
    listed: list[Json] = [*[intervals_ms[0]] * _UNUSED, *intervals_ms]
    return {"customizedRetryPolicy": {"next": listed}, "type": "CUSTOMIZED"}


def changed_policy(
    group: str, existing: Object, intervals_ms: Sequence[int], *, longest_ms: int
) -> Object:
    """Return the policy of GROUP with INTERVALS_MS: the EXISTING one if it has them already.

    Raises InvalidArgument for more than INTERVALS_MAX intervals, or one outside INTERVAL_LEAST_MS to LONGEST_MS.
    """
    if tuple(intervals_ms) == retry_intervals_of(existing):
        return existing
    if len(intervals_ms) > INTERVALS_MAX:
        raise errors.InvalidArgument(
            f"group {group!r}: {len(intervals_ms)} retry intervals, the limit is {INTERVALS_MAX}:"
            " the last one applies to all further retries, so list only the different ones",
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
