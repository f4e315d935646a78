"""Removes from histories of messages what a user may not see: events of other groups and topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic

_NOT_SHOWN: Final = "not shown: it is about a group that you may not see"


def visible_history(
    story: dict[str, Any], sees_topic: Callable[[str], bool], sees_group: Callable[[str], bool]
) -> dict[str, Any]:
    """Return STORY, a document, without events of topics and groups that the user may not see, and their number."""
    hidden: set[str] = set()

    def is_seen(row: dict[str, Any]) -> bool:
        group, topic = row["group"], row["topic"]
        names = {group} if group and not sees_group(group) else set()
        if topic and not is_system_topic(topic) and not sees_topic(topic):
            names |= {topic, topic.removeprefix(RETRY_PREFIX).removeprefix(DEAD_LETTER_PREFIX)}
        hidden.update(names)
        return not names

    def shown(text: str) -> str:
        return _NOT_SHOWN if any(name in text for name in hidden) else text

    events = [row for row in story["events"] if is_seen(row)]
    groups = [row for row in story["groups"] if is_seen(row)]
    left_out = len(story["events"]) + len(story["groups"]) - len(events) - len(groups)
    if not left_out:
        return story
    note = f"left out {left_out} events and groups: this user may not see their groups"
    return story | {
        "conclusion": shown(story["conclusion"]),
        "events": [row | {"text": shown(row["text"])} for row in events],
        "groups": [row | {"text": shown(row["text"])} for row in groups],
        "notes": [*map(shown, story["notes"]), note],
        "left_out": left_out,
    }
