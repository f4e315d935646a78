"""`pocketmq spark …`: jobs over many stores. The modules of a job are imported when it runs."""

from __future__ import annotations

from typing import Final

import click

from ...lazy_group import LazyGroup

#: Job, (module and object, help text).
_VERBS: Final[dict[str, tuple[str, str]]] = {
    "lag": ("lag_command:lag", "Show the lag of every consumer group and its cause."),
    "audit": ("commands:audit", "Check log, queues, index and CRCs of stores."),
    "dead-letters": ("commands:dead_letters", "List the dead letters of all groups."),
    "tags": ("commands:tags", "Count messages and bytes by topic and tag."),
    "keys": ("commands:keys", "Find the most frequent keys."),
    "rates": ("commands:rates", "Count messages and bytes by topic and minute."),
    "export": ("commands:export", "Write messages to Parquet, by topic and day."),
    "replay": ("commands:replay", "Send stored messages to a topic again."),
}


@click.group(cls=LazyGroup, sections={"Commands": _VERBS}, package=__package__)
def spark() -> None:
    """Run Apache Spark jobs on stores.

    Each job is also a function that returns a DataFrame: see pocketmq.tools.spark.jobs. Needs the extra `spark`, and
    Java 17 or newer (the extra `jre` has one).
    """
