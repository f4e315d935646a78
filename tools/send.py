"""`pocketmq send`: messages from arguments, or one message per line from standard input; and `pocketmq recall`.

Lines are sent as they arrive: all complete lines that can be read at once are one batch. So a pipe from a file runs at
full speed, and one from `tail -f` without delay. A receipt is printed when the broker has acknowledged the message. If
a message fails, the command ends with the error; the messages of the receipts printed before are stored.
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
@click.option(
    "--key", "keys", metavar="KEY", multiple=True, help="Key to find the messages by. Repeatable."
)
@click.option("--tag", metavar="TAG", help="Tag that consumers can filter by.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Property of your own. Repeatable.",
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
    help="Priority, from 0. In a topic of type PRIORITY, higher ones are delivered first.",
)
@click.option("--queue", type=NUMBER, help="Number of the queue.  [default: all in turn]")
@click.option(
    "--delay",
    metavar="LENGTH",
    help="Deliver this long after the broker accepts the message: 500ms, 90s, 2h30m, 3d.",
)
@click.option(
    "--at",
    metavar="TIME",
    help="Deliver at this time: 2026-12-24T18:00:00, with Z or +01:00 if it is not local time; or 18:00, the next time"
    " that the local clock shows it.",
)
@click.option(
    "--level",
    "--delay-level",
    "delay_level",
    type=click.IntRange(0, DELAY_LEVEL_MAX),
    default=0,
    metavar="N",
    help="Deliver after the broker's delay level N, by default 1 (1 s) to 18 (2 h); above the last level: after that"
    " one. Such a message cannot be recalled.",
)
@click.option(
    "--acks",
    type=click.Choice(["none", "memory", "disk", "replicas"]),
    help="When a message counts as sent: when it left (none), is in the broker's memory, on its disk, or on the"
    " replicas.  [default: as the broker is set]",
)
@click.option("--disk", "acks", flag_value="disk", help="Short for --acks disk.")
@json_option("one receipt per line")
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
    """Send one message per BODY to TOPIC, and print receipts.

    Prints one line per message: its id, broker, queue and offset; for a delayed message when it is due, and the handle
    for `pocketmq recall`.

    \b
    Example: pocketmq send orders '{"item": "book"}' --key 42 --delay 10m
    """
    if from_stdin == bool(bodies):
        raise click.UsageError("Give either bodies or --stdin.")
    if parts["delay_level"] > DELAY_LEVELS_DEFAULT:
        click.echo(
            f"pocketmq: --level {parts['delay_level']}: a broker has {DELAY_LEVELS_DEFAULT} levels by default. A"
            " higher number means the last level",
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
        raise click.UsageError("Give only one of --delay, --at and --level.")
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
    """Yield the lines of PIPE that are not empty, each time all that can be read; the last needs no line end."""
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
            click.echo(f"{receipt.message_id}  {_place(receipt)}")
    sys.stdout.flush()


def _place(receipt: Receipt) -> str:
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
    """Cancel a delayed message before it is due.

    HANDLE is the recall handle that `pocketmq send` printed. Prints the id of the message.

    Exit code 3: no such message is waiting, any more or at all; 5: it is due already.
    """
    with Producer(nameserver) as producer:
        message_id = producer.recall(handle)
    if as_json:
        print_json({"message_id": message_id, "recalled": True})
    else:
        click.echo(f"{message_id}  recalled")
