"""`pocketmq brokers`: the brokers that the name servers know, and the state of each."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from ..client import Admin, BrokerDescription
from .counted import counted
from .options import json_option, nameserver_option
from .output import instant, print_json, print_pairs


@click.command()
@json_option("one broker per line")
@nameserver_option
def brokers(*, as_json: bool, nameserver: str) -> None:
    """Show every broker and its state.

    Prints its address and store, how many messages wait in it, and whether it accepts messages.
    """
    with Admin(nameserver) as admin:
        found = admin.brokers()
    for at, broker in enumerate(found):
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
            "version": f"{broker.version} ({broker.code})" if broker.code else broker.version,
            "started": instant(broker.started_ms),
            **({"clock": f"virtual, at {instant(broker.now_ms)}"} if broker.virtual_clock else {}),
            **(
                {"replicas": f"{broker.in_sync} in sync, epoch {broker.epoch}"}
                if broker.epoch
                else {}
            ),
            "writable": "yes" if broker.writable else f"no: {broker.not_writable_because}",
            "store": broker.store_path,
            "log": f"{broker.min_log_offset:,} to {broker.max_log_offset:,}, {behind:,} bytes not on disk yet",
            "waiting": f"{counted(broker.delayed_waiting, 'delayed message')},"
            f" {counted(broker.transactions_open, 'open transaction')}",
            "disk used": f"{broker.disk_used_ratio:.1%}",
            "memory": f"{broker.rss_bytes / 1e6:.0f} MB",
            "CPU time": f"{broker.cpu_seconds:.1f} s",
        }
    )
