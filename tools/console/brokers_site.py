"""The console of several brokers: a summary of all, and the console of each below /brokers/NAME/.

    /   /topics   /groups   /api/brokers   /api/topics   /api/groups   /brokers/{broker}/…

It answers only clients on its own machine (auth.py). It keeps no state: the name servers list the brokers, and each is
asked over HTTP (broker_caller.py). Pages of a broker are forwarded, with links changed to paths below its name. Other
answers and errors of the broker are forwarded unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from ...proto.errors import PocketMQError, ServiceNotFound
from ...proto.rpc import serve
from ...proto.rpc.pages import READING, HttpResponse, PageRequest
from ...proto.tls import Trust
from ..broker_caller import BrokerCaller, BrokerList
from . import answers
from .api import Document
from .auth import TOKEN, Door

logger = logging.getLogger(__name__)

#: Limit of rows from each broker in a merged list.
_ROWS: Final = 100
#: Limit of lags on the first page.
_LAGS: Final = 10
_NAME_SERVER_MS: Final = 5_000
_TICK_S: Final = 3.0
_NAVIGATION: Final[answers.Navigation] = (
    ("/", "Brokers"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
)
#: Links in a page of a broker, except that of its brand, which leads here. Quotation marks in text are escaped.
_LINK: Final = re.compile(rb' (href|src|action|data-post)="/(?!" class="brand")')
#: Header fields of requests that are forwarded. Those of answers are not: pages have the same policy here.
_ASKED: Final = ("accept", "content-type", TOKEN)


async def serve_console(nameservers: str, port: int, started: Callable[[str], object]) -> None:
    """Serve the console of the brokers of NAMESERVERS at PORT of loopback until a signal; STARTED gets the address.

    Requests have the permissions of the user of this process. Raises ConfigError, CannotListen.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with BrokerList(nameservers, _NAME_SERVER_MS, None) as brokers:
        site = BrokersSite(brokers, Trust().or_environment())
        async with serve(port=port, page=site) as bound:
            started(f"http://127.0.0.1:{bound}/")
            await stopping.wait()


class BrokersSite:
    """Answers requests about BROKERS, which it calls with TRUST."""

    def __init__(self, brokers: BrokerList, trust: Trust) -> None:
        self._brokers = brokers
        self._caller = BrokerCaller(trust)
        self._door = Door(None, lambda: asyncio.get_running_loop().time())
        self._listeners = answers.EventListeners()

    async def __call__(self, asked: PageRequest) -> HttpResponse:
        """Return the answer to ASKED."""
        try:
            shown = await self._shown(asked)
        except PocketMQError as error:
            shown = answers.failed(
                asked, answers.status_of(error), type(error).__name__, error.message, _NAVIGATION
            )
        except Exception:  # A fault in a page must fail only its own request.
            logger.exception("console failed path=%s", asked.path[:200])
            words = "a fault in PocketMQ: see the log of the console"
            shown = answers.failed(asked, 500, "Internal", words, _NAVIGATION)
        return shown._replace(headers=(*answers.POLICY, *shown.headers))

    async def _shown(self, asked: PageRequest) -> HttpResponse:
        place, *names = asked.parts
        if place == "brokers" and names:
            self._door.check_site(asked)  # The broker checks the token, which it has made.
            if len(names) == 1:
                return HttpResponse(303, "text/plain", b"", (("location", f"{asked.path}/"),))
            return await self._forward(asked, names[0])
        visitor = self._door.admit(asked)
        if (file := answers.file_shown(asked)) is not None and place != "api":
            return file
        if (asked.method, asked.path) == ("POST", "/api/topics"):
            return answers.json_shown(200, await self._create_topic(asked))
        if asked.method not in READING:
            raise ServiceNotFound(f"there is no {asked.method} {asked.path[:200]}")
        if asked.path == "/api/events":
            return self._listeners.stream(_ticks())
        if asked.path == "/api/session":
            return answers.json_shown(200, {"token": visitor.token, "user": None})
        if place == "api":
            return answers.json_shown(200, await self._found("/".join(names), asked))
        kind = "/".join(asked.parts) or "brokers"
        found = await self._found(kind, asked)
        template, data = _PAGES[kind]
        return answers.page_shown(
            200,
            template,
            kind.capitalize(),
            asked,
            visitor=visitor,
            navigation=_NAVIGATION,
            query=asked.query,
            found=data(found),
        )

    async def _found(self, kind: str, asked: PageRequest) -> Document:
        if kind == "brokers":
            return await self._overviews()
        if kind not in _PAGES:
            raise ServiceNotFound(f"there is no {asked.path[:200]}")
        return await self._merged(kind, {"search": asked.query.get("search", "")})

    async def _overviews(self) -> Document:
        """Return the overview of each broker, or its error."""
        found = await self._ask_all("/api/overview")
        brokers = [
            {"broker": name, "address": address}
            | ({"error": one.message} if isinstance(one, PocketMQError) else {"overview": one})
            for name, (address, one) in found.items()
        ]
        return {"brokers": brokers}

    async def _merged(self, kind: str, query: Mapping[str, str]) -> Document:
        """Return the rows of KIND of all brokers, grouped by name."""
        found = await self._ask_all(f"/api/{kind}?{urlencode({**query, 'limit': _ROWS})}")
        rows: dict[str, list[Document]] = {}
        errors, partial, left_out = [], False, 0
        for broker, (_, one) in found.items():
            if isinstance(one, PocketMQError):
                errors.append({"broker": broker, "error": one.message})
                continue
            partial = partial or one["total"] > _ROWS
            left_out = max(left_out, one.get("left_out", 0))  # An older broker has no such field.
            for row in one[kind]:
                rows.setdefault(row["name"], []).append({"broker": broker, **row})
        merged = [{"name": name, "at": found} for name, found in sorted(rows.items())]
        return {kind: merged, "errors": errors, "partial": partial, "left_out": left_out}

    async def _ask_all(self, target: str) -> dict[str, tuple[str, Any]]:
        """Return address and document, or the error, of each broker's answer to TARGET."""
        brokers = await self._brokers.addresses()
        replies = await asyncio.gather(
            *(self._caller.document(address, "GET", target) for address in brokers.values()),
            return_exceptions=True,
        )
        found = {}
        for (name, address), answer in zip(brokers.items(), replies, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, PocketMQError):
                raise answer
            found[name] = (address, answer)
        return found

    async def _create_topic(self, asked: PageRequest) -> Document:
        """Create a topic on each broker, and return the error of each, or None."""

        async def make(address: str) -> str | None:
            try:
                token = (await self._caller.document(address, "GET", "/api/session"))["token"]
                headers = {TOKEN: token, "content-type": "application/json"}
                await self._caller.document(address, "POST", "/api/topics", headers, asked.body)
            except PocketMQError as error:
                return error.message
            return None

        brokers = await self._brokers.addresses()
        said = await asyncio.gather(*map(make, brokers.values()))
        rows = zip(brokers, said, strict=True)
        return {"brokers": [{"broker": name, "error": error} for name, error in rows]}

    async def _forward(self, asked: PageRequest, name: str) -> HttpResponse:
        """Forward ASKED, whose path is below the name of broker NAME."""
        brokers = await self._brokers.addresses()
        if name not in brokers:
            known = ", ".join(brokers) or "none"
            raise ServiceNotFound(f"no broker {name[:80]!r} is registered (known: {known})")
        below = f"/brokers/{quote(name, safe='')}"
        target = "/" + asked.target.split("/", 3)[3]
        headers = {key: asked.headers[key] for key in _ASKED if key in asked.headers}
        answer = await self._caller.ask(brokers[name], asked.method, target, headers, asked.body)
        kind = answer.headers.get("content-type", "application/octet-stream")
        if kind.startswith("text/event-stream"):
            return HttpResponse(answer.status, kind, b"", events=answer.events())
        body = await answer.body()
        if kind.startswith("text/html"):
            body = _LINK.sub(rb' \1="' + below.encode() + b"/", body)
        return HttpResponse(answer.status, kind, body)


async def _ticks() -> AsyncGenerator[bytes, None]:
    """Yield an event at a fixed interval: brokers change all the time."""
    while True:
        yield b"event: changed\ndata: 0\n\n"
        await asyncio.sleep(_TICK_S)


def _brokers_data(found: Document) -> Document:
    """Return the brokers, and the largest lags of all."""
    lags = [
        {"broker": one["broker"], **row}
        for one in found["brokers"]
        if "overview" in one
        for row in one["overview"]["lags"] or ()
    ]
    lags.sort(key=lambda row: -(row["lag"] or 0))
    return found | {"lags": lags[:_LAGS]}


def _topics_data(found: Document) -> Document:
    """Return one row for each topic, with sums."""
    rows = [
        {
            "name": one["name"],
            "type": one["at"][0]["type"],
            "at": [row["broker"] for row in one["at"]],
        }
        | _sums(one["at"], "write_queues", "messages", "sent_messages")
        for one in found["topics"]
    ]
    return found | {"topics": rows, "rows_max": _ROWS}


def _groups_data(found: Document) -> Document:
    """Return one row for each group, with sums, all verdicts, and the greatest age."""
    rows = [
        {
            "name": one["name"],
            "verdicts": sorted({row["verdict"] for row in one["at"]}),
            "oldest_unread_ms": max(row["oldest_unread_ms"] for row in one["at"]),
            "at": [row["broker"] for row in one["at"]],
        }
        | _sums(one["at"], "lag", "dead_letters")
        for one in found["groups"]
    ]
    return found | {"groups": rows, "rows_max": _ROWS}


def _sums(rows: list[Document], *names: str) -> Document:
    return {name: sum(row[name] for row in rows) for name in names}


_PAGES: Final = {
    "brokers": ("overview", _brokers_data),
    "topics": ("topics", _topics_data),
    "groups": ("groups", _groups_data),
}
