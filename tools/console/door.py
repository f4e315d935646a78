"""Who may ask the console and its API: people on this machine, or, where the broker has users, users from anywhere.

Without users:

    the peer          a loopback address, and no header that a proxy adds (Forwarded, Via, X-Forwarded-Proto, …)
    Host              `localhost` or a loopback address (`host_in`): a site that resolves its own name to 127.0.0.1
                      (DNS rebinding) is refused, also at /metrics

With users each request is somebody's, by HTTP Basic or by the cookie of a session that a form began, and each of the
broker's methods asks the guard what that one may do, from the address of the socket:

    plaintext         from another machine, or passed on by a proxy, only with the setting plaintext_credentials
    a session         a random cookie: HttpOnly, SameSite=Strict, with TLS Secure; kept in memory, bounded in time too
    wrong tries       WRONG_OF_HOST a minute of one host, WRONG_MAX of all; then nobody signs in until it is over

Either way who changes something does so by our own page: `Origin`, or without one `Referer`, is the same, and
X-PocketMQ-Token is what GET /api/session tells. A page of another site can read no answer from here, so it does not get
the token. Where its browser says whose it is (Sec-Fetch-Site), it is not even answered; a link is.
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
#: Headers that proxies, load balancers and CDNs add to a request: one of them says that somebody else asks.
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
#: What browsers say of requests that another site's page makes, but for a link that is followed.
_FOREIGN: Final = ("cross-site", "same-site")

#: A session ends when nothing was asked in it for so long, or when it is so old.
IDLE_S: Final = 30 * 60
LIFE_S: Final = 12 * 60 * 60
#: Sessions at once; of one user. A further one ends the one of that user, or of all, that was used least lately.
SESSIONS_MAX: Final = 1_000
SESSIONS_OF_USER: Final = 16
#: Wrong names and secrets a minute, of one host and of all.
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
    """The console does not answer this request; the sentence says why."""

    status = "PERMISSION_DENIED"


class NotSignedIn(NotAuthenticated):
    """Nobody has said who asks."""


class Visitor(NamedTuple):
    """Who asks: CALLER as the guard is told, USER "" where there are none; who changes something shows TOKEN."""

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
    """Lets requests in by GUARD, that of the broker's users; None: none. NOW_S: a clock that is never set back."""

    def __init__(self, guard: Guard | None, now_s: Callable[[], float]) -> None:
        self.guard = guard
        self._now_s = now_s
        #: What tokens are made of, and what is signed for those who have shown their secrets; new at each start.
        self._key = secrets.token_bytes(32)
        self._signed_text = secrets.token_hex(16)
        self.token = self._token_of("")
        self._sessions: dict[bytes, _Session] = {}
        self._wrong: Counter[str] = Counter()
        self._minute = -1

    # --- each request

    def admit(self, asked: PageRequest) -> Visitor:
        """Return who asks; raise NotAllowed, NotSignedIn, NotAuthenticated or Overloaded."""
        self.check_site(asked)
        visitor = self._visitor(asked)
        if asked.method not in READING:
            shown = asked.headers.get(TOKEN, "") or _form(asked).get("token", "")
            if not hmac.compare_digest(shown.encode(), visitor.token.encode()):
                raise NotAllowed(
                    f"the header {TOKEN} is missing or old: GET /api/session tells the one that holds"
                )
        return visitor

    def is_in(self, visitor: Visitor) -> bool:
        """May VISITOR, who was let in, still be there?"""
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
        """Raise NotAllowed unless ASKED comes by our own page, or by none."""
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
                    "a page of another site may ask nothing here: open this one itself"
                )
            return
        # Where a proxy has taken the TLS away, the page came by https all the same.
        schemes = ("http", "https") if passed_on else ("https" if asked.secure else "http",)
        own = [f"{scheme}://{headers.get('host', '')}" for scheme in schemes]
        origin = headers.get("origin", own[0])
        if "origin" not in headers and "referer" in headers:
            origin = "/".join(headers["referer"].split("/", 3)[:3])
        if origin not in own or is_foreign:
            raise NotAllowed(f"a page of {origin[:100]!r} may change nothing here")

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

    def _visitor(self, asked: PageRequest) -> Visitor:
        caller = HttpCaller(asked.peer, asked.secure)
        if self.guard is None:
            return Visitor(caller, self.token)
        shown = asked.headers.get("authorization")
        if shown is not None:
            user = self._known(asked, *_basic(shown))
            return Visitor(self._signing(caller, user), self._token_of(user.name), user.name)
        key = _key(_cookie(asked))
        session = self._sessions.get(key)
        if session is not None:
            now_s = self._now_s()
            visitor = Visitor(
                caller._replace(metadata=session.metadata), session.token, session.user, key
            )
            if not session.is_over(now_s) and self.is_in(visitor):
                session.used_s = now_s
                return visitor
            del self._sessions[key]
        raise NotSignedIn(
            "this broker has users: sign in at /sign-in, or send user and secret by HTTP Basic (curl -u USER)"
        )

    # --- users

    def _known(self, asked: PageRequest, name: str, secret: str) -> User:
        """Return user NAME, whose secret is SECRET; raise NotAuthenticated, or Overloaded after too many wrong tries.

        A user who is not there and a secret that is wrong say the same, and take the same time.
        """
        assert self.guard is not None
        minute = int(self._now_s() // _MINUTE_S)
        if minute != self._minute:
            self._minute = minute
            self._wrong.clear()
        host = owner_of(asked.peer)
        if self._wrong[host] >= WRONG_OF_HOST or self._wrong.total() >= WRONG_MAX:
            raise Overloaded(
                f"too many wrong names and secrets, {WRONG_OF_HOST} a minute are taken: wait a minute",
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
        """Return CALLER with what USER would sign."""
        made = signed(user.name, user.secret.decode(), self._signed_text)
        return caller._replace(metadata=dict(made))

    def _token_of(self, user: str) -> str:
        return hmac.new(self._key, user.encode(), "sha256").hexdigest()

    # --- sessions

    def sign_in(self, asked: PageRequest) -> tuple[str, str]:
        """Begin a session as the form ASKED says; return the cookie, and the path to continue at."""
        self.check_site(asked)
        form = _form(asked)
        if self.guard is None:
            raise InvalidArgument("this broker has no users: there is nobody to sign in as")
        user = self._known(asked, form.get("user", ""), form.get("secret", ""))
        self._sessions.pop(_key(_cookie(asked)), None)
        now_s = self._now_s()
        self._make_room(user.name, now_s)
        text = secrets.token_urlsafe(32)
        metadata = self._signing(HttpCaller(asked.peer), user).metadata
        self._sessions[_key(text)] = _Session(
            user.name, secrets.token_urlsafe(24), dict(metadata), now_s, now_s
        )
        self._tell("signed in to the console", asked, user.name)
        return _cookie_line(asked, text, LIFE_S), form.get("to", "/")

    def sign_out(self, asked: PageRequest, visitor: Visitor) -> str:
        """End the session of VISITOR; return the cookie that takes the old one away."""
        if self._sessions.pop(visitor.session, None) is not None:
            self._tell("signed out of the console", asked, visitor.user)
        return _cookie_line(asked, "", 0)

    def _make_room(self, user: str, now_s: float) -> None:
        for key in [key for key, one in self._sessions.items() if one.is_over(now_s)]:
            del self._sessions[key]
        own = [key for key, one in self._sessions.items() if one.user == user]
        full = own if len(own) >= SESSIONS_OF_USER else list(self._sessions)
        if full is own or len(full) >= SESSIONS_MAX:
            del self._sessions[min(full, key=lambda key: self._sessions[key].used_s)]

    # --- the audit log

    def changed(self, asked: PageRequest, visitor: Visitor, status: int) -> None:
        """Note what VISITOR has had done, or tried, and the STATUS of the answer."""
        self._tell("console", asked, visitor.user, action=asked.path, status=status)

    def _tell(self, what: str, asked: PageRequest, user: str, **details: object) -> None:
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
    """Return the name of a header that a proxy added to a request with HEADERS; None: there is none."""
    for name in headers:
        if name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES):
            return name
    return None


def _check_is_local(asked: PageRequest, passed_on: str | None) -> None:
    """Raise NotAllowed unless a program on this machine asks for a loopback name. PASSED_ON: a proxy's header."""
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
            "authorization: HTTP Basic with a user and a secret is wanted, as of curl -u USER"
        ) from None
    return user, secret


def _form(asked: PageRequest) -> dict[str, str]:
    """Return the fields of the form that ASKED has for a body; none, if it has another one."""
    kind = asked.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded" or len(asked.body) > _FORM_BYTES_MAX:
        return {}
    try:
        return dict(parse_qsl(asked.body.decode(), keep_blank_values=True, max_num_fields=8))
    except ValueError:
        raise InvalidArgument("the form is not one in UTF-8 of at most 8 fields") from None


# A browser sends cookies to all ports of a host: the name tells brokers on one machine apart.
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
    """Return what a session is kept under whose cookie is TEXT."""
    return hashlib.sha256(text.encode(errors="replace")).digest()
