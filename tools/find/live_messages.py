"""Look-ups by asking the brokers, and their results as text and JSON."""

from __future__ import annotations

import contextlib

import click

from ...client import Admin, ReceivedMessage
from ...client.config import ReadFrom
from ...proto.errors import MessageNotFound, NotAuthorized
from ..output import message_document, print_bytes, print_json, print_message
from .question import Question
from .search import TIME_MAX_MS
from .stored_messages import raw_body


def print_live(
    question: Question, nameserver: str, read_from: ReadFrom, *, as_json: bool, raw: bool
) -> None:
    """Print what the brokers of NAMESERVER answer to QUESTION, by READ_FROM; RAW: bodies alone.

    Raises MessageNotFound, TopicNotFound.
    """
    with Admin(nameserver) as admin:
        found = _found(admin, question, read_from)
    for at, message in enumerate(found):
        if as_json:
            print_json(message_document(message))
            continue
        if raw:
            print_bytes(raw_body(message))
            continue
        if at:
            click.echo()
        print_message(message)


def _found(admin: Admin, question: Question, read_from: ReadFrom) -> list[ReceivedMessage]:
    topic, times = question.topic, question.times
    if question.message_id is not None:
        return [admin.lookup_id(question.message_id, topic, read_from=read_from)]
    assert topic is not None, "asked for before"
    if question.offset is not None:
        assert question.queue is not None, "asked for before"
        return admin.lookup_offset(
            topic, question.queue, question.offset, max_messages=question.count, read_from=read_from
        )
    if question.key is None and question.tag is None:
        end_ms = TIME_MAX_MS if question.until_ms is None else question.until_ms
        found = admin.lookup_time(
            topic, times.begin_ms, end_ms, max_messages=question.count, read_from=read_from
        )
        found = [one for one in found if question.queue in (None, one.queue)]
    else:
        found = admin.lookup(
            topic,
            question.key,
            tag=question.tag,
            begin_ms=times.begin_ms,
            end_ms=0 if question.until_ms is None else max(1, times.end_ms),
            max_messages=question.count,
            read_from=read_from,
        )
    if not found:
        with contextlib.suppress(NotAuthorized):
            admin.describe_topic(topic)  # Raises TopicNotFound.
        raise MessageNotFound(
            f"topic {topic!r} has no message {question.words}", topic=topic, **question.details
        )
    return found
