"""`pocketmq replicas`: the commands for replica sets in ZooKeeper."""

from __future__ import annotations

from typing import Final

import click

from ..lazy_group import LazyGroup

_COMMANDS: Final = {
    "status": (
        "status:status",
        "Show replica sets: the master, the replicas in sync, the log of each.",
    ),
    "init": ("init:init", "Create a replica set, or its metadata again after ZooKeeper lost it."),
    "change": ("change:change", "Add replicas to a set, change their addresses, or remove them."),
    "transfer": ("transfer:transfer", "Make another replica the master, without a loss."),
    "force-elect": (
        "force_elect:force_elect",
        "Make a replica the master although others may have more records.",
    ),
    "quickstart": ("quickstart:quickstart", "Run a replica set on this machine, to try one."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS}, package=__package__)
def replicas() -> None:
    """Create, show and change replica sets, and choose their master."""
