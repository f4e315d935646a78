"""Names of topics and groups on a command line, next to those that stores and brokers know.

An unknown name is an error (exit code 3), so that a script does not treat a misspelt name as success. A
pattern, such as `orders*`, may match nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...proto.errors import GroupNotFound, TopicNotFound

if TYPE_CHECKING:
    from ...client import Admin
    from ...store.opened_store import OpenedStore

#: Characters that make a name a pattern (fnmatch).
_PATTERN: Final = frozenset("*?[")


@dataclass(slots=True)
class KnownNames:
    """The topics and groups that some stores or brokers know."""

    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)

    def add_store(self, store: OpenedStore) -> None:
        """Add the names of STORE: from its tables, its queues and its committed offsets."""
        committed = list(store.committed_offsets())
        self.topics.update(store.topics, (one.topic for one in store.queues()))
        self.topics.update(one.topic for one in committed)
        self.groups.update(store.groups, (one.group for one in committed))

    def add_cluster(self, admin: Admin) -> None:
        """Add the names that the brokers know which ADMIN reaches."""
        self.topics.update(one.name for one in admin.topics(include_system=True))
        self.groups.update(one.name for one in admin.groups())

    def check(self, *, topics: Iterable[str] = (), groups: Iterable[str] = ()) -> None:
        """Raise TopicNotFound or GroupNotFound for a name among TOPICS and GROUPS that is not known."""
        for group in groups:
            if _is_missing(group, self.groups):
                raise GroupNotFound(f"group {group!r} does not exist: check the name", group=group)
        for topic in topics:
            if _is_missing(topic, self.topics):
                raise TopicNotFound(f"topic {topic!r} does not exist: check the name", topic=topic)


def _is_missing(name: str, known: set[str]) -> bool:
    return name not in known and not _PATTERN & set(name)
