"""Answers plain HTTP requests at the broker's port: metrics, the console's pages, and the API under /api/.

Rates of the last minutes are recorded from the start; everything else is imported at the first request. auth.py
authenticates requests; the guard of the broker's methods checks permissions.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from ...broker.broker import SiteParts
from ...broker.metrics.page import PATH as METRICS
from ...proto.errors import InvalidArgument, PocketMQError
from ...proto.errors_wire import sentence_of
from ...proto.rpc.pages import QUERY_FIELDS_MAX, READING, HttpResponse, Page, PageRequest
from . import answers
from .auth import ConsoleSession, Door, NotSignedIn
from .local import CALLER
from .rates import SAMPLE_MS, Rates

if TYPE_CHECKING:
    from .api import Api

logger = logging.getLogger(__name__)

#: The page after signing in, one of the console.
_PLACE: Final = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")


def site(parts: SiteParts) -> Page:
    """Return the handler of plain HTTP requests at the port of the broker with PARTS."""
    return Site(parts)


class Site:
    """The pages of the broker with PARTS."""

    def __init__(self, parts: SiteParts) -> None:
        self._parts = parts
        self._door = Door(parts.guard, lambda: asyncio.get_running_loop().time())
        self._rates = Rates(parts.counters, parts.traffic)
        parts.every(SAMPLE_MS, self._rates.sample)
        self._api: Api | None = None

    async def __call__(self, asked: PageRequest) -> HttpResponse:
        """Return the answer to ASKED."""
        try:
            if asked.path == METRICS:
                self._door.check_metrics(asked)
                return await self._parts.metrics(asked)
            shown = await self._answer(asked)
        except NotSignedIn as error:
            shown = _sign_in_first(asked, error)
        except PocketMQError as error:
            shown = _refused(asked, error)
        except Exception:  # A fault in a page must fail only its own request.
            logger.exception("console failed path=%s", asked.path[:200])
            words = "a fault in PocketMQ: see the log of the broker"
            shown = answers.failed(asked, 500, "Internal", words)
        return shown._replace(headers=(*answers.POLICY, *shown.headers))

    async def _answer(self, asked: PageRequest) -> HttpResponse:
        if self._parts.guard is not None:
            if asked.path == "/sign-in":
                return self._sign_in(asked)
            shown = answers.file_shown(asked)
            if shown is not None:
                return shown  # The page to sign in needs them.
        visitor = self._door.admit(asked)
        _check_query(asked)
        if asked.path == "/sign-out" and asked.method not in READING:
            return _go_to("/sign-in", self._door.sign_out(asked, visitor))
        # Each request has its own task, and so its own context.
        CALLER.set(visitor.caller)
        if asked.method in READING:
            return await self._shown(asked, visitor)
        status = 500
        try:
            shown = await self._shown(asked, visitor)
            status = shown.status
        except PocketMQError as error:
            status = answers.status_of(error)
            raise
        finally:
            self._door.changed(asked, visitor, status)
        return shown

    async def _shown(self, asked: PageRequest, visitor: ConsoleSession) -> HttpResponse:
        file = answers.file_shown(asked)
        if file is not None:
            return file
        if self._api is None:
            from .api import Api

            self._api = Api(self._parts, self._rates, self._door)
        if asked.parts[0] != "api":
            from .pages import page

            return await page(self._api, asked, visitor)
        from .actions import ROUTES

        answer = await self._api.answer(asked, visitor, ROUTES)
        return answer if isinstance(answer, HttpResponse) else answers.json_shown(200, answer)

    def _sign_in(self, asked: PageRequest) -> HttpResponse:
        if asked.method in READING:
            self._door.check_site(asked)  # Show no form for a secret that may not be sent this way.
            return _ask_user(asked, 200, to=asked.query.get("to", "/"))
        try:
            cookie, to = self._door.sign_in(asked)
        except PocketMQError as error:
            return _ask_user(asked, answers.status_of(error), to="/", error=error.message)
        return _go_to(to, cookie)


def _ask_user(asked: PageRequest, status: int, *, to: str, error: str = "") -> HttpResponse:
    """Return the form to sign in, with the path TO go to afterwards, and the ERROR of the last try."""
    return answers.page_shown(status, "layout", "Sign in", asked, to=to, error=error)


def _go_to(place: str, cookie: str) -> HttpResponse:
    to = place if _PLACE.fullmatch(place) else "/"
    return HttpResponse(303, "text/plain", b"", (("location", to), ("set-cookie", cookie)))


def _sign_in_first(asked: PageRequest, error: NotSignedIn) -> HttpResponse:
    """Redirect a browser to the form to sign in; return the error to a program."""
    if asked.parts[0] != "api" and asked.method in READING:
        to = f"/sign-in?to={quote(asked.target, safe='')}"
        return HttpResponse(303, "text/plain", b"", (("location", to),))
    return _refused(asked, error)


def _refused(asked: PageRequest, error: PocketMQError) -> HttpResponse:
    status = answers.status_of(error)
    shown = answers.failed(asked, status, type(error).__name__, sentence_of(error))
    # Not for browsers, which would show a dialog of their own.
    if isinstance(error, NotSignedIn) and "sec-fetch-mode" not in asked.headers:
        challenge = ("www-authenticate", 'Basic realm="PocketMQ", charset="UTF-8"')
        shown = shown._replace(headers=(*shown.headers, challenge))
    return shown


def _check_query(asked: PageRequest) -> None:
    try:
        asked.query  # noqa: B018 (it may raise)
    except ValueError:
        raise InvalidArgument(
            f"the query has more than {QUERY_FIELDS_MAX} fields: use fewer",
            field="query",
            limit=QUERY_FIELDS_MAX,
        ) from None
