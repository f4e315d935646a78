"""What answers plain HTTP requests at the broker's port: metrics, the console's pages, and the API under /api/.

The rates of the last minutes are noted from the start on; all else is imported and made when it is first asked for.
Those on this machine may ask, under its own names, and who acts by their own page:

    the peer          a loopback address; and nobody passes on what somebody else asks (Forwarded, X-Forwarded-For)
    Host              a name of loopback: another site's name that leads here (DNS rebinding) is refused
    POST              Origin, where a browser says one, is the same; X-PocketMQ-Token is what GET /api/session tells

A page of another site can read no answer from here, so it does not get the token, and without it can change nothing.
Where its browser says whose it is (Sec-Fetch-Site), it is not even answered; a link that somebody follows is.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ...broker.broker import SiteParts
from ...broker.metrics_page import PATH as METRICS
from ...proto.access.policies import is_loopback
from ...proto.errors import InvalidArgument, PocketMQError
from ...proto.rpc.pages import QUERY_FIELDS_MAX, READING, Page, PageRequest, Shown
from .rates import SAMPLE_MS, Rates

if TYPE_CHECKING:
    from .api import Api

logger = logging.getLogger(__name__)

#: Files that are shown as they are: where, and of which type.
_FILES: Final = {
    "/console.css": ("console.css", "text/css; charset=utf-8"),
    "/console.mjs": ("console.mjs", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/api/openapi.yaml": ("openapi.yaml", "application/yaml"),
}
#: Nothing is loaded from elsewhere, no script or style stands in a page, and no other site shows one in a frame.
_POLICY: Final = (
    ("content-security-policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
     " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)  # fmt: skip
_STATUSES: Final = {
    "NOT_FOUND": 404,
    "INVALID_ARGUMENT": 400,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "ABORTED": 409,
    "PERMISSION_DENIED": 403,
    "UNAUTHENTICATED": 401,
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "UNIMPLEMENTED": 501,
    "DEADLINE_EXCEEDED": 504,
}

TOKEN: Final = "x-pocketmq-token"
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
#: What browsers say of requests that another site's page makes, but for a link that is followed.
_FOREIGN: Final = ("cross-site", "same-site")


def site(parts: SiteParts) -> Page:
    """Return what answers plain HTTP requests at the port of the broker with PARTS."""
    return Site(parts)


class Site:
    """The pages of the broker with PARTS."""

    def __init__(self, parts: SiteParts) -> None:
        self._parts = parts
        self._guard = ConsoleGuard(asks_users=parts.asks_users)
        self._rates = Rates(parts.counters, parts.traffic)
        parts.every(SAMPLE_MS, self._rates.sample)
        self._api: Api | None = None

    async def __call__(self, asked: PageRequest) -> Shown:
        """Return what ASKED shows."""
        if asked.path == METRICS:
            return await self._parts.metrics(asked)
        try:
            self._guard.check(asked)
            _check_query(asked)
            shown = await self._shown(asked)
        except PocketMQError as error:
            status = _STATUSES.get(error.status, 500)
            shown = _failed(asked, status, type(error).__name__, error.message)
        except Exception:  # The edge: a bug of a page costs its own request.
            logger.exception("console failed path=%s", asked.path[:200])
            words = "a fault in PocketMQ: the broker's log tells more"
            shown = _failed(asked, 500, "Internal", words)
        return shown._replace(headers=(*_POLICY, *shown.headers))

    async def _shown(self, asked: PageRequest) -> Shown:
        file = _FILES.get(asked.path)
        if file is not None and asked.method in READING:
            name, kind = file
            return Shown(
                200, kind, files(__name__.rpartition(".")[0]).joinpath("static", name).read_bytes()
            )
        if self._api is None:
            from .api import Api

            self._api = Api(self._parts, self._rates, self._guard.token)
        if asked.parts[0] != "api":
            from .pages import page

            return _page(200, await page(self._api, asked))
        from .actions import ROUTES

        answer = await self._api.answer(asked, ROUTES)
        return answer if isinstance(answer, Shown) else _json(200, answer)


def _failed(asked: PageRequest, status: int, name: str, words: str) -> Shown:
    if asked.parts[0] == "api":
        return _json(status, {"error": name, "message": words})
    from .pages import failure

    return _page(status, failure(asked, HTTPStatus(status).phrase, words))


def _check_query(asked: PageRequest) -> None:
    try:
        asked.query  # noqa: B018 (asked for what it raises)
    except ValueError:
        raise InvalidArgument(
            f"the query has more than {QUERY_FIELDS_MAX} fields: ask for less",
            field="query",
            limit=QUERY_FIELDS_MAX,
        ) from None


def _page(status: int, text: str) -> Shown:
    return Shown(status, "text/html; charset=utf-8", text.encode(errors="replace"))


def _json(status: int, document: Any) -> Shown:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return Shown(status, "application/json", text.encode(errors="replace") + b"\n")


class NotAllowed(PocketMQError):
    """The console does not answer this request; the sentence says why."""

    status = "PERMISSION_DENIED"


class ConsoleGuard:
    """Decides by the bytes of a request."""

    def __init__(self, *, asks_users: bool = False) -> None:
        """ASKS_USERS: the broker wants to know who asks, and nobody can say so here."""
        self._asks_users = asks_users
        #: What whoever changes something has to show; new at each start.
        self.token = secrets.token_urlsafe(24)

    def check(self, asked: PageRequest) -> None:
        """Raise NotAllowed unless ASKED is answered."""
        if self._asks_users:
            raise NotAllowed(
                "this broker asks callers who they are, and its API over HTTP does not know users yet: use the command"
            )
        headers = asked.headers
        host = headers.get("host", "")
        passed_on = any(name in headers for name in _FORWARDED)
        if passed_on or not is_loopback(_without_port(asked.peer)):
            raise NotAllowed(
                "the console and its API answer on this machine alone: from elsewhere they need users, which this"
                " version does not have; open it there, or through `ssh -L 8081:127.0.0.1:8081`"
            )
        if not is_loopback(_without_port(host)):
            raise NotAllowed(
                f"the host {host[:100]!r} is not a name of this machine's loopback: ask for http://127.0.0.1 and the"
                " broker's port"
            )
        is_foreign = headers.get("sec-fetch-site") in _FOREIGN
        if asked.method in READING:
            if is_foreign and headers.get("sec-fetch-mode") != "navigate":
                raise NotAllowed(
                    "a page of another site may ask nothing here: open this one itself"
                )
            return
        scheme = "https" if asked.secure else "http"
        origin = headers.get("origin", f"{scheme}://{host}")
        if origin != f"{scheme}://{host}" or is_foreign:
            raise NotAllowed(f"a page of {origin[:100]!r} may change nothing here")
        if not hmac.compare_digest(headers.get(TOKEN, "").encode(), self.token.encode()):
            raise NotAllowed(
                f"the header {TOKEN} is missing or old: GET /api/session tells the one of this start"
            )


def _without_port(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if ":" in address else address
