"""`pocketmq spark …`: jobs over the stores of a fleet. What a verb needs is imported when it runs."""

from __future__ import annotations

from typing import Final

import click

from ...lazy_group import LazyGroup

#: Verb, (module and object, what it does).
_VERBS: Final[dict[str, tuple[str, str]]] = {
    "lag": ("lag_command:lag", "Tell how far every consumer group is behind, and why."),
    "audit": ("commands:audit", "Hold log, queues, index and CRCs of stores together."),
    "dead-letters": ("commands:dead_letters", "List the dead letters of all groups."),
    "tags": ("commands:tags", "Count messages and bytes by topic and tag."),
    "keys": ("commands:keys", "Find the most frequent keys."),
    "rates": ("commands:rates", "Count messages and bytes by topic and minute."),
    "export": ("commands:export", "Write messages to Parquet, by topic and day."),
    "replay": ("commands:replay", "Send stored messages to a topic again."),
}


@click.group(cls=LazyGroup, sections={"Commands": _VERBS}, package=__package__)
def spark() -> None:
    """Run jobs over the stores of a fleet, on Apache Spark.

    Each is a function as well, which returns a DataFrame: pocketmq.tools.spark.jobs. Needs the extra `spark`,
    and Java 17 or newer (the extra `jre` brings one).
    """
