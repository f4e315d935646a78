"""`pocketmq topic`: create, update, list, describe, delete. Done, and visible to the next call, when they return 0."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from ..client import Admin, QueueDescription, TopicDescription, TopicTraffic
from ..proto.errors import TopicExists
from .completion import topic_names
from .counted import counted
from .hidden_names import warn_of_hidden
from .options import confirm, json_option, nameserver_option, yes_option
from .output import instant, print_json, print_pairs, print_table

_TYPE_NAMES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY")
_TYPES: Final = click.Choice(_TYPE_NAMES, case_sensitive=False)
_METAVAR: Final = "|".join(_TYPE_NAMES)
_QUEUES: Final = click.IntRange(1, 1024)
_MIN_IN_SYNC: Final = click.option(
    "--min-in-sync",
    type=click.IntRange(1, 9),
    help='Replicas that must have a message before acks="replicas" acknowledges it, if more than the set requires.',
)
_PERMISSIONS: Final = {"read": 4, "write": 2, "read-write": 6}


@click.group()
def topic() -> None:
    """Create, update, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=_TYPES,
    metavar=_METAVAR,
    default="NORMAL",
    show_default=True,
    help="Type of its messages.",
)
@click.option("--queues", type=_QUEUES, default=8, show_default=True, help="Queues on each broker.")
@_MIN_IN_SYNC
@click.option("--if-missing", is_flag=True, help="Succeed if the topic exists; do not change it.")
@json_option("the topic")
@nameserver_option
def create(
    name: str,
    *,
    kind: str,
    queues: int,
    min_in_sync: int | None,
    if_missing: bool,
    as_json: bool,
    nameserver: str,
) -> None:
    """Create topic NAME on every broker.

    \b
    Example: pocketmq topic create orders --type FIFO --queues 16

    Exit code 5: the topic exists already.
    """
    with Admin(nameserver) as admin:
        try:
            made = admin.create_topic(
                name, type=kind.upper(), queues=queues, attributes=_attributes(min_in_sync)
            )
            done = "created"
        except TopicExists:
            if not if_missing:
                raise
            made, done = admin.describe_topic(name), "exists"
    _show(made, as_json, done)


@topic.command()
@click.argument("name", shell_complete=topic_names)
@click.option("--type", "kind", type=_TYPES, metavar=_METAVAR, help="Type of its messages.")
@click.option("--queues", type=_QUEUES, help="Queues on each broker, to read and to write.")
@click.option("--read-queues", type=_QUEUES, help="Number of queues to read: 0 to N-1.")
@click.option(
    "--write-queues", type=_QUEUES, help="Number of queues to write: 0 to N-1 get new messages."
)
@click.option("--permission", type=click.Choice(list(_PERMISSIONS)), help="Access of all clients.")
@_MIN_IN_SYNC
@click.option("--force", is_flag=True, help="Remove queues even if they hold unread messages.")
@json_option("the topic")
@nameserver_option
def update(
    name: str,
    *,
    kind: str | None,
    permission: str | None,
    min_in_sync: int | None,
    force: bool,
    as_json: bool,
    nameserver: str,
    **queues: Any,
) -> None:
    """Change the given settings of topic NAME.

    To remove queues, lower --write-queues first. When all messages in the other queues are read, lower --read-queues.

    Exit code 3: the topic does not exist; 5: the removed queues hold unread messages.
    """
    if all(one is None for one in (kind, permission, min_in_sync, *queues.values())):
        raise click.UsageError(
            "Give a setting to change: --type, --queues, --read-queues, --write-queues, --permission or --min-in-sync."
        )
    with Admin(nameserver) as admin:
        made = admin.update_topic(
            name,
            type=kind and kind.upper(),
            permission=None if permission is None else _PERMISSIONS[permission],
            attributes=_attributes(min_in_sync),
            force=force,
            **queues,
        )
    _show(made, as_json, "updated")


def _attributes(min_in_sync: int | None) -> dict[str, str]:
    return {} if min_in_sync is None else {"min_in_sync": str(min_in_sync)}


@topic.command("list")
@click.option("--system", is_flag=True, help="Also list system topics.")
@json_option("one topic per line")
@nameserver_option
def list_topics(*, system: bool, as_json: bool, nameserver: str) -> None:
    """List all topics."""
    with Admin(nameserver) as admin:
        topics = admin.topics(include_system=system)
        warn_of_hidden(topics=admin.hidden_topics())
    if as_json:
        for one in topics:
            print_json(topic_document(one))
        return
    print_table(
        ["topic", "type", "queues", "permission", "brokers"],
        [
            [one.name, one.type or "-", _queue_count(one), _permission(one), " ".join(one.brokers)]
            for one in topics
        ],
    )


@topic.command()
@click.argument("name", shell_complete=topic_names)
@json_option("the topic with its queues")
@nameserver_option
def describe(name: str, *, as_json: bool, nameserver: str) -> None:
    """Show topic NAME, its settings, and the messages in its queues."""
    with Admin(nameserver) as admin:
        one = admin.describe_topic(name)
    if as_json:
        sent = None if one.sent is None else asdict(one.sent)
        print_json(
            topic_document(one) | {"queues": list(map(queue_document, one.queues)), "sent": sent}
        )
        return
    _print(one)
    click.echo()
    print_table(
        ["broker", "queue", "min offset", "max offset", "messages", "oldest"],
        [
            [
                item.queue.broker,
                item.queue.number,
                item.min_offset,
                item.max_offset,
                item.message_count,
                instant(item.min_store_time_ms) if item.min_store_time_ms >= 0 else "-",
            ]
            for item in one.queues
        ],
    )


@topic.command()
@click.argument("name", shell_complete=topic_names)
@yes_option
@nameserver_option
def delete(name: str, *, yes: bool, nameserver: str) -> None:
    """Delete topic NAME and its messages on every broker.

    You cannot undo this.
    """
    with Admin(nameserver) as admin:
        if not yes:
            queues = admin.describe_topic(name).queues
            confirm(
                f"Delete topic {name} with {counted(sum(one.message_count for one in queues), 'message')}?"
            )
        admin.delete_topic(name)
    click.echo(f"topic {name} deleted")


def _show(one: TopicDescription, as_json: bool, done: str) -> None:
    if as_json:
        print_json(topic_document(one))
    else:
        click.echo(
            f"topic {one.name} {done}: {one.type or 'no type'}, {_queues(one)} "
            f"on {' '.join(one.brokers)}"
        )


def _queues(one: TopicDescription) -> str:
    if one.read_queues == one.write_queues:
        return counted(one.write_queues, "queue")
    return f"{_queue_count(one)} queues"


def _queue_count(one: TopicDescription) -> str:
    """Return the number of queues on each broker, or both numbers if those to read and to write differ."""
    if one.read_queues == one.write_queues:
        return str(one.write_queues)
    return f"{one.read_queues} read, {one.write_queues} written"


def _print(one: TopicDescription) -> None:
    print_pairs(
        {
            "topic": one.name,
            "type": one.type or "-",
            "permission": _permission(one),
            "queues": f"{one.write_queues} to write, {one.read_queues} to read, on each broker",
            "messages": f"{sum(item.message_count for item in one.queues):,}",
        }
        | ({"sent": _sent(one.sent)} if one.sent is not None else {})
        | dict(one.attributes)
    )


def _sent(sent: TopicTraffic) -> str:
    last = f", the last at {instant(sent.last_ms)}" if sent.last_ms else ""
    failed = f", {counted(sent.failed, 'send')} failed" if sent.failed else ""
    return f"{counted(sent.messages, 'message')}, {sent.bytes:,} bytes since the brokers started{last}{failed}"


def _permission(one: TopicDescription) -> str:
    by_bits = {bits: name for name, bits in _PERMISSIONS.items()}
    return by_bits.get(one.permission & 6, "none")


def topic_document(one: TopicDescription) -> dict[str, Any]:
    """Return topic ONE as JSON shows it."""
    return {
        "name": one.name,
        "type": one.type,
        "read_queues": one.read_queues,
        "write_queues": one.write_queues,
        "permission": one.permission,
        "order": one.order,
        "attributes": dict(one.attributes),
        "brokers": list(one.brokers),
    }


def queue_document(item: QueueDescription) -> dict[str, Any]:
    """Return a queue as JSON shows it."""
    return {
        "broker": item.queue.broker,
        "queue": item.queue.number,
        "min_offset": item.min_offset,
        "max_offset": item.max_offset,
        "min_store_time_ms": item.min_store_time_ms,
    }
