"""docs/json-output.md: what `--json` of each verb prints. tests/integration/test_json_fields.py runs the verbs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import click

from pocketmq.tools.cli import cli

from .markdown import code, plain, sentence, table

_PLACE: Final = {
    "topic": "Topic.",
    "broker": "Name of the broker.",
    "queue": "Number of the queue.",
    "queue_offset": "Offset in the queue.",
    "log_offset": "Offset in the commit log.",
    "message_id": "Id that the producer gave the message.",
    "offset_message_id": "Id made of the broker's address and the log offset.",
}
_MESSAGE: Final = {
    **_PLACE,
    "keys": "Keys.",
    "tag": "Tag.",
    "sharding_key": "Sharding key.",
    "priority": "Priority.",
    "born_ms": "When the producer made it.",
    "stored_ms": "When the broker stored it.",
    "due_ms": "Delivery time of a scheduled message.",
    "reconsume_times": "How often it was delivered and failed.",
    "properties": "All properties by name.",
    "body": "Body as text. A body that is not UTF-8 is in `body_base64`.",
}
_GROUP: Final = {
    "name": "Name of the group.",
    "retry_max_times": "Retries before the dead-letter queue.",
    "retry_queues": "Queues of the retry topic.",
    "order": "It consumes in order.",
    "consume_enable": "Consumers may read.",
    "retry_intervals_ms": "Delays of the retries; empty: by delay level.",
    "subscription_check": "`grace`, `warn` or `refuse`.",
    "lite_topic": "Topic whose lite topics it consumes; empty: none.",
    "lite_exclusive": "One client at a time has a lite topic.",
}
_TOPIC: Final = {
    "name": "Name of the topic.",
    "type": "Message type; empty: unspecified.",
    "read_queues": "Queues per broker that consumers read.",
    "write_queues": "Queues per broker that producers write.",
    "permission": "Sum of read 4, write 2, inherit 1.",
    "order": "Its messages are ordered by message group.",
    "attributes": "Attributes by name.",
    "brokers": "Brokers that have the topic.",
}
#: The fields of each verb, by name. A field of an object in a list has a dot.
FIELDS: Final[Mapping[str, Mapping[str, str]]] = {
    "pocketmq send": {
        **_PLACE,
        "durability": "`none`, `memory`, `disk` or `replicas`.",
        "stored_ms": "When the broker stored it.",
        "due_ms": "Delivery time of a scheduled message.",
        "recall_handle": "Handle for `pocketmq recall`.",
    },
    "pocketmq consume": _MESSAGE,
    "pocketmq find": _MESSAGE,
    "pocketmq topic create": _TOPIC,
    "pocketmq topic list": _TOPIC,
    "pocketmq topic describe": {
        **_TOPIC,
        "queues": "One object per queue.",
        "queues.broker": "Name of the broker.",
        "queues.queue": "Number of the queue.",
        "queues.min_offset": "Offset of the oldest message.",
        "queues.max_offset": "Offset after the newest message.",
        "queues.min_store_time_ms": "When the oldest message was stored; −1: empty.",
        "sent": "Messages, bytes, failures and the last time since the brokers started.",
    },
    "pocketmq group create": _GROUP,
    "pocketmq group list": _GROUP,
    "pocketmq group describe": {
        "group": "Name of the group.",
        "coordinator": "Broker that coordinates it.",
        "generation": "Current generation.",
        "leader": "Member that assigns the queues.",
        "strategy": "Allocation strategy.",
        "assigned_by_clients": "Each member computes its own share.",
        "rebalances": "Generations that the coordinator has started.",
        "subscription_check": "`grace`, `warn` or `refuse`.",
        "grace_left_ms": "Time until only the newest subscription is served.",
        "conflicts": "Differences between the subscriptions of members.",
        "lag": "Messages that are not processed, in all queues.",
        "oldest_unread_ms": "When the oldest of them was stored; 0: none.",
        "processed_per_s": "Processed messages per second.",
        "arrived_per_s": "New messages per second.",
        "catches_up_s": "Seconds until the lag is 0.",
        "members": "Members of the group.",
        "clients": "Official clients of the group.",
        "queues": "One object per queue.",
        "queues.topic": "Topic.",
        "queues.broker": "Name of the broker.",
        "queues.queue": "Number of the queue.",
        "queues.offset": "Committed offset.",
        "queues.metadata": "Text that was committed with it.",
        "queues.min_offset": "Offset of the oldest message.",
        "queues.max_offset": "Offset after the newest message.",
        "queues.lag": "Messages that are not processed.",
        "queues.ready": "Of these, messages that can be delivered.",
        "queues.in_flight": "Of these, messages that are delivered and not acknowledged.",
        "queues.oldest_unread_ms": "When the oldest was stored; 0: none.",
        "queues.processed_per_s": "Processed messages per second.",
        "queues.arrived_per_s": "New messages per second.",
        "queues.catches_up_s": "Seconds until the lag is 0.",
        "queues.owner": "Member that has the lease.",
        "queues.assigned_to": "Member that the queue is assigned to.",
        "queues.filtered_count": "Messages that filters skipped.",
        "queues.skipped": "The same by filter.",
        "queues.moves": "Resets by administrators.",
        "queues.lost": "Messages that were skipped because they are damaged or deleted.",
    },
    "pocketmq lag": {
        "broker": "Name of the broker.",
        "topic": "Topic.",
        "queue": "Number of the queue.",
        "group": "Group.",
        "committed_offset": "Committed offset.",
        "min_offset": "Offset of the oldest message.",
        "max_offset": "Offset after the newest message.",
        "lag": "Messages that are not processed.",
        "lag_bytes": "Their bytes.",
        "oldest_unread_age_ms": "Age of the oldest of them.",
        "skipped": "Messages that the group skipped.",
        "verdict": "Verdict; see [consumer lag](consumer-lag.md).",
        "reasons": "Reasons for the verdict, as sentences.",
    },
    "pocketmq brokers": {
        "cluster": "Name of the cluster.",
        "broker_name": "Name of the broker.",
        "broker_id": "Number of the broker; 0 is the master.",
        "address": "Address for clients.",
        "version": "Version of PocketMQ.",
        "started_ms": "When the process started.",
        "min_log_offset": "Start of the commit log.",
        "max_log_offset": "End of the commit log.",
        "flushed_offset": "Everything before is on disk.",
        "dispatched_offset": "Everything before is in the queues.",
        "disk_used_ratio": "Used part of the disk.",
        "store_path": "Folder of the store.",
        "recovery": "What the last recovery found.",
        "rss_bytes": "Resident memory.",
        "cpu_seconds": "Processor time.",
        "writable": "Messages are accepted.",
        "not_writable_because": "Why not.",
        "delayed_waiting": "Scheduled messages that are not due.",
        "transactions_open": "Undecided half messages.",
        "now_ms": "Time of the broker.",
        "virtual_clock": "The clock is virtual.",
        "epoch": "Epoch of the replica set; 0: none.",
        "in_sync": "Replicas in sync; 0: none.",
        "code": "Code that reads batches: `core` or `pure`; empty: the broker does not say.",
    },
    "pocketmq health": {
        "server": "`broker` or `name server`.",
        "address": "Address.",
        "status": "Status of gRPC's health protocol.",
    },
    "pocketmq connections": {
        "server": "Name of the server.",
        "address": "Its address.",
        "totals": "Counters of all connections.",
        "connections": "One object per connection.",
        "connections.id": "Number of the connection.",
        "connections.peer": "Address of the client.",
        "connections.secure": "It uses TLS.",
        "connections.age_ms": "Age.",
        "connections.streams_open": "Open streams.",
        "connections.calls_begun": "Started calls.",
        "connections.calls_succeeded": "Successful calls.",
        "connections.calls_failed": "Failed calls.",
        "connections.bytes_read": "Bytes read.",
        "connections.bytes_written": "Bytes written.",
        "connections.bytes_queued": "Bytes that wait to be written.",
        "connections.user_agent": "Client and version.",
        "connections.last_path": "Last call.",
        "connections.last_call_age_ms": "Age of the last call.",
        "error": "Why the server did not answer.",
    },
    "pocketmq config show": {
        "server": "Name of the server.",
        "address": "Its address.",
        "settings": "One object per setting.",
        "settings.key": "Section and key.",
        "settings.value": "Value.",
        "settings.default": "Default.",
        "settings.origin": "Where the value came from.",
        "settings.live": "It can change without a restart.",
    },
}


def verbs() -> str:
    """Return the verbs that have `--json`, and what each prints."""
    rows = [
        (
            f"[`{name}`](#{name.replace(' ', '-')})" if name in FIELDS else code(name),
            plain(sentence(_printed(text))),
        )
        for name, text in _with_json(cli, "pocketmq")
    ]
    return table(("Verb", "Prints"), rows)


def _printed(help_text: str) -> str:
    """Return what an option `--json` with this HELP_TEXT prints."""
    what = help_text.removeprefix("Print ").removesuffix(", for programs.")
    return what.replace(" a line", " per line").replace(" a look", " per look")


def fields() -> str:
    """Return a section with the fields of each verb."""
    return "\n".join(
        f"### {name}\n\n{table(('Field', 'Meaning'), [(code(one), text) for one, text in listed.items()])}"
        for name, listed in FIELDS.items()
    )


def _with_json(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, info_name=name)
    for one in command.params:
        if isinstance(one, click.Option) and "--json" in one.opts and not command.hidden:
            yield name, one.help or ""
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            if (found := command.get_command(context, inner)) is not None:
                yield from _with_json(found, f"{name} {inner}")
