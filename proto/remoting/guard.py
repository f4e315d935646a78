"""The guard of a remoting port: it authenticates requests, and checks permissions by request code.

    guard = RemotingGuard(users.guard, handlers, rules)
    RemotingProtocol(handlers, check=guard.check, …)

A rule yields what a request needs, see `access/guard.py`. Each code with a handler must have one. A request with
another code needs a user only: it is answered with code 3.

Each request is checked with the users of its moment. What heartbeats and pulls need lasts longer than they do, and is
remembered for their connection. When users change, it is checked again: a connection that has lost a permission is
closed, so that the client reconnects and gets the reason.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from ..access.guard import Guard, IgnoredCredentials, Rule
from ..access.policies import Need
from ..access.signing import BAD_SIGNATURE, NO_USER
from ..access.users import NAME_LENGTH_MAX, User
from ..errors import NotAuthenticated, NotAuthorized, PocketMQError
from ..topics import NAME_SIZE_MAX
from .codes import RequestCode
from .connection import RemotingConnection
from .requests import RemotingRequest, RequestUser
from .server import Check
from .signatures import ACCESS_KEY, claim_in

logger = logging.getLogger(__name__)

#: Requests whose effect lasts: a membership in groups, a wait for messages.
_LASTING: Final = frozenset(
    {RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
)
#: Needs remembered for one connection. With more, any change of users closes it.
_NEEDS_MAX: Final = 256
#: Users remembered for one connection.
_USERS_MAX: Final = 16
_NAMES: Final = {int(code): code.name for code in RequestCode}


class RemotingGuard:
    """Allows or denies requests with GUARD, by RULES. HANDLERS are those of the port, by request code."""

    def __init__(self, guard: Guard, handlers: Iterable[int], rules: Mapping[int, Rule]) -> None:
        missing = sorted(set(handlers) - rules.keys())
        assert not missing, f"request codes without a rule: {missing}"
        self._guard = guard
        self._rules = dict(rules)
        self._connections: dict[RemotingConnection, _GuardedConnection] = {}

    def check(self, request: RemotingRequest) -> None:
        """Set the user of REQUEST. Raise NotAuthenticated, NotAuthorized, or what is wrong with the request."""
        try:
            self._check(request)
        except (NotAuthenticated, NotAuthorized) as error:
            code = request.command.code
            method = f"remoting/{_NAMES.get(code, code)}"
            self._guard.audit.denied(method, request.connection.peer, error)
            raise _explained(error) from None

    def _check(self, request: RemotingRequest) -> None:
        connection = request.connection
        claim = claim_in(request.command)
        signer = None if claim is None else self._guard.users.authenticated(claim)
        user = self._guard.sender(connection, signer)
        rule = self._rules.get(request.command.code)
        if rule is None:
            return
        known = self._connections.get(connection)
        if known is None:
            known = self._enter(connection)
        request.user = known.user(user, is_signed=signer is not None)
        if request.command.code in _LASTING:
            needs = tuple(rule(request))
            self._guard.allow(user, connection, needs)
            known.remember(request.user, needs)
        elif not user.is_super:
            self._guard.allow(user, connection, rule(request))

    def _enter(self, connection: RemotingConnection) -> _GuardedConnection:
        known = self._connections[connection] = _GuardedConnection(self._guard, connection)
        self._guard.note(known, is_open=True)
        connection.on_close(lambda: self._leave(connection))
        return known

    def _leave(self, connection: RemotingConnection) -> None:
        known = self._connections.pop(connection, None)
        if known is not None:
            self._guard.note(known, is_open=False)


def noticing() -> Check:
    """Return the check of a server without users. It logs once per client that credentials are ignored."""
    ignored = IgnoredCredentials()

    def check(request: RemotingRequest) -> None:
        user = request.command.fields.get(ACCESS_KEY, "")
        if user and user.isprintable():  # Other characters could forge lines of the log.
            ignored.note(request.connection.peer, user[:NAME_LENGTH_MAX])

    return check


def _explained(error: PocketMQError) -> PocketMQError:
    """Return ERROR, with advice if the request had no credentials."""
    if error.message != NO_USER:
        return error
    return NotAuthenticated(
        f"{NO_USER.rstrip('.')}: this server has users. Sign requests, in Java with AclClientRPCHook and in Go with"
        " WithCredentials"
    )


class GuardedUser(RequestUser):
    """PROVED, the user of requests on CONNECTION. IS_SIGNED: by a signature; otherwise by the certificate."""

    __slots__ = ("_connection", "_guard", "_is_signed", "name", "proved")

    def __init__(
        self, guard: Guard, connection: RemotingConnection, proved: User, *, is_signed: bool
    ) -> None:
        self._guard = guard
        self._connection = connection
        self._is_signed = is_signed
        self.proved = proved
        self.name = proved.name

    def may(self, need: Need) -> bool:
        try:
            self.check((need,))
        except (NotAuthenticated, NotAuthorized):
            return False
        return True

    def check(self, needs: Iterable[Need]) -> None:
        """Raise NotAuthenticated or NotAuthorized unless the user may do at present all that NEEDS describe."""
        self._guard.allow(self._current(), self._connection, needs)

    def _current(self) -> User:
        """Return the user as it is now; raise NotAuthenticated if the proof is no longer valid."""
        users = self._guard.users
        if not self._is_signed:
            found = users.certified(self._connection.certificate_names)
            is_proved = True
        else:
            found = users.find(self.name)
            is_proved = found is not None and hmac.compare_digest(found.secret, self.proved.secret)
        if found is None or found.name != self.name or not is_proved:
            raise NotAuthenticated(BAD_SIGNATURE, user=self.name)
        found.check_enabled()
        return found


class _GuardedConnection:
    """The users of CONNECTION, and what they were allowed that lasts."""

    __slots__ = ("_connection", "_guard", "_has_forgotten", "_needs", "_users")

    def __init__(self, guard: Guard, connection: RemotingConnection) -> None:
        self._guard = guard
        self._connection = connection
        self._users: dict[tuple[str, bool], GuardedUser] = {}
        #: None: only that it is the user.
        self._needs: dict[tuple[GuardedUser, Need | None], None] = {}
        self._has_forgotten = False

    def user(self, proved: User, *, is_signed: bool) -> GuardedUser:
        """Return PROVED as the user of a request. Requests share it."""
        found = self._users.get((proved.name, is_signed))
        if (
            found is not None
            and found.proved is not proved
            and found.proved.secret == proved.secret
        ):
            found.proved = proved  # The same user, after a change of users.
        if found is None or found.proved is not proved:
            if len(self._users) >= _USERS_MAX:
                self._users.clear()
            found = GuardedUser(self._guard, self._connection, proved, is_signed=is_signed)
            self._users[proved.name, is_signed] = found
        return found

    def remember(self, user: GuardedUser, needs: Iterable[Need]) -> None:
        """Check NEEDS of USER again when users change."""
        # Producers need nothing but their user. A handler refuses longer names.
        kept = (need for need in needs if len(need.name) <= NAME_SIZE_MAX)
        for need in (None, *kept):
            if len(self._needs) >= _NEEDS_MAX and (user, need) not in self._needs:
                self._needs.clear()
                self._has_forgotten = True
            self._needs[user, need] = None

    def look_again(self) -> None:
        """Close the connection unless its users are still allowed everything that lasts."""
        try:
            for user, need in self._needs:
                user.check(() if need is None else (need,))
            if not self._has_forgotten:
                return
        except (NotAuthenticated, NotAuthorized) as error:
            self._guard.audit.denied("remoting", self._connection.peer, error)
        except Exception:  # Without a certain permission, the connection ends.
            logger.exception("remoting connection not checked again peer=%s", self._connection.peer)
        self._connection.end("users changed")
