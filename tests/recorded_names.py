"""The topics and groups that recordings of Apache RocketMQ name, as they were there when it answered.

The fixtures' README has the meaning of the names. They follow a prefix, by which recordings can share a broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from pocketmq.broker.topics import TYPE_ATTRIBUTE
from pocketmq.store.format.state_tables import (
    GroupConfig,
    GroupTable,
    TopicConfig,
    TopicTable,
    render_groups,
    render_topics,
)
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

#: By the name behind the prefix: type, queues, permission. Others: no type, two queues, to be read and written.
_TOPICS: Final = {
    "normal": ("NORMAL", 4, 6),
    "fifo": ("FIFO", 4, 6),
    "delay": ("DELAY", 4, 6),
    "recall": ("DELAY", 4, 6),
    "tx": ("TRANSACTION", 4, 6),
    "tx2": ("TRANSACTION", 4, 6),
    "mixed": ("MIXED", 4, 6),
    "untyped": ("", 2, 6),
    "lite": ("LITE", 1, 6),
    "priority": ("PRIORITY", 8, 6),
    "one": ("NORMAL", 1, 6),
    "order": ("FIFO", 1, 6),
    "readonly": ("", 2, 4),
    "writeonly": ("", 2, 2),
}
_OTHER: Final = ("NORMAL", 2, 6)
_MISSING: Final = ("nowhere", "nogroup")


def save_tables(
    store: str, topics: Mapping[str, TopicConfig], groups: Mapping[str, GroupConfig]
) -> None:
    """Write down TOPICS and GROUPS as those of the broker of STORE, a folder."""
    for name, text in (
        ("topics.json", render_topics(TopicTable(topics=dict(topics)))),
        ("subscriptionGroup.json", render_groups(GroupTable(groups=dict(groups)))),
    ):
        StateFile(OsDisk(), store, name).save(text)


def named_topics(prefix: str, names: Iterable[str]) -> dict[str, TopicConfig]:
    """Return those of the topics NAMES that begin with PREFIX and exist."""
    made = {}
    for name in _own(prefix, names):
        kind, queues, permission = _TOPICS.get(name.removeprefix(prefix), _OTHER)
        made[name] = topic(name, kind, queues, permission)
    return made


def topic(name: str, kind: str, queues: int, permission: int = 6) -> TopicConfig:
    """Return a topic of type KIND; "" for one that does not say."""
    return TopicConfig(
        name=name,
        read_queues=queues,
        write_queues=queues,
        permission=permission,
        attributes={TYPE_ATTRIBUTE: kind} if kind else {},
    )


def named_groups(prefix: str, names: Iterable[str]) -> dict[str, GroupConfig]:
    """Return those of the groups NAMES that begin with PREFIX and exist."""
    lite = {"lite.bind.topic": f"{prefix}lite"}
    special = {
        "orderly": GroupConfig(name="", consume_message_orderly=True),
        "disabled": GroupConfig(name="", consume_enable=False),
        "once": GroupConfig(name="", retry_times_max=1),
        "exp": GroupConfig(name="", retry_policy={"type": "EXPONENTIAL"}),
        "liteg": GroupConfig(name="", attributes=lite),
        "litex": GroupConfig(name="", attributes=lite | {"lite.sub.model": "Exclusive"}),
        "liteq": GroupConfig(name="", attributes=lite | {"lite.sub.client.quota": "2"}),
    }
    plain = GroupConfig(name="")
    return {
        name: replace(special.get(name.removeprefix(prefix), plain), name=name)
        for name in _own(prefix, names)
    }


def _own(prefix: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(prefix) and not name.endswith(_MISSING))
