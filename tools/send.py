"""`pocketmq send`: messages from arguments, or a message a line from standard input; and `pocketmq recall`.

Lines are sent as they come: what stands ready is one batch, so a pipe from a file goes at full speed and one from
`tail -f` without delay. A receipt is printed when the broker has acknowledged; if a message fails the command ends
with the error, and what was printed before is stored.

A delayed message is told by when it is due and, if it has a time of its own, the handle for `pocketmq recall`, which
takes it back before that. Exit code 3: no such message waits there (any more), 5: it is due already.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final, Protocol

import click

from ..client import Message, Producer, Receipt
from ..client.delivery_time import DELAY_LEVEL_MAX, DELAY_LEVELS_DEFAULT
from ..client.message import PRIORITY_MAX
from ..client.producing.receipt import Acks
from ..proto.errors import InvalidArgument
from .completion import topic_names
from .instants import instant_of, local_now
from .options import NUMBER, json_option, nameserver_option
from .output import instant, print_json

_READ_SIZE: Final = 1 << 20


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("bodies", nargs=-1, metavar="[BODY]…")
@click.option(
    "--stdin",
    "from_stdin",
    is_flag=True,
    help="Send each line of standard input; empty lines are left out.",
)
@click.option("--key", "keys", multiple=True, help="A word to look them up by; may be repeated.")
@click.option("--tag", help="A word that consumers may filter by.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of your own; may be repeated.",
)
@click.option(
    "--sharding-key",
    metavar="WORD",
    help="Keep the order of all messages with this word: they go to one queue.",
)
@click.option(
    "--priority",
    type=click.IntRange(0, PRIORITY_MAX),
    metavar="N",
    help="Priority from 0 on: chooses queue N. Consumers of a topic of type PRIORITY get high queues first.",
)
@click.option("--queue", type=NUMBER, help="Number of the queue.  [default: in turn]")
@click.option(
    "--delay",
    metavar="LENGTH",
    help="Deliver so long after the broker took it: 500ms, 90s, 2h30m, 3d.",
)
@click.option(
    "--at",
    metavar="TIME",
    help="Deliver then: 2026-12-24T18:00:00, with Z or +01:00 if it is not this machine's local time; "
    "or 18:00, the next time that local clocks show it.",
)
@click.option(
    "--level",
    "--delay-level",
    "delay_level",
    type=click.IntRange(0, DELAY_LEVEL_MAX),
    default=0,
    metavar="N",
    help="Deliver after the broker's delay level N, by default 1 to 18: 1 is 1 s, 18 is 2 h. Above the broker's last "
    "level: after that one. Cannot be recalled.",
)
@click.option(
    "--acks",
    type=click.Choice(["none", "memory", "disk", "replicas"]),
    help="Wait until they are in memory, on the device, on the replicas; none: until they have left."
    "  [default: as the broker is set]",
)
@click.option("--disk", "acks", flag_value="disk", help="The same as --acks disk.")
@json_option("a receipt a line")
@nameserver_option
def send(
    topic: str,
    bodies: tuple[str, ...],
    *,
    from_stdin: bool,
    properties: tuple[str, ...],
    acks: Acks | None,
    as_json: bool,
    nameserver: str,
    **parts: Any,
) -> None:
    """Send each BODY to TOPIC as a message of its own."""
    if from_stdin == bool(bodies):
        raise click.UsageError("Give either bodies or --stdin.")
    if parts["delay_level"] > DELAY_LEVELS_DEFAULT:
        click.echo(
            f"pocketmq: --level {parts['delay_level']}: a broker has {DELAY_LEVELS_DEFAULT} levels by default, and uses"
            " its last one for messages above it",
            err=True,
        )
    parts |= _when(**{name: parts.pop(name) for name in ("delay", "at", "delay_level")})
    own = dict(map(_property, properties))
    batches = lines(sys.stdin.buffer) if from_stdin else [[os.fsencode(body) for body in bodies]]
    with Producer(nameserver, acks=acks) as producer:
        for batch in batches:
            messages = [Message(topic, body, properties=own, **parts) for body in batch]
            _print_receipts(producer.send_many(messages), as_json)


def _when(delay: str | None, at: str | None, delay_level: int) -> dict[str, Any]:
    """Return the arguments of a message that the options ask for."""
    if (delay is not None) + (at is not None) + bool(delay_level) > 1:
        raise click.UsageError("Give one of --delay, --at and --level.")
    deliver_at = None if at is None else instant_of(at, local_now())
    return {"delay": delay, "deliver_at": deliver_at, "delay_level": delay_level}


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InvalidArgument(f"--property {text}: write NAME=VALUE", field="property")
    return name, value


class _Pipe(Protocol):
    def read1(self, size: int, /) -> bytes: ...


def lines(pipe: _Pipe | BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines of PIPE that are not empty, as many at once as stand ready; the last needs no end."""
    rest = b""
    while data := pipe.read1(_READ_SIZE):  # type: ignore[union-attr]  # typeshed gives it to the buffered classes only
        *whole, rest = (rest + data).split(b"\n")
        if batch := [line for line in map(_without_return, whole) if line]:
            yield batch
    if rest := _without_return(rest):
        yield [rest]


def _without_return(line: bytes) -> bytes:
    return line.removesuffix(b"\r")


def _print_receipts(receipts: Iterable[Receipt], as_json: bool) -> None:
    for receipt in receipts:
        if as_json:
            print_json(_document(receipt))
        else:
            click.echo(f"{receipt.message_id}  {_told(receipt)}")
    sys.stdout.flush()


def _told(receipt: Receipt) -> str:
    place = f"queue {receipt.queue} of {receipt.broker}"
    if not receipt.due_ms:
        return f"{place}, offset {receipt.queue_offset}"
    handle = f", recall handle {receipt.recall_handle}" if receipt.recall_handle else ""
    return f"{place}, due {instant(receipt.due_ms)}{handle}"


def _document(receipt: Receipt) -> dict[str, Any]:
    return {
        "topic": receipt.topic,
        "broker": receipt.broker,
        "queue": receipt.queue,
        "queue_offset": receipt.queue_offset,
        "log_offset": receipt.log_offset,
        "message_id": receipt.message_id,
        "offset_message_id": receipt.offset_message_id if receipt.store_host else None,
        "durability": receipt.durability,
        "stored_ms": receipt.store_timestamp_ms,
        "due_ms": receipt.due_ms or None,
        "recall_handle": receipt.recall_handle or None,
    }


@click.command()
@click.argument("handle")
@json_option("an object")
@nameserver_option
def recall(handle: str, *, as_json: bool, nameserver: str) -> None:
    """Take back the delayed message of HANDLE, which its receipt told, before it is due."""
    with Producer(nameserver) as producer:
        message_id = producer.recall(handle)
    if as_json:
        print_json({"message_id": message_id, "recalled": True})
    else:
        click.echo(f"{message_id}  recalled")
