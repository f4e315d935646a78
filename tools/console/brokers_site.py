"""The console of several brokers: what all of them have, and each one's own console below /brokers/NAME/.

    /   /topics   /groups   /api/brokers   /api/topics   /api/groups   /brokers/{broker}/…

It answers only clients on its own machine (door.py). It keeps no state: the name servers list the brokers,
and each is asked over HTTP (broker_caller.py). A broker's pages are passed on with their links led below its name; its
answers, refusals among them, are its own.
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
from ...proto.rpc.pages import READING, PageRequest, Shown
from ...proto.tls import Trust
from ..broker_caller import BrokerCaller, BrokerList
from . import frame
from .api import Document
from .door import TOKEN, Door

logger = logging.getLogger(__name__)

#: Rows of each broker that a merged list is made of.
_ROWS: Final = 100
#: Lags of all brokers that the first page shows.
_LAGS: Final = 10
_NAME_SERVER_MS: Final = 5_000
_TICK_S: Final = 3.0
_PLACES: Final[frame.Places] = (("/", "Brokers"), ("/topics", "Topics"), ("/groups", "Groups"))
#: Where a broker's page leads to, but for its brand, which leads here. Text has no quotation mark: it is escaped.
_LINK: Final = re.compile(rb' (href|src|action|data-post)="/(?!" class="brand")')
#: What is passed on of a request's fields; of an answer's none are: pages have the same policy here.
_ASKED: Final = ("accept", "content-type", TOKEN)


async def serve_console(nameservers: str, port: int, begun: Callable[[str], object]) -> None:
    """Serve the console of the brokers of NAMESERVERS at PORT of loopback until a signal; BEGUN gets the address.

    Nobody else is let in: the caller is answered as the user of this process. Raises ConfigError, CannotListen.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with BrokerList(nameservers, _NAME_SERVER_MS, None) as brokers:
        site = BrokersSite(brokers, Trust().or_environment())
        async with serve(port=port, page=site) as bound:
            begun(f"http://127.0.0.1:{bound}/")
            await stopping.wait()


class BrokersSite:
    """Answers for BROKERS, asked as TRUST says."""

    def __init__(self, brokers: BrokerList, trust: Trust) -> None:
        self._brokers = brokers
        self._caller = BrokerCaller(trust)
        self._door = Door(None, lambda: asyncio.get_running_loop().time())
        self._listeners = frame.EventListeners()

    async def __call__(self, asked: PageRequest) -> Shown:
        """Return what ASKED shows."""
        try:
            shown = await self._shown(asked)
        except PocketMQError as error:
            shown = frame.failed(
                asked, frame.status_of(error), type(error).__name__, error.message, _PLACES
            )
        except Exception:  # The edge: a bug of a page costs its own request.
            logger.exception("console failed path=%s", asked.path[:200])
            words = "a fault in PocketMQ: what the console writes tells more"
            shown = frame.failed(asked, 500, "Internal", words, _PLACES)
        return shown._replace(headers=(*frame.POLICY, *shown.headers))

    async def _shown(self, asked: PageRequest) -> Shown:
        place, *names = asked.parts
        if place == "brokers" and names:
            self._door.check_site(asked)  # The broker looks at the token, which is its own.
            if len(names) == 1:
                return Shown(303, "text/plain", b"", (("location", f"{asked.path}/"),))
            return await self._pass_on(asked, names[0])
        visitor = self._door.admit(asked)
        if (file := frame.file_shown(asked)) is not None and place != "api":
            return file
        if (asked.method, asked.path) == ("POST", "/api/topics"):
            return frame.json_shown(200, await self._create_topic(asked))
        if asked.method not in READING:
            raise ServiceNotFound(f"{asked.method} {asked.path[:200]} is not there")
        if asked.path == "/api/events":
            return self._listeners.told(_ticks())
        if asked.path == "/api/session":
            return frame.json_shown(200, {"token": visitor.token, "user": None})
        if place == "api":
            return frame.json_shown(200, await self._found("/".join(names), asked))
        kind = "/".join(asked.parts) or "brokers"
        found = await self._found(kind, asked)
        template, data = _PAGES[kind]
        return frame.page_shown(
            200,
            template,
            kind.capitalize(),
            asked,
            visitor=visitor,
            places=_PLACES,
            query=asked.query,
            found=data(found),
        )

    async def _found(self, kind: str, asked: PageRequest) -> Document:
        if kind == "brokers":
            return await self._overviews()
        if kind not in _PAGES:
            raise ServiceNotFound(f"{asked.path[:200]} is not there")
        return await self._merged(kind, {"search": asked.query.get("search", "")})

    # --- of all brokers

    async def _overviews(self) -> Document:
        """Return how each broker is, or why that cannot be told."""
        told = await self._ask_all("/api/overview")
        brokers = [
            {"broker": name, "address": address}
            | ({"error": one.message} if isinstance(one, PocketMQError) else {"overview": one})
            for name, (address, one) in told.items()
        ]
        return {"brokers": brokers}

    async def _merged(self, kind: str, query: Mapping[str, str]) -> Document:
        """Return the rows of KIND that brokers have, those of one name together, with the rows that it is made of."""
        told = await self._ask_all(f"/api/{kind}?{urlencode({**query, 'limit': _ROWS})}")
        rows: dict[str, list[Document]] = {}
        errors, partial, left_out = [], False, 0
        for broker, (_, one) in told.items():
            if isinstance(one, PocketMQError):
                errors.append({"broker": broker, "error": one.message})
                continue
            partial = partial or one["total"] > _ROWS
            left_out = max(left_out, one.get("left_out", 0))  # An older broker does not say.
            for row in one[kind]:
                rows.setdefault(row["name"], []).append({"broker": broker, **row})
        merged = [{"name": name, "at": found} for name, found in sorted(rows.items())]
        return {kind: merged, "errors": errors, "partial": partial, "left_out": left_out}

    async def _ask_all(self, target: str) -> dict[str, tuple[str, Any]]:
        """Return address and document, or the error, of each broker's answer to TARGET."""
        brokers = await self._brokers.addresses()
        answers = await asyncio.gather(
            *(self._caller.document(address, "GET", target) for address in brokers.values()),
            return_exceptions=True,
        )
        found = {}
        for (name, address), answer in zip(brokers.items(), answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, PocketMQError):
                raise answer
            found[name] = (address, answer)
        return found

    async def _create_topic(self, asked: PageRequest) -> Document:
        """Make a topic on each broker, and return what each said."""

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

    # --- one broker

    async def _pass_on(self, asked: PageRequest, name: str) -> Shown:
        """Return what broker NAME answers to ASKED, which is for a place below its name."""
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
            return Shown(answer.status, kind, b"", events=answer.events())
        body = await answer.body()
        if kind.startswith("text/html"):
            body = _LINK.sub(rb' \1="' + below.encode() + b"/", body)
        return Shown(answer.status, kind, body)


async def _ticks() -> AsyncGenerator[bytes, None]:
    """Yield an event now and then: brokers have something new all the time."""
    while True:
        yield b"event: changed\ndata: 0\n\n"
        await asyncio.sleep(_TICK_S)


# --- data of pages, made of what the API of several answers


def _brokers_data(found: Document) -> Document:
    """Return the brokers, and the worst lags of all."""
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
