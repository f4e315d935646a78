"""The pages of the console: the data of each, from the API (api.py), and its template.

    /   /topics   /topics/{topic}   /messages   /messages/{id}   /groups   /groups/{group}
    /dead-letters   /delayed   /transactions   /connections   /store   /users

Pages are readable without a script. `console.mjs` reloads a page when something has changed, and sends forms with
`data-post` to the API, as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from urllib.parse import urlencode

from ...proto.errors import PocketMQError, ServiceNotFound
from ...proto.rpc.pages import READING, HttpResponse, PageRequest
from . import answers
from .api import Api, Document
from .auth import ConsoleSession
from .message_pages import message_data, messages_data
from .rates import SAMPLE_MS
from .waiting import check, delayed, transactions, users


class _Page(NamedTuple):
    """A page: TEMPLATE, and the function DATA of an `Api`, a request, and the name in the path if there is one."""

    template: str
    data: Callable[..., Awaitable[Document]]


async def page(api: Api, asked: PageRequest, visitor: ConsoleSession) -> HttpResponse:
    """Return the page for ASKED, a request of VISITOR."""
    if asked.method not in READING:
        raise ServiceNotFound(f"{asked.path[:200]} is a page: use GET")
    place, *names = asked.parts
    found = (_PAGES_OF_ONE if names else _PAGES).get(place)
    if found is None or len(names) > 1:
        raise ServiceNotFound(f"there is no page {asked.path[:200]}")
    name = names[0] if names else ""
    return answers.page_shown(
        200,
        found.template,
        name or dict(answers.NAVIGATION)[f"/{place}"],
        asked,
        visitor=visitor,
        server=await api.status(),
        query=asked.query,
        name=name,
        peer=asked.peer,
        found=await found.data(api, asked, *names),
    )


async def _overview(api: Api, asked: PageRequest) -> Document:
    return await api.overview(asked) | {"sample_ms": SAMPLE_MS}


async def _topic(api: Api, asked: PageRequest, name: str) -> Document:
    found = await api.topic(asked, name)
    newest = await api.messages(PageRequest("GET", "/?limit=20", {}), name)
    held = sum(one["max_offset"] - one["min_offset"] for one in found["queues"])
    return found | {"messages": held, "newest": newest["messages"]}


async def _group(api: Api, asked: PageRequest, name: str) -> Document:
    found = await api.group(asked, name)
    letters: list[Document] = []
    if found["settings"]:
        one = PageRequest("GET", "/?limit=1", {})
        letters = (await api.dead_letters(one, name))["dead_letters"]
    return found | {"has_dead_letters": bool(letters)}


async def _dead_letters(api: Api, asked: PageRequest) -> Document:
    """Return the groups with dead letters, or with `group` the dead letters of one."""
    query = asked.query
    if not query.get("group"):
        return await api.all_dead_letters(asked)
    wanted = {name: value for name, value in query.items() if name in ("from", "limit", "all")}
    return await api.dead_letters(PageRequest("GET", f"/?{urlencode(wanted)}", {}), query["group"])


async def _users(api: Api, asked: PageRequest) -> Document:
    """Return the users, and with `user` the decision of their rules."""
    try:
        found = await users(api, asked)
    except PocketMQError as error:
        return {"error": error.message}
    return found | {"check": await _check(api, asked)}


async def _check(api: Api, asked: PageRequest) -> Document | None:
    name = asked.query.get("user")
    if not name:
        return None
    try:
        return await check(api, asked, name)
    except PocketMQError as error:
        return {"error": error.message}


_PAGES: Final = {
    "": _Page("overview", _overview),
    "topics": _Page("topics", Api.topics),
    "messages": _Page("messages", messages_data),
    "groups": _Page("groups", Api.groups),
    "dead-letters": _Page("dead_letters", _dead_letters),
    "delayed": _Page("waiting", delayed),
    "transactions": _Page("waiting", transactions),
    "users": _Page("users", _users),
    "connections": _Page("server", Api.connections),
    "store": _Page("server", Api.store),
}
_PAGES_OF_ONE: Final = {
    "topics": _Page("topic", _topic),
    "groups": _Page("group", _group),
    "messages": _Page("messages", message_data),
}
