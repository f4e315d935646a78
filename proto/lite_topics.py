"""Names of lite topics: sub-topics of a topic of type LITE, as in Apache RocketMQ 5.5 (RIP-83).

The messages of a lite topic are stored in its parent topic. Its own queue, the *lite queue*, has number 0 of the topic
`%LMQ%$parent$lite`, and its entries point to records of the parent. A name with another `$` is no lite queue.
"""

from __future__ import annotations

from typing import Final

LITE_PREFIX: Final = "%LMQ%$"
_SEPARATOR: Final = "$"
#: The number of every lite queue.
LITE_QUEUE: Final = 0
#: The value of a topic's attribute message.type.
LITE: Final = "LITE"


def lite_queue_name(parent: str, lite_topic: str) -> str:
    """Return the name of the queue of a lite topic."""
    return f"{LITE_PREFIX}{parent}{_SEPARATOR}{lite_topic}"


def split_lite_queue(name: str) -> tuple[str, str] | None:
    """Return parent and lite topic of a lite queue; None if the name is of something else."""
    if not name.startswith(LITE_PREFIX):
        return None
    parent, _, lite_topic = name[len(LITE_PREFIX) :].partition(_SEPARATOR)
    return (parent, lite_topic) if parent and lite_topic and _SEPARATOR not in lite_topic else None
