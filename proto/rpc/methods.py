"""Methods as handlers know them: tables of methods, calls and streams, whatever carries them.

A service is a `MethodTable`: for each method its path, its kind, its protobuf types and a handler. A *carrier*
hangs tables on something that speaks gRPC: `server.py` on HTTP/2 of its own. Handlers import this module and nothing of
the carrier; a carrier knows nothing of the handlers but what stands here.

    kind           handler
    UNARY          handler(request, call) -> reply | LATER        a plain function, or a coroutine function
    SERVER_STREAM  handler(request, stream) -> None               a plain function, or a coroutine function
    BIDI           handler(stream) -> Receiver                    a plain function

Duties of a handler
  - It runs on the event loop and returns promptly. What waits for one event is a plain function that returns
    `LATER` (or keeps its stream) and completes it from the event's callback; only what waits over many steps is a
    coroutine, because a task per call costs 20-30 µs.
  - It answers once: `reply` or `fail` for a call, `finish` or `fail` for a stream. An exception is an answer too: an
    `RpcError` becomes its status, anything else a logged INTERNAL that tells nothing of the inside.
  - It lets go of what it holds for a caller that has gone: `on_cancel`, or the receiver's `on_close`.

Duties of a carrier (`Carrier`)
  - It decodes requests; bytes that do not decode are INVALID_ARGUMENT, and no handler hears of them.
  - It calls everything on the loop's thread, one message of a stream after the other, and never again after
    `on_close`, which comes exactly once and last, for every `Receiver` that a handler returned.
  - It keeps the order of `send`, and reads no further message of a stream while the awaitable that
    `on_message` returned is pending or the outgoing queue stands at its bound.
  - It drops answers to callers that have gone, without an error: they may race with a flush.

What the connections of a server share: its methods and bounds, bytes that are held for peers, and deadlines.

Those bytes are bounded over all connections, with one bound and no fixed share: a single busy peer may have nearly all
of it. Where all of it is in use, room is made for whoever comes by taking from the others in the order of their
burdens: bytes that are held, times how long they have been. The host whose connections are the greatest burden together
gives first, so that many connections that hold a little each are one burden; of its connections the greatest, so that
of many clients behind one address those that go on keep what they have. Who sends a request, or takes an answer, at any
pace that a network has is next to none.

Cost: nothing per call that holds nothing; else two look-ups in a table. Room is made an eighth of the bound at once, so
that looking through all holders happens once for so many bytes.

Deadlines are seldom met: thousands of calls wait for an answer, and each ends at its instant if none comes. Those of
one step of time share a set, so that adding and cancelling cost a hash each, and only steps are kept in order. A
deadline is met at the end of its step: late by `STEP_MS` at most, never early. Pure: the owner brings the time.
"""

from __future__ import annotations

import enum
import heapq
import inspect
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar, cast, runtime_checkable

from google.protobuf.message import Message

from .connection import ServerConnection
from .errors import BadRequest, Describe, RpcError, described, not_read
from .limits import Limits, owner_of
from .pages import Page, PageCalls
from .protocol import Inflater, failed

logger = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
RequestIn = TypeVar("RequestIn", bound=Message, contravariant=True)


class Later(enum.Enum):
    """The type of `LATER`."""

    LATER = "later"


#: Returned by a unary handler that will complete its call from a callback.
LATER: Final = Later.LATER


class CallUser:
    """The user who sends calls, as a guard found out. This one is anybody: the server has no users."""

    __slots__ = ()
    #: "": the server has no users.
    name: str = ""

    def may(self, call: CallContext, need: Any) -> bool:
        """May the user, who sent CALL, do at present what NEED says?"""
        return True


ANYBODY: Final = CallUser()


class CallContext(ABC):
    """What calls and streams have in common: who asks, until when, and whether they still wait."""

    __slots__ = ("_on_cancel", "cancelled", "outlasts", "user")

    def __init__(self) -> None:
        #: The user; set by the guard before the handler.
        self.user: CallUser = ANYBODY
        #: The caller has gone before it was answered; answers are dropped.
        self.cancelled = False
        #: It goes on when a carrier serves other tables in place of its own.
        self.outlasts = False
        self._on_cancel: list[Callable[[], None]] = []

    @property
    @abstractmethod
    def peer(self) -> str:
        """The caller's end of the connection, "127.0.0.1:40312" or "[::1]:40312"."""

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, str]:
        """The request's metadata, keys in lower case; binary entries ("-bin") are left out."""

    @property
    def is_secure(self) -> bool:
        """Did it come over TLS?"""
        return False

    @property
    def certificate_names(self) -> Sequence[str]:
        """The names in the caller's certificate, if it showed one that was verified."""
        return ()

    @property
    @abstractmethod
    def deadline_ms(self) -> int | None:
        """Milliseconds from now until the caller gives up (0 if it has); None: it waits without end."""

    @abstractmethod
    def add_trailing(self, name: str, value: str) -> None:
        """Have the metadata that follows a good answer say VALUE under NAME, once each; before it is answered."""

    @abstractmethod
    def fail(self, error: RpcError) -> None:
        """Answer with ERROR; of a stream, after what was sent before."""

    def outlast(self) -> None:
        """Let it go on beside the tables that come after its own: what answers it is not of its own."""
        self.outlasts = True

    def on_cancel(self, function: Callable[[], None]) -> None:
        """Have FUNCTION called once if the caller goes before it is answered; at once if it has gone."""
        if self.cancelled:
            function()
        else:
            self._on_cancel.append(function)

    def cancel(self) -> None:
        """Note that the caller has gone. For carriers; at most the first call has an effect."""
        if self.cancelled:
            return
        self.cancelled = True
        for function in self._on_cancel:
            try:
                function()
            except Exception:  # The edge: one handler's bug must not keep the others from hearing.
                logger.exception("cancellation callback failed")
        self._on_cancel.clear()


class Call(CallContext):
    """A unary call under way."""

    __slots__ = ()

    @abstractmethod
    def reply(self, message: Message) -> None:
        """Answer with MESSAGE: the handler has returned, or will return, `LATER`."""


class _Encoded:
    """A message that is encoded: all that a stream asks of one."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        return self._data


class Stream(CallContext):
    """The outgoing half of a stream. Messages are queued and leave in order."""

    __slots__ = ()

    @property
    @abstractmethod
    def queued_bytes(self) -> int:
        """Size of what was sent and has not left yet."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Queue MESSAGE. It is encoded now, so the caller may change or reuse it afterwards.

        The bound of the queue is the carrier's: who sends unasked (more than one reply for a message received) waits
        for `drained()` between messages. A queue of `Limits.queue_bytes_max` fails the stream with ResourceExhausted.
        """

    def send_encoded(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Do that with a message that is encoded already, as PIECES: of a large one each copy counts."""
        self.send(cast("Message", _Encoded(b"".join(pieces))))

    def write_now(self) -> None:
        """Have what was sent leave in this turn of the loop, if the carrier can; else it leaves in the next one."""
        return

    @abstractmethod
    def finish(self) -> None:
        """End the stream well, once what was sent has left."""

    @abstractmethod
    async def drained(self) -> None:
        """Return once the queue is below `Limits.queue_bytes`, or the stream is gone."""


class Receiver(Protocol[RequestIn]):
    """The incoming half of a bidirectional stream: what a handler of kind BIDI returns."""

    def on_message(self, message: RequestIn) -> Awaitable[None] | None:
        """Take MESSAGE. An awaitable holds back reading of the next one until it is done.

        An exception fails the stream as one of a handler would.
        """
        ...

    def on_end(self) -> None:
        """Know that no message follows: answer what is pending, then `finish()` the stream.

        The peer half-closed, the server is about to stop, or (a carrier may not be able to tell) the peer is gone.
        """
        ...

    def on_close(self) -> None:
        """Let go: the stream is over, for whatever reason.

        `stream.cancelled` tells that the peer broke it off; a receiver that finishes on `on_end` may not see that.
        """
        ...


class MethodKind(enum.Enum):
    """How many messages travel in each direction."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDI = "bidirectional stream"


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method: PATH is "/package.Service/Method". CHECK raises BadRequest for a request that is not taken,
    CHECK_DATA before it is decoded.
    """

    path: str
    kind: MethodKind
    request_type: type[Message]
    reply_type: type[Message]
    handler: Callable[..., Any]
    check: Callable[[Any], None] | None = None
    check_data: Callable[[bytes], None] | None = None

    def decode(self, data: bytes) -> Message:
        """Return the request in DATA; raise BadRequest that names method and type."""
        if self.check_data is not None:
            self.check_data(data)
        request = self.request_type()
        try:
            request.ParseFromString(data)
        except (
            Exception
        ) as error:  # protobuf's DecodeError, or UnicodeDecodeError, by implementation
            kind = self.request_type.DESCRIPTOR.full_name
            raise BadRequest(
                f"the request of {self.path} is not a well-formed {kind}: {len(data)} bytes do not decode",
                method=self.path,
                field=kind,
                value=f"{len(data)} bytes",
            ) from error
        if self.check is not None:
            self.check(request)
        return request


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """A method without its name: what `unary`, `server_stream` and `bidi` return for `service`."""

    kind: MethodKind
    request_type: type[Message]
    reply_type: type[Message]
    handler: Callable[..., Any]


def unary(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Request, Call], Reply | Later] | Callable[[Request, Call], Awaitable[Reply]],
) -> MethodEntry:
    """Return the entry of a unary method."""
    return MethodEntry(MethodKind.UNARY, request_type, reply_type, handler)


def server_stream(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Request, Stream], None] | Callable[[Request, Stream], Awaitable[None]],
) -> MethodEntry:
    """Return the entry of a method that answers with a stream; the end of a coroutine finishes its stream."""
    return MethodEntry(MethodKind.SERVER_STREAM, request_type, reply_type, handler)


def bidi(
    request_type: type[Request],
    reply_type: type[Reply],
    handler: Callable[[Stream], Receiver[Request]],
) -> MethodEntry:
    """Return the entry of a method with a stream in both directions."""
    return MethodEntry(MethodKind.BIDI, request_type, reply_type, handler)


class MethodTable:
    """The methods of one or several services; no path twice."""

    def __init__(self, methods: Mapping[str, Method] | None = None) -> None:
        self._methods = dict(methods or {})

    def __iter__(self) -> Iterator[Method]:
        return iter(self._methods.values())

    def __len__(self) -> int:
        return len(self._methods)

    def __getitem__(self, path: str) -> Method:
        return self._methods[path]

    def services(self) -> list[str]:
        """Return the names of the services ("package.Service") that methods here belong to, in order."""
        return sorted({path[1:].rpartition("/")[0] for path in self._methods})

    def __or__(self, other: MethodTable) -> MethodTable:
        """Return a table of both; they must not share a path."""
        both = self._methods.keys() & other._methods.keys()
        assert not both, f"two tables serve {sorted(both)}"
        return MethodTable(self._methods | other._methods)


def service(name: str, entries: Mapping[str, MethodEntry]) -> MethodTable:
    """Return the table of service NAME ("package.Service") with ENTRIES by method name."""
    return MethodTable(
        {
            path: Method(path, entry.kind, entry.request_type, entry.reply_type, entry.handler)
            for path, entry in ((f"/{name}/{method}", entry) for method, entry in entries.items())
        }
    )


class Carrier(Protocol):
    """What puts method tables within reach of callers."""

    async def start(self, host: str, port: int) -> int:
        """Serve at HOST and PORT (0: any free one) and return the port; raise CannotListen if that cannot be had."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let open ones end within GRACE_S seconds, fail the rest."""
        ...


class MakeCarrier(Protocol):
    """Makes the carrier of TABLES: the class of one, as a rule."""

    def __call__(self, tables: Iterable[MethodTable], *, limits: Limits) -> Carrier: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFigures:
    """One open connection, counted since it was opened; ages are those of this moment."""

    #: Rises by one with each connection that is accepted; the first is 1.
    id: int
    #: "127.0.0.1:40312" or "[::1]:40312".
    peer: str
    #: TLS.
    secure: bool
    age_ms: int
    #: Calls and streams under way.
    streams_open: int
    calls_begun: int
    #: Answered with OK.
    calls_succeeded: int
    #: Answered with another status, or given up by the caller.
    calls_failed: int
    #: From the wire, what TLS and HTTP/2 add included.
    bytes_read: int
    bytes_written: int
    #: Not written yet, because the peer does not read.
    bytes_queued: int
    #: Of its first call, as it came: a peer may say anything. "": none said one.
    user_agent: str = ""
    #: Of the call begun last, as it came; "": none has begun.
    last_path: str = ""
    #: How long ago that was; 0 without one.
    last_call_age_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTotals:
    """All connections of a server since its start."""

    open: int
    #: Those that are open, and those that were closed.
    accepted: int
    #: Beyond the limit; they are not among the accepted.
    refused: int
    #: How many ended why; the reasons are the carrier's words, few and fixed.
    closed: Mapping[str, int] = field(default_factory=dict)
    #: Bytes of requests that are not whole, or wait for their reader.
    requests_held_bytes: int = 0
    #: Bytes of answers that their peers have not read.
    answers_held_bytes: int = 0


@runtime_checkable
class CountsConnections(Protocol):
    """A carrier that counts. Asked on its event loop, while it serves."""

    def connection_figures(self, first_id: int, limit: int) -> Sequence[ConnectionFigures]:
        """Return LIMIT open connections at most, by id, beginning with the first whose id is not below FIRST_ID."""
        ...

    def connection_totals(self) -> ConnectionTotals:
        """Return what became of all connections."""
        ...

    def close_connection(self, number: int) -> bool:
        """Break off connection NUMBER, with all that is under way on it; return whether it was open."""
        ...


# ---------------------------------------------------------------- what the connections of a server share


#: The part of the bound that is made free when it is reached.
_ROOM: Final = 8
#: Who held so much, and holds a quarter of it, has freed what is worth giving back to the system.
_PEAK_BYTES: Final = 64 * 1024 * 1024
STEP_MS: Final = 50
#: So many steps are kept, and twice those that have deadlines, before the others are looked for.
_STEPS_MIN: Final = 100


class Holder(Protocol):
    """A connection."""

    #: The peer's end of it, "127.0.0.1:40312" or "[::1]:40312".
    peer: str


HolderT = TypeVar("HolderT", bound=Holder)


def _ignore() -> None:
    """Leave what was freed to the allocator."""


class Shares(Generic[HolderT]):
    """What holders have of BYTES_MAX; KIND says of what, in the log."""

    def __init__(self, kind: str, bytes_max: int, released: Callable[[], None] = _ignore) -> None:
        """RELEASED is told when much was held and is no more."""
        self._released = released
        self._kind = kind
        self.bytes_max = bytes_max
        #: Bytes of all.
        self.held = 0
        #: What is left when room was made.
        self.goal = bytes_max - bytes_max // _ROOM
        self._of: dict[HolderT, int] = {}
        self._is_making_room = False
        self._was_over = False
        self._peak = 0

    @property
    def free(self) -> int:
        """Bytes that nobody holds; none where room has to be made."""
        return max(0, self.bytes_max - self.held)

    def hold(self, holder: HolderT, size: int) -> None:
        """Note that HOLDER has SIZE bytes now."""
        self.held += size - self._of.pop(holder, 0)
        if size:
            self._of[holder] = size
        if self.held > self._peak:
            self._peak = self.held
        elif self._peak >= _PEAK_BYTES and self.held < self._peak // 4:
            self._peak = self.held
            self._was_over = False
            self._released()

    def make_room(self, burden: Callable[[HolderT], int], take: Callable[[HolderT], None]) -> None:
        """Unless all is within the bound, have TAKE end what holders have, the greatest BURDEN (bytes × time) first.

        TAKE ends no more than it takes to come down to `goal`.
        """
        if self.held <= self.bytes_max or self._is_making_room:
            return
        self._is_making_room = True
        try:
            holders = self._by_burden(burden)
            if not self._was_over:
                logger.warning(
                    "peers hold too much kind=%s limit=%d holders=%d first=%s",
                    self._kind,
                    self.bytes_max,
                    len(holders),
                    holders[0].peer,
                )
            self._was_over = True
            for holder in holders:
                if self.held <= self.goal:
                    break
                take(holder)
        finally:
            self._is_making_room = False

    def _by_burden(self, burden: Callable[[HolderT], int]) -> list[HolderT]:
        """Return all holders: those of the host with the greatest burden first, and of a host the greatest first."""
        burdens = {holder: (owner_of(holder.peer), burden(holder)) for holder in self._of}
        sums: Counter[str] = Counter()
        for host, own in burdens.values():
            sums[host] += own

        def rank(holder: HolderT) -> tuple[int, int]:
            host, own = burdens[holder]
            return sums[host], own

        return sorted(burdens, key=rank, reverse=True)


class ServedMethod:
    """A method as calls need it: what is asked of it a thousand times a second is looked up once."""

    __slots__ = ("decode", "handler", "is_coroutine", "kind", "path")

    def __init__(self, method: Method) -> None:
        self.path = method.path
        self.kind: MethodKind = method.kind
        self.decode: Callable[[bytes], Message] = method.decode
        self.handler: Callable[..., Any] = method.handler
        self.is_coroutine = inspect.iscoroutinefunction(method.handler)


class Served:
    """The methods of TABLES within LIMITS, and PAGE if there is one. DESCRIBE says how errors travel.

    NOW_MS and SPAWN (which runs a coroutine as a task) are the owner's. RELEASED is told when peers held much and do so
    no more.
    """

    def __init__(  # noqa: PLR0913  (all that connections share)
        self,
        tables: Iterable[MethodTable],
        limits: Limits,
        deadlines: Deadlines,
        now_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], Any],
        page: Page | None = None,
        describe: Describe = described,
        released: Callable[[], None] = _ignore,
    ) -> None:
        self._describe = describe
        self.serve(tables, page)
        self.limits = limits
        self.deadlines = deadlines
        self.now_ms = now_ms
        self.spawn = spawn
        #: Bytes of requests that have begun and are not whole, or wait for their reader, on all connections, …
        self.requests: Shares[Any] = Shares("requests", limits.half_sent_bytes_server, released)
        #: … and of answers that wait for their peers.
        self.answers: Shares[Any] = Shares("answers", limits.queue_bytes_server, released)
        self.inflater = Inflater()
        #: A stop has begun: streams are to end.
        self.stopping = False

    def serve(self, tables: Iterable[MethodTable], page: Page | None) -> None:
        """Have the methods of TABLES, and PAGE, answer what is asked from now on."""
        self.methods: dict[str, ServedMethod] = {}
        for table in tables:
            for method in table:
                assert method.path not in self.methods, f"two tables serve {method.path}"
                self.methods[method.path] = ServedMethod(method)
        self.pages = None if page is None else PageCalls(page)

    def begin(self) -> None:
        """Have streams go on until their callers or handlers end them."""
        self.stopping = False

    def begin_to_stop(self) -> None:
        """Have streams end."""
        self.stopping = True

    def failed(self, error: RpcError) -> bytes:
        """Return the trailers of an answer that is ERROR."""
        return failed(error, self._describe)

    @property
    def half_sent(self) -> int:
        """Bytes of requests that are held."""
        return self.requests.held


class Waiter(Protocol):
    """A stream that is not read while so much waits for the peer."""

    def drain(self) -> None:
        """Go on."""
        ...


class HeldAnswers:
    """What waits for PEER on CONNECTION, and the streams that wait for it to be taken.

    CUT_SHORT ends the answer on a stream with an error; BREAK_OFF ends a connection whose peer does not even read its
    socket.
    """

    def __init__(
        self,
        connection: ServerConnection,
        served: Served,
        peer: str,
        cut_short: Callable[[int, RpcError], None],
        break_off: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._served = served
        self._cut_short = cut_short
        self._break_off = break_off
        self.peer = peer
        #: Bytes, as they were last noted; those of them that have left the connection, and not this host.
        self._held = 0
        self._unsent = 0
        #: A round ends when the peer has taken as much as waited at its beginning.
        self._round_ms = 0
        self._round_end = 0
        self._waiting: dict[Waiter, None] = {}

    def note(self, unsent: int, written: int) -> None:
        """Note how much waits, UNSENT bytes on their way included, after WRITTEN bytes in all; make room if need be."""
        held = self._connection.queued + unsent
        if not held and not self._held:
            return
        if not self._held or written >= self._round_end:
            self._round_ms, self._round_end = self._served.now_ms(), written + held
        self._unsent = unsent
        self._hold(held)
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for stream in waiting:
                stream.drain()
        self._served.answers.make_room(HeldAnswers.burden, HeldAnswers.shed)

    def _hold(self, held: int) -> None:
        self._held = held
        self._served.answers.hold(self, held)

    @property
    def is_full(self) -> bool:
        """Does so much wait that nothing is to be made for the peer which can wait?"""
        queued = self._connection.queued
        return queued > 0 and (
            queued >= self._served.answers.free
            or queued * 2 >= self._served.limits.connection_queue_bytes_max
        )

    def wait(self, stream: Waiter) -> None:
        """Have STREAM go on once it is not full any more."""
        self._waiting[stream] = None

    def forget(self, stream: Waiter) -> None:
        """Know that STREAM, which may have waited, is over."""
        self._waiting.pop(stream, None)

    def drop(self) -> None:
        """Let go of all: the connection is gone. Now, not when cycles of references are looked for."""
        self._waiting.clear()
        self._connection.drop()
        self._hold(0)

    # --- what is taken from it where all connections have too much

    def burden(self) -> int:
        """Return how much waits, times how long the peer has not taken as much."""
        return self._held * (self._served.now_ms() - self._round_ms + 1)

    def shed(self) -> None:
        """End answers, the largest first, until all peers have room again; all of them where none is read."""
        if self._unsent:
            self._break_off()
            self._hold(0)
            return
        answers = self._served.answers
        for stream_id, queued in self._connection.queued_most():
            if answers.held <= answers.goal:
                break
            self._cut_short(
                stream_id, not_read(answers.held, answers.bytes_max, "queue_bytes_server")
            )
            self._hold(self._held - queued)


# --- deadlines


class Deadline:
    """An action that is due, unless it is cancelled before."""

    __slots__ = ("_others", "action")

    def __init__(self, action: Callable[[], None], others: set[Deadline]) -> None:
        self.action = action
        self._others = others
        others.add(self)

    def cancel(self) -> None:
        """Have the action not done. Twice is once."""
        self._others.discard(self)


class Deadlines:
    """All deadlines of one owner. WAKE is told when the first of them is earlier than it was, or there was none."""

    def __init__(self, wake: Callable[[int], None]) -> None:
        self._wake = wake
        self._by_step: dict[int, set[Deadline]] = {}
        self._steps: list[int] = []
        self._sweep_at = _STEPS_MIN

    @property
    def next_ms(self) -> int | None:
        """When to ask for what is due; None: nothing is."""
        return self._steps[0] * STEP_MS if self._steps else None

    def add(self, due_ms: int, action: Callable[[], None]) -> Deadline:
        """Have ACTION due at DUE_MS."""
        step = -(-due_ms // STEP_MS)
        found = self._by_step.get(step)
        if found is None:
            if len(self._steps) >= self._sweep_at:
                self._sweep()
            found = self._by_step[step] = set()
            heapq.heappush(self._steps, step)
            if self._steps[0] == step:
                self._wake(step * STEP_MS)
        return Deadline(action, found)

    def take_due(self, now_ms: int) -> list[Callable[[], None]]:
        """Return the actions that are due at NOW_MS and forget them."""
        due: list[Callable[[], None]] = []
        while self._steps and self._steps[0] * STEP_MS <= now_ms:
            found = self._by_step.pop(heapq.heappop(self._steps))
            due.extend(deadline.action for deadline in found)
            found.clear()
        return due

    def _sweep(self) -> None:
        """Forget steps of which every deadline was cancelled: callers may name any time, a new one each call."""
        self._by_step = {step: found for step, found in self._by_step.items() if found}
        self._steps = sorted(self._by_step)
        self._sweep_at = max(_STEPS_MIN, 2 * len(self._steps))
