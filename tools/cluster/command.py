"""`pocketmq cluster`: the brokers that the name server knows, and how each of them is; a group of commands, too."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

import click

from ...client import Admin, BrokerDescription
from ..counted import counted
from ..lazy_group import LazyGroup
from ..options import json_option, nameserver_option
from ..output import instant, print_json, print_pairs

_COMMANDS: Final = {
    "status": ("sets:status", "Show replica sets: who is master, who is in sync, what each has."),
    "init": ("sets:init", "Make a replica set, or the record of one that ZooKeeper has lost."),
    "replicas": ("sets:replicas", "Add replicas to a set, move them, or take them out."),
    "move": ("sets:move", "Hand over to another master, without a loss."),
    "quickstart": ("quickstart:quickstart", "Run a replica set on this machine, for trying."),
    "elect": ("sets:elect", "Have a replica stand for master though others may have more."),
}


@click.group(
    cls=LazyGroup,
    table=_COMMANDS,
    package=__package__,
    title="Replica sets",
    invoke_without_command=True,
)
@json_option("a broker a line")
@nameserver_option
@click.pass_context
def cluster(context: click.Context, *, as_json: bool, nameserver: str) -> None:
    """Show every broker: where it is, what its store holds, what waits, whether it takes messages."""
    if context.invoked_subcommand is not None:
        return
    with Admin(nameserver) as admin:
        brokers = admin.brokers()
    for at, broker in enumerate(brokers):
        if as_json:
            print_json(_document(broker))
            continue
        if at:
            click.echo()
        _print(broker)


def _document(broker: BrokerDescription) -> dict[str, Any]:
    recovery = json.loads(broker.recovery) if broker.recovery else None
    return asdict(broker) | {"recovery": recovery}


def _print(broker: BrokerDescription) -> None:
    behind = broker.max_log_offset - broker.flushed_offset
    print_pairs(
        {
            "broker": f"{broker.broker_name} of {broker.cluster}, id {broker.broker_id}, {broker.address}",
            "version": broker.version,
            "started": instant(broker.started_ms),
            **({"clock": f"virtual, at {instant(broker.now_ms)}"} if broker.virtual_clock else {}),
            **(
                {"replicas": f"{broker.in_sync} in sync, epoch {broker.epoch}"}
                if broker.epoch
                else {}
            ),
            "writable": "yes" if broker.writable else f"no: {broker.not_writable_because}",
            "store": broker.store_path,
            "log": f"{broker.min_log_offset:,} to {broker.max_log_offset:,}, {behind:,} bytes not on the device yet",
            "waiting": f"{counted(broker.delayed_waiting, 'delayed message')},"
            f" {counted(broker.transactions_open, 'open transaction')}",
            "disk used": f"{broker.disk_used_ratio:.1%}",
            "memory": f"{broker.rss_bytes / 1e6:.0f} MB",
            "CPU time": f"{broker.cpu_seconds:.1f} s",
        }
    )
