"""The history of a message from live brokers, each of which reads its own files.

A broker answers that on its own machine, or to a user who may read the topic (docs/web-console.md).
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from ...proto.errors import ConnectionLost, MessageNotFound, PocketMQError
from ...proto.tls import Trust
from ..broker_caller import BrokerCaller, BrokerList, refusal_of
from ..counted import counted

_NAME_SERVER_MS: Final = 5_000


async def histories_from_brokers(
    nameservers: str, message: str, topic: str | None, count: int
) -> tuple[list[dict[str, Any]], list[PocketMQError]]:
    """Return the histories of MESSAGE (with a TOPIC: a key) as documents, and the errors of brokers.

    Raises ConnectionLost if no name server answers, MessageNotFound if no broker knows the message.
    """
    caller = BrokerCaller(Trust().or_environment())
    query = urlencode({"count": count} | ({"topic": topic} if topic is not None else {}))
    path = f"/api/messages/{quote(message, safe='')}/life?{query}"
    stories: list[dict[str, Any]] = []
    failures: list[PocketMQError] = []
    async with BrokerList(nameservers, _NAME_SERVER_MS, None) as brokers:
        addresses = await brokers.addresses()
        asked = (_of_broker(caller, address, path) for address in addresses.values())
        for found in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(found, list):
                stories += found
            elif not isinstance(found, PocketMQError):
                raise found
            elif not isinstance(found, MessageNotFound):
                failures.append(found)
    if not stories and not failures:
        raise MessageNotFound(
            f"message {message!r} not found (asked {counted(len(addresses), 'broker')})."
            " Check the id, or give topic and key",
            asked_for=message,
        )
    return stories, failures


async def _of_broker(caller: BrokerCaller, address: str, path: str) -> list[dict[str, Any]]:
    answer = await caller.ask(address, "GET", path)
    body = await answer.body()
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConnectionLost(f"{address} does not answer with JSON. Is it a broker with a console?")
    if answer.status == HTTPStatus.NOT_FOUND:
        raise MessageNotFound(str(found.get("message", "not found")))
    if answer.status != HTTPStatus.OK:
        raise refusal_of(answer, found)
    stories = found.get("stories")
    return stories if isinstance(stories, list) else []
