"""The consumer groups of one broker: `config/subscriptionGroup.json` in memory.

A group is made by an administrator, or the first time that it commits an offset. Every change is kept at once
(kept_table.py).
Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ..proto.errors import GroupNotFound, InvalidArgument, InvalidName, Overloaded, StoreError
from ..proto.topics import check_group
from ..store.format.state_tables import GROUPS, GroupConfig
from ..store.kept_table import KeptTable
from ..store.state_files import StateFile
from .config import BrokerConfig
from .retry_policy import changed_policy

logger = logging.getLogger(__name__)

_RETRIES_MAX = 1_000_000
_RETRY_QUEUES_MAX = 1024
#: The attribute, our own, that says what becomes of members that want different things. Apache's brokers keep it.
SUBSCRIPTION_CHECK: Final = "pocketmq.subscription.check"
REFUSE: Final = "refuse"
WARN: Final = "warn"
#: The broker's own groups: their offsets say how far transactions and dead letters are done.
_OWN_PREFIX = "CID_RMQ_SYS_"


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
