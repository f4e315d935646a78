"""The consumer groups of one broker: `config/subscriptionGroup.json` in memory; and how long failed messages wait.

A group is made by an administrator, or the first time that it commits an offset. Every change is kept at once
(kept_table.py). Not thread-safe: the event loop owns it.

A failed message waits before it comes again as its group's `groupRetryPolicy`, Apache's, says. A retry is counted by
the reconsume times that its message had when it failed: 0 for the first retry.

policy in subscriptionGroup.json                        retry with reconsume times r waits
CUSTOMIZED without a list (every group's default)       delay level 3 + r
CUSTOMIZED with `customizedRetryPolicy.next`            next[r + 2], or the last one
EXPONENTIAL                                             initial × multiplier ** r, at most max

That is what Apache's own classes work out of them, including the two leading entries of a list which no retry ever
uses (its list begins with the delay levels 1 and 2). Apache asks the policy for POP consumers alone, and sends messages
of classic ones back by level whatever it says. Here it counts for both: who sets a policy wants it kept. Intervals that
are set here are written with their first one twice in front, so that a Java broker on the same store, and a client
that is handed the bare list, keep the same intervals or longer ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ...proto.duration import format_duration
from ...proto.errors import GroupNotFound, InvalidArgument, InvalidName, Overloaded, StoreError
from ...proto.topics import check_group
from ...store.format.java_json import Json
from ...store.format.state_tables import GROUPS, GroupConfig, Object
from ...store.kept_table import KeptTable
from ...store.state_files import StateFile
from ..config import BrokerConfig

logger = logging.getLogger(__name__)

_RETRIES_MAX = 1_000_000
_RETRY_QUEUES_MAX = 1024
#: The attribute, our own, that says what becomes of members that want different things. Apache's brokers keep it.
SUBSCRIPTION_CHECK: Final = "pocketmq.subscription.check"
REFUSE: Final = "refuse"
WARN: Final = "warn"
#: The broker's own groups: their offsets say how far transactions and dead letters are done.
_OWN_PREFIX = "CID_RMQ_SYS_"
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


class Groups:
    """Groups by name, over FILE."""

    def __init__(self, file: StateFile, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        #: Keeps them: start it and have it tick.
        self.kept = KeptTable(file, GROUPS, now_ms)
        self._groups = self.kept.entries

    def get(self, name: str) -> GroupConfig:
        """Return the group NAME; raise GroupNotFound."""
        group = self._groups.get(name)
        if group is None:
            raise GroupNotFound(
                f"group {name!r} does not exist: create it, or check the name", group=name
            )
        return group

    def is_ordered(self, name: str) -> bool:
        """Is there a group NAME, and does it want messages in order?"""
        group = self._groups.get(name)
        return group is not None and group.consume_message_orderly

    def all(self) -> list[GroupConfig]:
        """Return the groups, by name."""
        return [group for _, group in sorted(self._groups.items())]

    def ensure(self, name: str) -> GroupConfig:
        """Return the group NAME, making it with defaults if there is none.

        Where nothing can be written it is there all the same: reading goes on. It is kept once that can be done.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        try:
            return self.create(GroupConfig(name=name), update=False)
        except StoreError as error:
            logger.warning("group is not kept yet group=%s reason=%s", name, error.message)
            self.kept.put_late(name, group := GroupConfig(name=name))
            return group

    def create(
        self, group: GroupConfig, *, update: bool, retry_intervals_ms: Sequence[int] | None = None
    ) -> GroupConfig:
        """Make GROUP, or change it if it exists; return it. Raises GroupNotFound for an UPDATE of nothing.

        As with Apache's brokers, making a group that exists changes it. RETRY_INTERVALS_MS: how long before the first
        retry, the second …, the last one repeats (empty: by delay level); None leaves its retry policy as it is. Of
        its attributes only SUBSCRIPTION_CHECK is taken.
        """
        check_own_choice(group.name)
        _check_range(group.name, "retry_max_times", group.retry_times_max, -1, _RETRIES_MAX)
        _check_range(group.name, "retry_queues", group.retry_queues, 1, _RETRY_QUEUES_MAX)
        existing = self.get(group.name) if update else self._groups.get(group.name)
        policy = group.retry_policy if existing is None else existing.retry_policy
        if retry_intervals_ms is not None:
            longest_ms = self._config.delay_max_ms
            policy = changed_policy(group.name, policy, retry_intervals_ms, longest_ms=longest_ms)
        if existing is None and len(self._groups) >= self._config.groups_max:
            raise Overloaded(
                f"the broker has {len(self._groups)} groups, the limit is"
                f" {self._config.groups_max}: delete some, or raise broker.groups_max",
                field="groups",
                limit=self._config.groups_max,
            )
        group = replace(
            group if existing is None else existing,
            retry_times_max=group.retry_times_max,
            retry_queues=group.retry_queues,
            retry_policy=policy,
            consume_message_orderly=group.consume_message_orderly,
            consume_enable=group.consume_enable,
            attributes=_attributes(existing, group),
        )
        self.kept.put(group.name, group)
        return group

    def delete(self, name: str) -> None:
        """Forget group NAME; raise GroupNotFound, or InvalidName for one of the broker's own."""
        self.get(name)
        check_own_choice(name)
        self.kept.drop(name)
        logger.info("group deleted group=%s", name)


def subscription_check(group: GroupConfig) -> str:
    """Return what becomes of a member of GROUP that wants something else than the others: REFUSE or WARN."""
    return WARN if is_only_warned(group) else REFUSE


def is_only_warned(group: GroupConfig) -> bool:
    """Does a member of GROUP that wants something else than the others join all the same?"""
    return group.attributes.get(SUBSCRIPTION_CHECK) == WARN


def _attributes(existing: GroupConfig | None, group: GroupConfig) -> dict[str, str]:
    kept = dict(existing.attributes) if existing is not None else {}
    kept.pop(SUBSCRIPTION_CHECK, None)
    check = group.attributes.get(SUBSCRIPTION_CHECK, "")
    if check not in ("", REFUSE, WARN):
        raise InvalidArgument(
            f"group {group.name!r}: subscription_check is {check[:64]!r}, must be {REFUSE!r} or {WARN!r}",
            field="subscription_check",
            value=check,
        )
    # What every group has needs no word.
    return kept | ({SUBSCRIPTION_CHECK: check} if check == WARN else {})


def check_own_choice(name: str) -> None:
    """Raise InvalidName for a NAME that no group may have, or only one of the broker's own."""
    check_group(name)
    if name.startswith(_OWN_PREFIX):
        raise InvalidName(
            f"group {name!r} is the broker's own: choose another name", field="group", value=name
        )


def _check_range(group: str, field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgument(
            f"group {group!r}: {field} is {value}, must be {least} to {most}",
            field=field,
            limit=most,
            value=value,
        )


# --- retry policies, pure


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
    intervals = tuple(_natural(value, -1) for value in listed)
    return () if -1 in intervals else intervals


def exponential_of(policy: Object) -> tuple[int, int, int] | None:
    """Return the first and the longest interval of an exponential POLICY, ms, and its multiplier; None for another.

    What it does not say is Apache's default.
    """
    if policy.get("type") != "EXPONENTIAL":
        return None
    said = policy.get(_EXPONENTIAL_BEAN)
    bean = said if isinstance(said, dict) else {}
    initial = _natural(bean.get("initial"), _INITIAL_MS)
    longest = _natural(bean.get("max"), _LONGEST_MS)
    return initial, longest, _natural(bean.get("multiplier"), _MULTIPLIER)


def _grown(initial: int, longest: int, multiplier: int) -> tuple[int, ...]:
    intervals: list[int] = []
    for exponent in range(_EXPONENT_MAX + 1):
        interval = min(longest, initial * multiplier**exponent)
        if intervals and (interval == intervals[-1] == longest or multiplier == 1):
            break
        intervals.append(interval)
    return tuple(intervals)


def _natural(value: object, default: int) -> int:
    """Return VALUE if it is a whole number, not negative; or else DEFAULT."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_number else default  # type: ignore[return-value]


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
        raise InvalidArgument(
            f"group {group!r}: {len(intervals_ms)} retry intervals, the limit is {INTERVALS_MAX}:"
            " the last one repeats, so list the different ones",
            field="retry_intervals_ms",
            limit=INTERVALS_MAX,
            value=len(intervals_ms),
        )
    for interval_ms in intervals_ms:
        if not INTERVAL_LEAST_MS <= interval_ms <= longest_ms:
            raise InvalidArgument(
                f"group {group!r}: a retry interval is {interval_ms} ms, must be"
                f" {format_duration(INTERVAL_LEAST_MS)} to {format_duration(longest_ms)}",
                field="retry_intervals_ms",
                limit=longest_ms,
                value=interval_ms,
            )
    return policy_of(intervals_ms)
