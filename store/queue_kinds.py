"""Which kind of queues a topic has.

Batch queues have those whose attribute queue.type in topics.json is BatchCQ. Light queues are those of Apache's topics
`%LMQ%name`: their entries point to records of other topics.
"""

from __future__ import annotations

import posixpath
from typing import Final

from .disk import Disk
from .format.state_tables import parse_topics

LIGHT_PREFIX: Final = "%LMQ%"
_ATTRIBUTE: Final = "queue.type"
_BATCH: Final = "BatchCQ"


def batch_topics(disk: Disk, state_folder: str) -> frozenset[str]:
    """Return the topics that topics.json in STATE_FOLDER gives batch queues; none without a readable table.

    Only looks: whoever owns the table says what is wrong with its file, and puts it right.
    """
    for name in ("topics.json", "topics.json.bak"):
        path = posixpath.join(state_folder, name)
        if not disk.exists(path):
            continue
        try:
            topics = parse_topics(disk.read(path).decode()).topics
        except ValueError:
            continue
        return frozenset(
            name for name, topic in topics.items() if topic.attributes.get(_ATTRIBUTE) == _BATCH
        )
    return frozenset()
