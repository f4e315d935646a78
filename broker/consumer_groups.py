"""The consumer groups of one broker: `config/subscriptionGroup.json` in memory.

An administrator creates a group, or its first commit of an offset does. Every change is stored at once.
Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ..proto import errors
from ..proto.topics import check_group, check_new_group
from ..store.file_changes import ChangeTable
from ..store.file_table import FileTable
from ..store.format.state_tables import GROUPS, GroupConfig
from ..store.state_files import StateFile
from .config import BrokerConfig
from .retry_policies import changed_policy
from .topics import check_range
from .unusual_entries import is_storable, unusual_groups

logger = logging.getLogger(__name__)


_RETRIES_MAX = 1_000_000
RETRY_QUEUES_MAX = 1024
#: Attribute for members with inconsistent subscriptions; an extension of PocketMQ. Brokers of
#: Apache keep it.
SUBSCRIPTION_CHECK: Final = "pocketmq.subscription.check"
#: Attributes of RocketMQ that bind a group to the lite topics of a topic.
LITE_ATTRIBUTES: Final = frozenset({"lite.bind.topic", "lite.sub.model"})
#: The default: serve both for subscription_grace_ms, then the newer one only (groups/grace.py).
GRACE: Final = "grace"
REFUSE: Final = "refuse"
WARN: Final = "warn"
SUBSCRIPTION_CHECKS: Final = (GRACE, WARN, REFUSE)
#: Prefix of the broker's own groups: their offsets are the progress of transactions and dead
#: letters.
_OWN_PREFIX = "CID_RMQ_SYS_"


class Groups:
    """Groups by name, stored in FILE and, what changed last, in CHANGES."""

    def __init__(
        self,
        file: StateFile,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        changes: ChangeTable | None = None,
    ) -> None:
        self._config = config
        #: Stores the entries: start it, and call its tick.
        self.table = FileTable(file, GROUPS, now_ms, self._serve, changes)
        #: The valid groups of the entries.
        self._groups: dict[str, GroupConfig] = {}
        for name in self.table.entries:
            self._serve(name)

    def _serve(self, name: str) -> None:
        """Update what is served of group NAME after a change of its entry."""
        entry = self.table.entries.get(name)
        if entry is None or not is_storable(name, check_group):
            self._groups.pop(name, None)
        else:
            self._groups[name] = entry

    def unusual(self) -> list[str]:
        """Return a sentence about each group that is not served, or whose settings the broker would refuse today."""
        return list(unusual_groups(self.table.entries, self.table.unread))

    def find(self, name: str) -> GroupConfig | None:
        """Return the group NAME; None if there is none."""
        return self._groups.get(name)

    def get(self, name: str) -> GroupConfig:
        """Return the group NAME; raise GroupNotFound."""
        group = self._groups.get(name)
        if group is None:
            raise errors.GroupNotFound(
                f"group {name!r} does not exist: create it, or check the name", group=name
            )
        return group

    def check_consuming(self, name: str) -> None:
        """Raise NotReadable if group NAME exists and its consumption is switched off."""
        group = self._groups.get(name)
        if group is not None and not group.consume_enable:
            raise errors.NotReadable(
                f"group {name!r}: consumption is switched off; switch it on with"
                f" `pocketmq group update {name} --consume`, or use another group",
                group=name,
            )

    def is_ordered(self, name: str) -> bool:
        """Return whether group NAME exists and consumes in order."""
        group = self._groups.get(name)
        return group is not None and group.consume_message_orderly

    def all(self) -> list[GroupConfig]:
        """Return all groups, sorted by name."""
        return [group for _, group in sorted(self._groups.items())]

    def ensure(self, name: str) -> GroupConfig:
        """Return the group NAME; create it with defaults if there is none.

        If the disk refuses writes, the group exists in memory only, so that reading continues. It is stored later.
        """
        group = self._groups.get(name)
        if group is not None:
            return group
        try:
            return self.create(GroupConfig(name=name), update=False)
        except errors.StoreError as error:
            logger.warning("group not stored yet group=%s reason=%s", name, error.message)
            self.table.put_late(name, group := GroupConfig(name=name))
            return group

    def create(
        self, group: GroupConfig, *, update: bool, retry_intervals_ms: Sequence[int] | None = None
    ) -> GroupConfig:
        """Create GROUP, or with UPDATE change the existing group; return its new state.

        Args:
            group: The settings. Of its attributes, only SUBSCRIPTION_CHECK is used, and of a new group those that bind
                it to lite topics.
            update: Change an existing group instead of creating one.
            retry_intervals_ms: Milliseconds before the first retry, the second, and so on; the last one applies to all
                further retries. Empty: by delay level. None: keep the retry policy.

        Raises:
            GroupExists: A group of this name exists, and UPDATE is false.
            GroupNotFound: There is no such group, and UPDATE is true.
        """
        check_own_choice(group.name)
        check_range(
            f"group {group.name!r}", "retry_max_times", group.retry_times_max, -1, _RETRIES_MAX
        )
        check_range(
            f"group {group.name!r}", "retry_queues", group.retry_queues, 1, RETRY_QUEUES_MAX
        )
        existing = self.get(group.name) if update else self._groups.get(group.name)
        if existing is not None and not update:
            raise errors.GroupExists(
                f"group {group.name!r} exists: update it, or choose another name", group=group.name
            )
        if existing is None:
            check_new_group(group.name)
        policy = group.retry_policy if existing is None else existing.retry_policy
        if retry_intervals_ms is not None:
            longest_ms = self._config.delay_max_ms
            policy = changed_policy(group.name, policy, retry_intervals_ms, longest_ms=longest_ms)
        if existing is None and len(self._groups) >= self._config.groups_max:
            raise errors.Overloaded(
                f"the broker has {len(self._groups)} groups, the limit is"
                f" {self._config.groups_max} (broker.groups_max): delete groups, or raise the limit",
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
        self.table.put(group.name, group)
        return group

    def delete(self, name: str) -> None:
        """Delete group NAME; raise GroupNotFound, or InvalidName for one of the broker's own groups."""
        self.get(name)
        check_own_choice(name)
        self.table.drop(name)
        logger.info("group deleted group=%s", name)


def subscription_check(group: GroupConfig) -> str:
    """Return what happens to members of GROUP with inconsistent subscriptions: one of SUBSCRIPTION_CHECKS."""
    said = group.attributes.get(SUBSCRIPTION_CHECK, "")
    return said if said in SUBSCRIPTION_CHECKS else GRACE


def _attributes(existing: GroupConfig | None, group: GroupConfig) -> dict[str, str]:
    kept = dict(existing.attributes) if existing is not None else {}
    if existing is None:
        kept = {name: group.attributes[name] for name in LITE_ATTRIBUTES & group.attributes.keys()}
    kept.pop(SUBSCRIPTION_CHECK, None)
    check = group.attributes.get(SUBSCRIPTION_CHECK) or GRACE
    if check not in SUBSCRIPTION_CHECKS:
        raise errors.InvalidArgument(
            f"group {group.name!r}: subscription_check is {check[:64]!r}, must be {GRACE!r}, {WARN!r} or {REFUSE!r}",
            field="subscription_check",
            value=check,
        )
    # The default is not stored.
    return kept | ({SUBSCRIPTION_CHECK: check} if check != GRACE else {})


def check_own_choice(name: str) -> None:
    """Raise InvalidName if no group may have the NAME, or only the broker's own groups."""
    check_group(name)
    if name.startswith(_OWN_PREFIX):
        raise errors.InvalidName(
            f"group {name!r} is the broker's own: choose another name", field="group", value=name
        )
