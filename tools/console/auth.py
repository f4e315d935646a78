"""Authentication of the console and its API: programs on this machine or, if the broker has users, users from anywhere.

Without users a request must have:

    the peer          a loopback address, and no header that a proxy adds (Forwarded, Via, X-Forwarded-Proto, …)
    Host              `localhost` or a loopback address (`host_in`): a site that resolves its own name to 127.0.0.1
                      (DNS rebinding) is refused, also at /metrics

With users each request names its user, by HTTP Basic or by the cookie of a session that a form started. The guard of
the broker's methods checks the permissions of this user, for the address of the socket:

    plaintext         from another machine, or through a proxy, only with the setting plaintext_credentials
    a session         a random cookie: HttpOnly, SameSite=Strict, with TLS Secure; in memory, with a limited life
    wrong tries       limit WRONG_OF_HOST per minute and host, WRONG_MAX of all hosts; then sign-in is refused

Changes must come from a page of the console: `Origin`, or without it `Referer`, is the same, and X-PocketMQ-Token has
the value of GET /api/session. A page of another site cannot read answers from here, so it does not get the token. If
the browser sends Sec-Fetch-Site, such a page gets no answer at all, except to a link.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from ...proto.access.audit import host_of
from ...proto.access.guard import Guard
from ...proto.access.policies import address_in, is_loopback
from ...proto.access.signing import Credentials, signature, signed
from ...proto.access.users import NAME_LENGTH_MAX, SECRET_LENGTH_MAX, User
from ...proto.errors import InvalidArgument, NotAuthenticated, Overloaded, PocketMQError
from ...proto.rpc.limits import owner_of
from ...proto.rpc.pages import READING, PageRequest
from .local import HttpCaller

TOKEN: Final = "x-pocketmq-token"
#: Headers that proxies, load balancers and CDNs add: with one of them the request comes from another machine.
_FORWARDED_NAMES: Final = """
akamai-origin-hop ali-cdn-real-ip cdn-loop cf-connecting-ip cf-connecting-ipv6 cf-ipcountry cf-pseudo-ipv4 cf-ray
cf-visitor cf-worker client-ip do-connecting-ip fastly-client-ip fastly-ff fly-client-ip fly-forwarded-port
forwarded forwarded-for forwarded-proto front-end-https incap-client-ip proxy-client-ip surrogate-capability
true-client-ip via wl-proxy-client-ip x-amz-cf-id x-amzn-trace-id x-arr-log-id x-arr-ssl x-bluecoat-via
x-client-ip x-client-port x-cluster-client-ip x-forward-for x-forward-proto x-host x-http-host-override
x-ms-forwarded-client-ip x-ms-proxy x-nf-client-connection-ip x-original-host x-original-remote-addr
x-original-url x-originating-ip x-proxy-id x-proxyuser-ip x-real-ip x-real-port x-remote-addr x-remote-ip
x-rewrite-url x-scheme x-sucuri-clientip x-url-scheme x-varnish x-via
"""
_FORWARDED: Final = frozenset(_FORWARDED_NAMES.split())
_FORWARDED_PREFIXES: Final = (
    "x-akamai-",
    "x-appengine-",
    "x-azure-",
    "x-envoy-",
    "x-forwarded",
    "x-original-forwarded",
    "x-vercel-",
)
#: `Host`: a name or an IPv4 address, or an IPv6 address in brackets, and a port. Zone ids and user names are not taken.
_HOST: Final = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_.-]{1,255}))(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII | re.IGNORECASE,
)
_PORT_MAX: Final = 65_535
#: Sec-Fetch-Site of requests from pages of other sites. Following a link is one of these, too.
_FOREIGN: Final = ("cross-site", "same-site")

#: Limits of a session: time without a request, and age.
IDLE_S: Final = 30 * 60
LIFE_S: Final = 12 * 60 * 60
#: Limits of sessions, in all and per user. A further one ends the least recently used one.
SESSIONS_MAX: Final = 1_000
SESSIONS_OF_USER: Final = 16
#: Limits of wrong names and secrets per minute, from one host and from all.
WRONG_OF_HOST: Final = 10
WRONG_MAX: Final = 1_000
_MINUTE_S: Final = 60
_FORM_BYTES_MAX: Final = 8 * 1024
_NOT_OWN: Final = (
    "the Host header {!r} is not a loopback address of this machine:"
    " use http://127.0.0.1 and the broker's port"
)
_WRONG: Final = "the user or the secret is wrong, or the user is disabled"


class NotAllowed(PocketMQError):
    """The console refuses this request."""

    status = "PERMISSION_DENIED"


class NotSignedIn(NotAuthenticated):
    """The request has no credentials and no session."""


class ConsoleSession(NamedTuple):
    """The sender of a request. CALLER is for the guard; USER is "" if there are no users; changes need TOKEN."""

    caller: HttpCaller
    token: str
    user: str = ""
    #: The session's key, if it is one.
    session: bytes = b""


@dataclass(slots=True)
class _Session:
    user: str
    token: str
    metadata: dict[str, str]
    begun_s: float
    used_s: float

    def is_over(self, now_s: float) -> bool:
        return now_s - self.used_s >= IDLE_S or now_s - self.begun_s >= LIFE_S


class Door:
    """Authenticates requests by GUARD, that of the broker's users; None: there are none. NOW_S: a monotonic clock."""

    def __init__(self, guard: Guard | None, now_s: Callable[[], float]) -> None:
        self.guard = guard
        self._now_s = now_s
        #: Key of tokens, and the text that is signed for users with a right secret; new at each start.
        self._key = secrets.token_bytes(32)
        self._signed_text = secrets.token_hex(16)
        self.token = self._token_of("")
        self._sessions: dict[bytes, _Session] = {}
        self._wrong: Counter[str] = Counter()
        self._minute = -1

    def admit(self, asked: PageRequest) -> ConsoleSession:
        """Return the sender. Raises NotAllowed, NotSignedIn, NotAuthenticated, Overloaded."""
        self.check_site(asked)
        visitor = self._visitor(asked)
        if asked.method not in READING:
            shown = asked.headers.get(TOKEN, "") or _form(asked).get("token", "")
            if not hmac.compare_digest(shown.encode(), visitor.token.encode()):
                raise NotAllowed(
                    f"the header {TOKEN} is missing or old: GET /api/session returns the current value"
                )
        return visitor

    def is_in(self, visitor: ConsoleSession) -> bool:
        """Is VISITOR still authenticated?"""
        if self.guard is None:
            return True
        if visitor.session:
            session = self._sessions.get(visitor.session)
            if session is None or session.is_over(self._now_s()):
                return False
        try:
            self.guard.caller(visitor.caller)
        except NotAuthenticated:
            return False
        return True

    def check_site(self, asked: PageRequest) -> None:
        """Raise NotAllowed if ASKED comes from a page of another site."""
        headers = asked.headers
        passed_on = _forwarding(headers)
        if self.guard is not None:
            caller = HttpCaller(asked.peer, asked.secure)
            self.guard.check_way(caller, passed_on=passed_on is not None)
        else:
            _check_is_local(asked, passed_on)
        is_foreign = headers.get("sec-fetch-site") in _FOREIGN
        if asked.method in READING:
            if is_foreign and headers.get("sec-fetch-mode") != "navigate":
                raise NotAllowed(
                    "pages of other sites get no answer here. Open this address directly"
                )
            return
        # A proxy that ends TLS sends http, though the page came by https.
        schemes = ("http", "https") if passed_on else ("https" if asked.secure else "http",)
        own = [f"{scheme}://{headers.get('host', '')}" for scheme in schemes]
        origin = headers.get("origin", own[0])
        if "origin" not in headers and "referer" in headers:
            origin = "/".join(headers["referer"].split("/", 3)[:3])
        if origin not in own or is_foreign:
            raise NotAllowed(f"a page of {origin[:100]!r} cannot change anything here")

    def check_metrics(self, asked: PageRequest) -> None:
        """Raise NotAllowed if ASKED may be for a site whose name was resolved to this machine (DNS rebinding).

        Such a name has a dot and is not an address. Scrapers on other machines use any name; a broker without users
        that they reach was opened to them on purpose.
        """
        host = asked.headers.get("host", "")
        if self.guard is not None or not host or not is_loopback(host_of(asked.peer)):
            return
        name = host_in(host)
        if name is not None:
            is_own = "." not in name or name == socket.gethostname().lower()
            if is_own or address_in(name) is not None:
                return
        raise NotAllowed(_NOT_OWN.format(host[:100]))

    def _visitor(self, asked: PageRequest) -> ConsoleSession:
        caller = HttpCaller(asked.peer, asked.secure)
        if self.guard is None:
            return ConsoleSession(caller, self.token)
        shown = asked.headers.get("authorization")
        if shown is not None:
            user = self._known(asked, *_basic(shown))
            return ConsoleSession(self._signing(caller, user), self._token_of(user.name), user.name)
        key = _key(_cookie(asked))
        session = self._sessions.get(key)
        if session is not None:
            now_s = self._now_s()
            visitor = ConsoleSession(
                caller._replace(metadata=session.metadata), session.token, session.user, key
            )
            if not session.is_over(now_s) and self.is_in(visitor):
                session.used_s = now_s
                return visitor
            del self._sessions[key]
        raise NotSignedIn(
            "this broker has users: sign in at /sign-in, or send user and secret by HTTP Basic (curl -u USER)"
        )

    def _known(self, asked: PageRequest, name: str, secret: str) -> User:
        """Return user NAME, whose secret is SECRET; raise NotAuthenticated, or Overloaded after too many wrong tries.

        An unknown user and a wrong secret give the same error, and take the same time.
        """
        assert self.guard is not None
        minute = int(self._now_s() // _MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._wrong.clear()
        host = owner_of(asked.peer)
        if self._wrong[host] >= WRONG_OF_HOST or self._wrong.total() >= WRONG_MAX:
            raise Overloaded(
                f"too many wrong names and secrets: the limit is {WRONG_OF_HOST} per minute. Wait a minute",
                field="wrong tries",
                limit=WRONG_OF_HOST,
            )
        given = secret.encode(errors="replace")[: 4 * SECRET_LENGTH_MAX]
        text = self._signed_text.encode()
        claim = Credentials(name[:NAME_LENGTH_MAX], signature(given, text), text)
        try:
            return self.guard.users.authenticated(claim)
        except NotAuthenticated as error:
            self._wrong[host] += 1
            self.guard.audit.denied("console", asked.peer, error)
            raise NotAuthenticated(_WRONG) from None

    def _signing(self, caller: HttpCaller, user: User) -> HttpCaller:
        """Return CALLER with a signature of USER."""
        made = signed(user.name, user.secret.decode(), self._signed_text)
        return caller._replace(metadata=dict(made))

    def _token_of(self, user: str) -> str:
        return hmac.new(self._key, user.encode(), "sha256").hexdigest()

    def sign_in(self, asked: PageRequest) -> tuple[str, str]:
        """Start a session for the form in ASKED; return the cookie, and the path to go to."""
        self.check_site(asked)
        form = _form(asked)
        if self.guard is None:
            raise InvalidArgument("this broker has no users: you need not sign in")
        user = self._known(asked, form.get("user", ""), form.get("secret", ""))
        self._sessions.pop(_key(_cookie(asked)), None)
        now_s = self._now_s()
        self._end_old_sessions(user.name, now_s)
        text = secrets.token_urlsafe(32)
        metadata = self._signing(HttpCaller(asked.peer), user).metadata
        self._sessions[_key(text)] = _Session(
            user.name, secrets.token_urlsafe(24), dict(metadata), now_s, now_s
        )
        self._audit("signed in to the console", asked, user.name)
        return _cookie_line(asked, text, LIFE_S), form.get("to", "/")

    def sign_out(self, asked: PageRequest, visitor: ConsoleSession) -> str:
        """End the session of VISITOR; return a cookie that removes the old one."""
        if self._sessions.pop(visitor.session, None) is not None:
            self._audit("signed out of the console", asked, visitor.user)
        return _cookie_line(asked, "", 0)

    def _end_old_sessions(self, user: str, now_s: float) -> None:
        for key in [key for key, one in self._sessions.items() if one.is_over(now_s)]:
            del self._sessions[key]
        own = [key for key, one in self._sessions.items() if one.user == user]
        full = own if len(own) >= SESSIONS_OF_USER else list(self._sessions)
        if full is own or len(full) >= SESSIONS_MAX:
            del self._sessions[min(full, key=lambda key: self._sessions[key].used_s)]

    def changed(self, asked: PageRequest, visitor: ConsoleSession, status: int) -> None:
        """Write a change by VISITOR, and the STATUS of the answer, to the audit log."""
        self._audit("console", asked, visitor.user, action=asked.path, status=status)

    def _audit(self, what: str, asked: PageRequest, user: str, **details: object) -> None:
        if self.guard is not None:
            self.guard.audit.changed(what, user=user, host=host_of(asked.peer), **details)


def host_in(text: str) -> str | None:
    """Return the host in TEXT, a `Host` header, in lower case without brackets and port; None: it is malformed."""
    found = _HOST.fullmatch(text)
    if found is None or int(found["port"] or 0) > _PORT_MAX:
        return None
    if found["name"] is not None:
        return found["name"].lower()
    try:
        ipaddress.IPv6Address(found["v6"])
    except ValueError:
        return None
    return found["v6"].lower()


def _forwarding(headers: Mapping[str, str]) -> str | None:
    """Return the name of a header in HEADERS that a proxy added, or None."""
    for name in headers:
        if name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES):
            return name
    return None


def _check_is_local(asked: PageRequest, passed_on: str | None) -> None:
    """Raise NotAllowed unless ASKED comes from this machine to a loopback name. PASSED_ON: header of a proxy."""
    if passed_on is not None or not is_loopback(host_of(asked.peer)):
        came = f"from {host_of(asked.peer)[:50] or 'an unknown address'}"
        if passed_on is not None:
            came = f"through a proxy (it has the header {passed_on[:50]})"
        raise NotAllowed(
            f"the request came {came}: without users the console and its API answer only this machine. Add users"
            " (docs/users-and-acls.md), or connect through `ssh -L 8081:127.0.0.1:8081`"
        )
    host = asked.headers.get("host", "")
    name = host_in(host)
    if name is None or not is_loopback(name):
        raise NotAllowed(_NOT_OWN.format(host[:100]))


def _basic(header: str) -> tuple[str, str]:
    """Return user and secret of an Authorization HEADER; raise NotAuthenticated."""
    kind, _, rest = header.partition(" ")
    try:
        if kind.lower() != "basic":
            raise ValueError
        user, _, secret = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        raise NotAuthenticated(
            "authorization: send HTTP Basic with user and secret, as curl -u USER does"
        ) from None
    return user, secret


def _form(asked: PageRequest) -> dict[str, str]:
    """Return the fields of the form in the body of ASKED; none if it is not a form."""
    kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded" or len(asked.body) > _FORM_BYTES_MAX:
        return {}
    try:
        return dict(parse_qsl(asked.body.decode(), keep_blank_values=True, max_num_fields=8))
    except ValueError:
        raise InvalidArgument("the form is not UTF-8, or has more than 8 fields") from None


# A browser sends cookies to all ports of a host: the name contains the port, so that brokers do not mix them up.
def _cookie_name(asked: PageRequest) -> str:
    port = asked.headers.get("host", "").rpartition(":")[2]
    name = f"pocketmq-{port}" if port.isdigit() else "pocketmq"
    return f"__Host-{name}" if asked.secure else name


def _cookie(asked: PageRequest) -> str:
    wanted = _cookie_name(asked)
    for part in asked.headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return value
    return ""


def _cookie_line(asked: PageRequest, value: str, life_s: int) -> str:
    secure = "; Secure" if asked.secure else ""
    return f"{_cookie_name(asked)}={value}; Path=/; Max-Age={life_s}; HttpOnly; SameSite=Strict{secure}"


def _key(text: str) -> bytes:
    """Return the key of the session with the cookie TEXT."""
    return hashlib.sha256(text.encode(errors="replace")).digest()
