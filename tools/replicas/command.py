"""`pocketmq replicas`: the commands for replica sets in ZooKeeper."""

from __future__ import annotations

from typing import Final

import click

from ..lazy_group import LazyGroup

_COMMANDS: Final = {
    "status": (
        "status:status",
        "Show replica sets: master, replicas in sync, logs.",
    ),
    "init": ("init:init", "Create the metadata of a replica set in ZooKeeper."),
    "change": ("change:change", "Add replicas to a set, change their addresses, or remove them."),
    "transfer": ("transfer:transfer", "Make another replica the master, without loss."),
    "force-elect": (
        "force_elect:force_elect",
        "Make a replica the master, even if that loses records.",
    ),
    "quickstart": ("quickstart:quickstart", "Run a replica set on this machine, to try one."),
}


@click.group(cls=LazyGroup, sections={"Commands": _COMMANDS}, package=__package__)
def replicas() -> None:
    """Create, show and change replica sets; change their master."""
