"""`pocketmq dead-letters`: list, resend and purge the dead-letter queues of a consumer group.

Every broker keeps the dead letters of its own messages, and numbers them from 0: offsets need --broker if several
brokers have some.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from ..client import Admin, DeadLetter, ResentDeadLetter
from ..proto.errors import GroupNotFound
from .completion import group_names
from .options import COUNT, OFFSET, confirm, json_option, nameserver_option, yes_option
from .output import instant, message_document, print_json, print_table

#: Dead letters in one request.
_PAGE = 500


_broker_option = click.option(
    "--broker", metavar="NAME|HOST:PORT", help="Dead letters of this broker only."
)


@click.group("dead-letters")
def dead_letters() -> None:
    """List, resend and purge the dead-letter queue of a group."""


@dead_letters.command("list")
@click.argument("group", shell_complete=group_names)
@click.option(
    "--limit",
    "count",
    type=COUNT,
    default=1_000,
    show_default=True,
    help="Maximum number of dead letters of each broker.",
)
@click.option(
    "--from", "from_offset", metavar="OFFSET", type=OFFSET, default=0, help="First offset."
)
@click.option("--all", "everything", is_flag=True, help="Also list dead letters that were resent.")
@_broker_option
@json_option("one dead letter per line, with the whole message")
@nameserver_option
def list_letters(
    group: str,
    *,
    count: int,
    from_offset: int,
    everything: bool,
    broker: str | None,
    as_json: bool,
    nameserver: str,
) -> None:
    """List the dead letters of GROUP, the oldest first.

    Prints for each its origin, how often it failed, and the reason. Dead letters that were resent are left out.

    Exit code 3: the group does not exist.
    """
    with Admin(nameserver) as admin:
        letters = admin.dead_letters(
            group,
            broker=broker,
            from_offset=from_offset,
            max_letters=count,
            include_resent=everything,
        )
    if as_json:
        for letter in letters:
            print_json(letter_document(letter))
        return
    if not letters:
        click.echo(f"group {group} has no dead letters", err=True)
        return
    resent = ["resent"] if everything else []
    print_table(
        ["broker", "offset", "died", "origin", "failed", "id", "reason", *resent],
        [
            [
                letter.broker,
                letter.queue_offset,
                instant(letter.died_ms),
                letter.origin_topic or "-",
                letter.reconsume_times,
                letter.message_id or letter.origin_message_id or "-",
                letter.reason,
                *(["yes" if letter.resent else "no"] if everything else []),
            ]
            for letter in letters
        ],
    )
    for holder, listed in Counter(letter.broker for letter in letters).items():
        if listed == count:
            last = max(letter.queue_offset for letter in letters if letter.broker == holder)
            click.echo(
                f"listed the first {count} of broker {holder}; for the next: --broker {holder} --from {last + 1}",
                err=True,
            )


@dead_letters.command()
@click.argument("group", shell_complete=group_names)
@click.argument("offsets", metavar="OFFSET…", nargs=-1, type=OFFSET)
@click.option(
    "--all", "everything", is_flag=True, help="All dead letters that were not resent yet."
)
@click.option(
    "--to-topic", "topic", metavar="TOPIC", help="Topic to send to.  [default: the origin of each]"
)
@_broker_option
@json_option("one dead letter per line")
@nameserver_option
def resend(
    group: str,
    offsets: tuple[int, ...],
    *,
    everything: bool,
    topic: str | None,
    broker: str | None,
    as_json: bool,
    nameserver: str,
) -> None:
    """Resend dead letters of GROUP to the topics that they came from.

    Every group of the topic receives them; --to-topic %RETRY%GROUP reaches GROUP alone. A resent dead letter is marked
    and stays until you purge it.

    \b
    Example: pocketmq dead-letters resend billing 0 3 4

    Exit code 3: the group does not exist, or has no dead letter at one of the offsets.
    """
    if everything == bool(offsets):
        raise click.UsageError("Give the offsets of dead letters, or --all.")
    sent: list[ResentDeadLetter] = []
    with Admin(nameserver) as admin:
        chosen = _all(admin, group, broker) if everything else [(broker, list(offsets))]
        named = sum(bool(numbers) for _, numbers in chosen) > 1
        for holder, numbers in chosen:
            for begin in range(0, len(numbers), _PAGE):
                page = numbers[begin : begin + _PAGE]
                done = admin.resend_dead_letters(group, page, topic=topic, broker=holder)
                for letter in done:
                    _print_resent(letter, as_json, named)
                sent += done
    errors = [letter.error for letter in sent if letter.error is not None]
    if not as_json:
        click.echo(f"{len(sent) - len(errors)} of {len(sent)} resent")
    if errors:
        raise errors[0]


def _all(admin: Admin, group: str, broker: str | None) -> list[tuple[str | None, list[int]]]:
    """Return the offsets of the dead letters of GROUP as they are now, by their brokers."""
    names = [one.broker_name for one in admin.brokers()] if broker is None else [broker]
    found: list[tuple[str | None, list[int]]] = []
    unknown: GroupNotFound | None = None
    for name in names:
        try:
            found.append((name, _offsets(admin, group, name)))
        except GroupNotFound as error:
            unknown = error
    if unknown is not None and not found:
        raise unknown
    return found


def _offsets(admin: Admin, group: str, broker: str) -> list[int]:
    offsets: list[int] = []
    while True:
        begin = offsets[-1] + 1 if offsets else 0
        page = admin.dead_letters(
            group, broker=broker, from_offset=begin, max_letters=_PAGE, include_resent=False
        )
        offsets += sorted(letter.queue_offset for letter in page)
        if not page:
            return offsets


@dead_letters.command()
@click.argument("group", shell_complete=group_names)
@click.option(
    "--below",
    metavar="OFFSET",
    type=OFFSET,
    help="Only dead letters with a smaller offset.  [default: all]",
)
@yes_option
@_broker_option
@json_option("an object")
@nameserver_option
def purge(
    group: str,
    *,
    below: int | None,
    yes: bool,
    broker: str | None,
    as_json: bool,
    nameserver: str,
) -> None:
    """Purge the dead-letter queue of GROUP.

    Purged dead letters are not listed and not resent any more. Their bytes stay in the log, and consumers of the topic
    %DLQ%GROUP can read them, until retention deletes the old files of the log.

    \b
    Example: pocketmq dead-letters purge billing --below 100
    """
    if not yes:
        which = "all" if below is None else f"those below {below}"
        confirm(f"Purge the dead letters of group {group}, {which}?")
    with Admin(nameserver) as admin:
        purged = admin.purge_dead_letters(group, below=below, broker=broker)
    if as_json:
        print_json({"group": group, "purged": purged})
    else:
        click.echo(f"dead letters of group {group} purged: {purged}")


def letter_document(letter: DeadLetter) -> dict[str, Any]:
    """Return LETTER as JSON shows it."""
    return {
        "broker": letter.broker,
        "offset": letter.queue_offset,
        "message_id": letter.message_id,
        "origin_topic": letter.origin_topic,
        "origin_message_id": letter.origin_message_id,
        "reason": letter.reason,
        "reconsume_times": letter.reconsume_times,
        "died_ms": letter.died_ms,
        "resent": letter.resent,
        "message": message_document(letter.message),
    }


def _print_resent(letter: ResentDeadLetter, as_json: bool, named: bool) -> None:
    """Tell what became of LETTER; NAMED: with its broker's name, as several number theirs alike."""
    error = letter.error
    which = f"{letter.broker}  {letter.queue_offset}" if named else f"{letter.queue_offset}"
    if as_json:
        print_json(
            {
                "broker": letter.broker,
                "offset": letter.queue_offset,
                "topic": letter.topic or None,
                "queue": letter.queue if error is None else None,
                "queue_offset": letter.new_queue_offset if error is None else None,
                "error": None if error is None else error.message,
            }
        )
    elif error is None:
        place = f"{letter.topic}, queue {letter.queue}, offset {letter.new_queue_offset}"
        click.echo(f"{which}  sent to {place}")
    else:
        click.echo(f"{which}  not sent: {error.message}")
