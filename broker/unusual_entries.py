"""Unusual entries of topics.json and subscriptionGroup.json: entries that the broker would refuse to create today.

Java brokers and older versions checked names and numbers less. The broker serves such a topic with its numbers brought
into range. It leaves out a topic or group whose name the store cannot contain, and keeps its entry in the file as it
is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from ..proto import errors
from ..proto.topics import check_group, check_new_group, check_new_topic, check_topic
from ..store.format.state_tables import GroupConfig, TopicConfig, UnreadEntry

PERMISSION_MAX: Final = 7
#: Limit of the queues of one topic that are served, whatever the file says; name servers accept no
#: more.
QUEUES_SERVED_MAX: Final = 65_536
#: Characters of a name in a warning.
_SHOWN_MAX: Final = 80


def is_storable(name: str, check: Callable[[str], object] = check_topic) -> bool:
    """Return whether a store can contain a topic NAME (or a group NAME, with its CHECK)."""
    try:
        check(name)
    except errors.InvalidName:
        return False
    return True


def in_range(topic: TopicConfig) -> TopicConfig:
    """Return TOPIC as it is served: numbers are brought into range, texts that calls cannot carry are removed."""
    read_queues, write_queues = (
        min(max(count, 0), QUEUES_SERVED_MAX) for count in (topic.read_queues, topic.write_queues)
    )
    permission = topic.permission & PERMISSION_MAX
    attributes = topic.attributes
    if any(map(_is_not_text, [*attributes, *attributes.values()])):
        attributes = {
            name: value
            for name, value in attributes.items()
            if not (_is_not_text(name) or _is_not_text(value))
        }
    found = (read_queues, write_queues, permission, attributes)
    if found == (topic.read_queues, topic.write_queues, topic.permission, topic.attributes):
        return topic
    return replace(
        topic,
        read_queues=read_queues,
        write_queues=write_queues,
        permission=permission,
        attributes=attributes,
    )


def _is_not_text(value: str) -> bool:
    """Return whether VALUE contains half a surrogate pair, which JSON can express and UTF-8 cannot."""
    return not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value)


def unusual_topics(
    topics: Mapping[str, TopicConfig], unread: Mapping[str, UnreadEntry]
) -> Iterator[str]:
    """Yield a sentence about each of TOPICS that the broker would refuse to create, and about each UNREAD one."""
    yield from _unusual("topic", topics, unread, check_topic, check_new_topic)
    for name, topic in topics.items():
        served = in_range(topic)
        if served != topic and is_storable(name):
            says = (topic.read_queues, topic.write_queues, topic.permission)
            yield (
                f"topic {_shown(name)} is served with {served.read_queues} read queues, {served.write_queues} write"
                f" queues and permission {served.permission}: its entry says {says}"
            )


def unusual_groups(
    groups: Mapping[str, GroupConfig], unread: Mapping[str, UnreadEntry]
) -> Iterator[str]:
    """Yield a sentence about each of GROUPS that the broker would refuse to create, and about each UNREAD one."""
    yield from _unusual("group", groups, unread, check_group, check_new_group)


def _unusual(
    what: str,
    names: Iterable[str],
    unread: Mapping[str, UnreadEntry],
    check: Callable[[str], object],
    check_new: Callable[[str], object],
) -> Iterator[str]:
    for name in names:
        try:
            check_new(name)
        except errors.InvalidName as error:
            kept = "is served" if is_storable(name, check) else "is left out"
            yield f"{what} {_shown(name)} {kept}, the broker would refuse this name today: {error.message}"
    for name, one in unread.items():
        yield f"{what} {_shown(name)} is left out, its entry cannot be read: {one.reason}"


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN_MAX else f"{name[:_SHOWN_MAX]!r}…"
