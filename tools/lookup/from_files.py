"""Looking for messages in the files of stores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import click

from ...proto.errors import MessageNotFound
from ...store.os_disk import OsDisk
from ..output import print_json
from ..stores.locations import StoreLocation, locate
from .found import Found
from .log_files import Stored
from .question import Question
from .rows import message_row, print_stored
from .search import StoreSearch


def print_from_files(
    question: Question, stores: Sequence[str], settings: Mapping[str, str], *, as_json: bool
) -> None:
    """Print what the STORES hold for QUESTION: messages on standard output, all else on standard error.

    Raises MessageNotFound, which says whether it may have existed.
    """
    answers = [
        (place, ask(_search(place, settings), question))
        for place in locate(stores, settings=settings)
    ]
    rows = _ordered(question, answers)
    for at, (stored, broker) in enumerate(rows):
        if as_json:
            print_json(message_row(stored, broker))
            continue
        if at:
            click.echo()
        print_stored(stored, broker)
    if as_json:
        for place, found in answers:
            document = {"brokerName": place.broker_name, **found.summary()}
            click.echo(json.dumps(document, ensure_ascii=False), err=True)
    told = _told(answers)
    if not rows:
        raise _not_found(question, answers, told)
    if not as_json:
        for sentence in told:
            click.echo(f"note: {sentence}", err=True)


def ask(search: StoreSearch, question: Question) -> Found:
    """Return what one store answers."""
    topic, count, scan = question.topic, question.count, question.scan
    if question.message_id is not None:
        return search.by_id(question.message_id, topic, count=count, scan=scan)
    if question.log_offset is not None:
        return search.by_log_offset(question.log_offset)
    if question.offset is not None:
        assert topic is not None, "checked before"
        assert question.queue is not None, "checked before"
        return search.by_queue_offset(topic, question.queue, question.offset, count=count)
    if question.key is None and question.tag is None:
        assert topic is not None, "checked before"
        return search.by_time(topic, question.queue, question.times, count=count)
    key, kind = (question.key, "K") if question.key is not None else (question.tag, "T")
    assert key is not None
    return search.by_key(topic, key, kind=kind, times=question.times, count=count, scan=scan)


def _search(place: StoreLocation, settings: Mapping[str, str]) -> StoreSearch:
    disk = place.open_disk()
    return StoreSearch(disk, place.root, settings, mapped=isinstance(disk, OsDisk))


def _ordered(
    question: Question, answers: Sequence[tuple[StoreLocation, Found]]
) -> list[tuple[Stored, str]]:
    """Return the hits of all stores, oldest first: the first ones by time and offset, the newest ones by key."""
    rows = [(stored, place.broker_name) for place, found in answers for stored in found.hits]
    rows.sort(key=lambda row: row[0].record.store_timestamp_ms)
    by_key = question.key is not None or question.tag is not None
    return rows[-question.count :] if by_key else rows[: question.count]


def _told(answers: Sequence[tuple[StoreLocation, Found]]) -> list[str]:
    several = len(answers) > 1
    return [
        f"{place.broker_name}: {sentence}" if several else sentence
        for place, found in answers
        for sentence in found.sentences()
    ]


def _not_found(
    question: Question, answers: Sequence[tuple[StoreLocation, Found]], told: Sequence[str]
) -> MessageNotFound:
    may = any(found.may_have_existed for _, found in answers)
    where = f"topic {question.topic!r}" if question.topic is not None else "the store"
    doubt = ". It may have existed: " if may and told else "; " if told else ""
    return MessageNotFound(
        f"{where} has no message {question.words}{doubt}{'; '.join(told)}", **question.details
    )
