"""The guard of a server's methods: it authenticates the caller and checks permissions. Without users it does nothing.

    guard = Guard(users, audit)
    table = guard.guarded(table, rules)          carriers serve this one
    guard.replace(users)                         new users, also for open streams

A rule returns what a request needs. Each path must have one, or `guarded` raises. The caller is identified by its
signature or its verified certificate, and its address by the socket. A call with a missing or wrong signature is
refused before anything else happens.

A stream is authenticated when it starts, and each message is authorized. When users change, open streams are checked
again. A stream that has lost a permission ends UNAVAILABLE, so that the client reconnects and gets the reason.

    Broker       Topic              Group              Cluster
      Produce      Pub
      Fetch        Sub                Sub, if named
      …
    NameServer   Route: Pub, Sub or Get on each topic; Register: Update on the cluster

To list or count everything of a kind, a user needs List or Get on all of it (`Topic:*`, `Group:*`). Any user may look
up brokers, ping them and ask for their time. Health and reflection need no user, because probes have no secrets.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

from google.protobuf.message import Message

from ..errors import ConnectionLost, NotAuthenticated, NotAuthorized, PocketMQError
from ..errors_wire import to_wire
from ..gen import pocketmq_v1_pb2 as pb
from ..rpc import CallContext, CallUser, Method, MethodKind, MethodTable, Receiver, Stream
from . import policies, signing
from .audit import Audit, host_of
from .signing import NO_USER
from .users import User, Users

logger = logging.getLogger(__name__)

#: Yields what a request needs.
Rule: TypeAlias = Callable[[Any], Iterable[policies.Need]]
#: Needs remembered for one stream, to check them again when users change. With more, any change ends the stream.
_NEEDS_MAX: Final = 1_000
#: Clients with credentials that are logged one by one, at a server without users.
_NOTICED_MAX: Final = 1_000


def any_user(request: Any) -> Iterable[policies.Need]:
    """Require an authenticated user, but no permission."""
    return ()


def anybody(request: Any) -> Iterable[policies.Need]:
    """Require nothing: `guarded` leaves the method unchanged."""
    return ()


class ConnectedPeer(Protocol):
    """The other end of a connection."""

    @property
    def peer(self) -> str: ...

    @property
    def is_secure(self) -> bool: ...

    @property
    def certificate_names(self) -> Sequence[str]: ...


class Caller(ConnectedPeer, Protocol):
    """What is known of the caller: the other end of the connection, and the proof of its user."""

    @property
    def metadata(self) -> Mapping[str, str]: ...


class Watched(Protocol):
    """What is checked again when users change."""

    def look_again(self) -> None:
        """End it unless it is still allowed."""
        ...


class Refusal:
    """How a refused call is answered: with its status. Services with other answers have subclasses."""

    def unary(self, method: Method, error: PocketMQError) -> Message:
        """Return the answer to a call refused with ERROR, or raise it."""
        raise error

    def stream(self, method: Method, stream: Stream, error: PocketMQError) -> None:
        """End STREAM, which is refused with ERROR."""
        stream.fail(error)

    def message(self, method: Method, stream: Stream, message: Any, error: PocketMQError) -> bool:
        """Answer MESSAGE, which is refused with ERROR; return whether STREAM continues."""
        self.stream(method, stream, error)
        return False


class Guard:
    """Allows or denies calls to a server by the policies of USERS. AUDIT logs what is denied.

    PLAINTEXT: accept signatures without TLS from other machines. Anyone on the network path can replay these.
    CLUSTER: name of the cluster for needs of system topics; "*" at a name server, which serves several.
    """

    def __init__(
        self, users: Users, audit: Audit, *, plaintext: bool = False, cluster: str = "*"
    ) -> None:
        self.users = users
        self.audit = audit
        self.cluster = cluster
        self._plaintext = plaintext
        self._open: dict[Watched, None] = {}
        self._call_users: dict[str, _GuardedUser] = {}

    def replace(self, users: Users) -> None:
        """Use USERS from now on, and check open streams again."""
        self.users = users
        self._call_users.clear()
        for watched in list(self._open):
            try:
                watched.look_again()
            except Exception:  # One failure must not keep the other streams from being checked.
                logger.exception("an open stream was not ended")

    def caller(self, call: Caller) -> User:
        """Return the user of CALL; raise NotAuthenticated."""
        return self.sender(call, self.users.caller(call.metadata))

    def sender(self, call: ConnectedPeer, signer: User | None) -> User:
        """Return the user of CALL: SIGNER, or else the one of its certificate; raise NotAuthenticated."""
        if signer is None:
            user = self.users.certified(call.certificate_names)
            if user is None:
                raise NotAuthenticated(NO_USER)
            return user
        self.check_way(call, signer.name)
        return signer

    def check_way(self, call: ConnectedPeer, user: str = "", *, passed_on: bool = False) -> None:
        """Raise NotAuthenticated if CALL came in plaintext from another machine, unless that is allowed.

        PASSED_ON: the peer relays the call of a client, which may be on any machine.
        """
        is_here = policies.is_loopback(host_of(call.peer)) and not passed_on
        if not (self._plaintext or call.is_secure or is_here):
            raise NotAuthenticated(
                f"credentials came in plaintext from {host_of(call.peer)}: connect with TLS, or set"
                " plaintext_credentials: true on the server",
                user=user,
            )

    def call_user(self, user: User) -> CallUser:
        """Return USER in the form for handlers of calls."""
        found = self._call_users.get(user.name)
        if found is None:
            found = self._call_users[user.name] = _GuardedUser(self, user.name)
        return found

    def check(self, call: Caller, rule: Rule, request: Any) -> User:
        """Return the user of CALL. Raise NotAuthenticated, or NotAuthorized if RULE refuses REQUEST."""
        user = self.caller(call)
        if not user.is_super:
            self.allow(user, call, rule(request))
        return user

    def allow(self, user: User, call: ConnectedPeer, needs: Iterable[policies.Need]) -> None:
        """Raise NotAuthorized unless USER, who sent CALL, may do all that NEEDS describe."""
        if user.is_super:
            return
        host = host_of(call.peer)
        for asked in needs:
            plain = asked._replace(hidden_as="") if asked.hidden_as else asked
            for need in policies.expanded(plain, self.cluster):
                decision = user.policies.decide(need, host)
                if not decision.allowed:
                    raise _not_authorized(user, need, asked, host, decision)

    def denied(self, method: Method, call: CallContext, error: PocketMQError) -> None:
        """Log that CALL of METHOD was refused with ERROR, unless the request is malformed."""
        if isinstance(error, NotAuthenticated | NotAuthorized):
            self.audit.denied(method.path, call.peer, error)

    def guarded(
        self, table: MethodTable, rules: Mapping[str, Rule], refusal: Refusal | None = None
    ) -> MethodTable:
        """Return TABLE with each method guarded by its rule, by path."""
        missing = [method.path for method in table if method.path not in rules]
        assert not missing, f"methods without a rule: {missing}"
        answers = refusal or Refusal()
        return MethodTable(
            {method.path: self._guarded(method, rules[method.path], answers) for method in table}
        )

    def _guarded(self, method: Method, rule: Rule, refusal: Refusal) -> Method:
        if rule is anybody:
            return method
        if method.kind is MethodKind.UNARY:
            handler = self._unary(method, rule, refusal)
        elif method.kind is MethodKind.SERVER_STREAM:
            handler = self._server_stream(method, rule, refusal)
        else:
            handler = self._bidi(method, rule, refusal)
        return replace(method, handler=handler)

    def _unary(self, method: Method, rule: Rule, refusal: Refusal) -> Callable[..., Any]:
        check, handler = self.check, method.handler

        def unary(request: Any, call: Any) -> Any:
            try:
                call.user = self.call_user(check(call, rule, request))
            except PocketMQError as error:
                self.denied(method, call, error)
                return refusal.unary(method, error)
            return handler(request, call)

        async def unary_later(request: Any, call: Any) -> Any:
            try:
                call.user = self.call_user(check(call, rule, request))
            except PocketMQError as error:
                self.denied(method, call, error)
                return refusal.unary(method, error)
            return await handler(request, call)

        return unary_later if inspect.iscoroutinefunction(handler) else unary

    def _server_stream(self, method: Method, rule: Rule, refusal: Refusal) -> Callable[..., Any]:
        check, handler = self.check, method.handler

        def is_refused(request: Any, stream: Any) -> bool:
            try:
                stream.user = self.call_user(check(stream, rule, request))
            except PocketMQError as error:
                self.denied(method, stream, error)
                refusal.stream(method, stream, error)
                return True
            return False

        def server_stream(request: Any, stream: Any) -> None:
            if not is_refused(request, stream):
                handler(request, stream)

        async def server_stream_later(request: Any, stream: Any) -> None:
            if not is_refused(request, stream):
                await handler(request, stream)

        return server_stream_later if inspect.iscoroutinefunction(handler) else server_stream

    def _bidi(self, method: Method, rule: Rule, refusal: Refusal) -> Callable[..., Any]:
        def bidi(stream: Any) -> Receiver[Any]:
            receiver = _GuardedReceiver(self, method, rule, refusal, stream)
            receiver.begin()
            return receiver

        return bidi

    def note(self, watched: Watched, *, is_open: bool) -> None:
        """Check WATCHED again when users change, if IS_OPEN; otherwise no longer."""
        if is_open:
            self._open[watched] = None
        else:
            self._open.pop(watched, None)


def _not_authorized(
    user: User,
    need: policies.Need,
    asked: policies.Need,
    host: str,
    decision: policies.Judgement,
) -> NotAuthorized:
    because = "" if need is asked else f" (system topic {asked.name})"
    what = f"{need}{because} from {host}, {decision.reason}"
    if asked.hidden_as:  # The reason of the decision would be one about the name.
        what = f"{asked.hidden_as} from {host}"
    return NotAuthorized(
        f"User:{user.name} has no permission to access {what}.",
        user=user.name,
        resource=str(need),
        actions=",".join(policies.action_names(need.actions)),
        policy="" if decision.policy is None else str(decision.policy),
    )


class IgnoredCredentials:
    """The clients whose credentials a server without users ignores. Each is logged once, up to a limit."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def note(self, peer: str, user: str) -> None:
        """Note a call from PEER in the name of USER; "": it has no credentials."""
        if not user:
            return
        key = host_of(peer), user
        if key not in self._logged and len(self._logged) < _NOTICED_MAX:
            self._logged.add(key)
            logger.warning(
                "credentials count for nothing, this server has no users host=%s user=%s", *key
            )


def noticing(table: MethodTable) -> MethodTable:
    """Return TABLE for a server without users. It logs once per client that credentials are ignored.

    Only the start of a stream is checked. Every client has a stream, and other calls cost nothing more.
    """
    ignored = IgnoredCredentials()

    def watched(method: Method) -> Method:
        if method.kind is not MethodKind.BIDI:
            return method

        def bidi(stream: Any) -> Any:
            ignored.note(stream.peer, signing.claimed_user(stream.metadata))
            return method.handler(stream)

        return replace(method, handler=bidi)

    return MethodTable({method.path: watched(method) for method in table})


class _GuardedUser(CallUser):
    """User NAME of GUARD. Calls share it: an object per call that refers to its call would be a reference cycle."""

    __slots__ = ("_guard", "name")

    def __init__(self, guard: Guard, name: str) -> None:
        self._guard = guard
        self.name = name

    def may(self, call: CallContext, need: policies.Need) -> bool:
        try:
            self._guard.check(call, lambda needs: needs, (need,))
        except (NotAuthenticated, NotAuthorized):
            return False
        return True


class _GuardedReceiver:
    """The receiver of one open stream. It passes on the messages that its caller may send."""

    __slots__ = (
        "_guard",
        "_has_forgotten",
        "_inner",
        "_method",
        "_needs",
        "_refusal",
        "_refused",
        "_rule",
        "_stream",
    )

    def __init__(
        self, guard: Guard, method: Method, rule: Rule, refusal: Refusal, stream: Stream
    ) -> None:
        self._guard = guard
        self._method = method
        self._rule = rule
        self._refusal = refusal
        self._stream = stream
        #: None: the stream is refused, and later messages are ignored.
        self._inner: Receiver[Any] | None = None
        #: The stream is refused at its first message: clients that write to an ended stream may not get the reason.
        self._refused: PocketMQError | None = None
        self._needs: dict[policies.Need, None] = {}
        #: Was it allowed more than `_needs` contains? (A Super user, or more needs than are remembered.)
        self._has_forgotten = False

    def begin(self) -> None:
        """Start the stream, or refuse it."""
        try:
            user = self._guard.caller(self._stream)
            self._has_forgotten = user.is_super
        except PocketMQError as error:
            self._guard.denied(self._method, self._stream, error)
            self._refused = error
            return
        stream = self._stream
        stream.user = self._guard.call_user(user)
        self._inner = self._method.handler(stream)
        self._guard.note(self, is_open=True)

    def on_message(self, message: Any) -> Awaitable[None] | None:
        if self._inner is None:
            self._refuse()
            return None
        try:
            self._guard.check(self._stream, self._noted, message)
        except PocketMQError as error:
            self._guard.denied(self._method, self._stream, error)
            if not self._refusal.message(self._method, self._stream, message, error):
                self._let_go()
            return None
        return self._inner.on_message(message)

    def _noted(self, message: Any) -> Iterable[policies.Need]:
        """Return the needs of MESSAGE, and remember them for when users change."""
        needs = tuple(self._rule(message))
        if len(self._needs) > _NEEDS_MAX:
            self._needs.clear()
            self._has_forgotten = True
        self._needs.update(dict.fromkeys(needs))
        return needs

    def look_again(self) -> None:
        """End the stream unless it is still allowed everything that it was allowed before."""
        try:
            user = self._guard.caller(self._stream)
            self._guard.check(self._stream, lambda needs: needs, self._needs)
            self._has_forgotten |= user.is_super
            if user.is_super or not self._has_forgotten:
                return
        except PocketMQError as error:
            self._guard.denied(self._method, self._stream, error)
        except Exception:  # Without a certain permission, the stream ends.
            logger.exception("open stream not checked again path=%s", self._method.path)
        self._guard.note(self, is_open=False)
        self._stream.fail(
            ConnectionLost("the permissions of this stream's user have changed: connect again")
        )

    def _refuse(self) -> None:
        error, self._refused = self._refused, None
        if error is not None:
            self._refusal.stream(self._method, self._stream, error)

    def on_end(self) -> None:
        self._refuse()
        if self._inner is not None:
            self._inner.on_end()

    def on_close(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        self._guard.note(self, is_open=False)
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.on_close()


def _explained(error: PocketMQError) -> PocketMQError:
    """Return ERROR, with advice if the call had no credentials."""
    if error.message != NO_USER:
        return error
    return NotAuthenticated(
        f"{NO_USER.rstrip('.')}: this server has users. Give one with user= and secret=, or with POCKETMQ_USER and"
        " POCKETMQ_SECRET or POCKETMQ_SECRET_FILE"
    )


class OwnRefusal(Refusal):
    """Refuses one batch or fetch in the answer to a PocketMQ client; the stream continues with the others."""

    def unary(self, method: Method, error: PocketMQError) -> Message:
        return super().unary(method, _explained(error))

    def stream(self, method: Method, stream: Stream, error: PocketMQError) -> None:
        super().stream(method, stream, _explained(error))

    def message(self, method: Method, stream: Stream, message: Any, error: PocketMQError) -> bool:
        if method.request_type is pb.ProduceRun:
            stream.send(pb.ProduceReply(run_id=message.run_id, error=to_wire(error)))
        elif method.request_type is pb.FetchRequest:
            stream.send(pb.FetchReply(fetch_id=message.fetch_id, error=to_wire(error)))
        else:
            return super().message(method, stream, message, error)
        return True
