"""The servers' side of the simulated network: a carrier for method tables, as `proto/rpc.py` asks of one."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from pocketmq.proto.errors import PocketMQError, ShuttingDown, Unsupported
from pocketmq.proto.errors_wire import ours
from pocketmq.proto.rpc import (
    LATER,
    Call,
    Limits,
    Method,
    MethodKind,
    MethodTable,
    Receiver,
    RpcError,
    Stream,
)

from ..fake_calls import FakeContext
from .machine import Machine

if TYPE_CHECKING:
    from .network import Network

logger = logging.getLogger(__name__)

#: Takes the bytes of an answer, or the error instead of one.
Answer = Callable[[bytes | PocketMQError], None]
#: Takes the bytes of a message; None: the stream ended well; or the error that it ended with.
Next = Callable[[bytes | PocketMQError | None], None]


class Served:
    """A carrier on NETWORK for what runs on MACHINE."""

    def __init__(
        self, tables: Iterable[MethodTable], limits: Limits, network: Network, machine: Machine
    ) -> None:
        self.machine = machine
        self._network = network
        self._methods = {method.path: method for table in tables for method in table}
        self._limits = limits
        self.streams: dict[ServedStream, None] = {}
        self.calls: dict[ServedCall, None] = {}
        self.tasks: set[asyncio.Future[Any]] = set()
        #: Bugs: what handlers let out that is no PocketMQError.
        self.bugs: list[BaseException] = []

    async def start(self, host: str, port: int) -> int:
        self._network.serve(f"{host}:{port}", self)
        self._address = f"{host}:{port}"
        return port

    async def stop(self, grace_s: float) -> None:
        for stream in list(self.streams):
            stream.told_end()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + grace_s
        while (self.streams or self.calls) and loop.time() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        self._fail_all()
        await asyncio.sleep(0.005)  # The last words travel.
        self._network.vanish(self._address)

    def _fail_all(self) -> None:
        error = ShuttingDown("the server is about to stop")
        for call in list(self.calls):
            call.fail(error)
        for stream in list(self.streams):
            stream.fail(error)

    def die(self) -> None:
        """End as a killed process does."""
        for task in list(self.tasks):
            task.cancel()
        self._network.vanish(self._address)

    def method(self, path: str) -> Method:
        try:
            return self._methods[path]
        except KeyError:
            raise Unsupported(f"{path} is not served here") from None

    def ask(self, path: str, data: bytes, peer: str, answer: Answer) -> ServedCall:
        """Call the unary method at PATH; ANSWER is told what comes of it."""
        call = ServedCall(self, peer, answer)
        self.calls[call] = None
        try:
            method = self.method(path)
            reply = method.handler(method.decode(data), call)
        except RpcError as error:
            call.fail(error)
        except Exception as bug:
            self.note_bug(bug)
            call.fail(PocketMQError(f"internal error in {path}"))
        else:
            if inspect.isawaitable(reply):
                self._later(reply, call)
            elif reply is not LATER:
                call.reply(reply)
        return call

    def _later(self, reply: Awaitable[Message], call: ServedCall) -> None:
        async def wait() -> None:
            try:
                call.reply(await reply)
            except RpcError as error:
                call.fail(error)
            except Exception as bug:
                self.note_bug(bug)
                call.fail(PocketMQError("internal error"))

        self.spawn(wait())

    def spawn(self, work: Any) -> asyncio.Future[Any]:
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def note_bug(self, bug: BaseException) -> None:
        logger.error("handler failed", exc_info=bug)
        self.bugs.append(bug)

    def open(self, path: str, peer: str, following: Next) -> ServedStream:
        """Open the bidirectional stream at PATH; FOLLOWING is told what it says. Raises what the handler raises."""
        method = self.method(path)
        assert method.kind is MethodKind.BIDI, path
        stream = ServedStream(self, method, peer, following)
        stream.receiver = method.handler(stream)
        self.streams[stream] = None
        return stream


class ServedCall(FakeContext, Call):
    """A unary call under way."""

    def __init__(self, server: Served, peer: str, answer: Answer) -> None:
        super().__init__(peer)
        self._server = server
        self._answer = answer
        self._answered = False

    def reply(self, message: Message) -> None:
        self._settle(message.SerializeToString())

    def fail(self, error: RpcError) -> None:
        self._settle(ours(error))

    def _settle(self, outcome: bytes | PocketMQError) -> None:
        if not self.cancelled:
            assert not self._answered, "a call is answered once"
            self._answered = True
            self._server.calls.pop(self, None)
            self._answer(outcome)

    def gone(self) -> None:
        """Know that the caller went."""
        if not self._answered:
            self._server.calls.pop(self, None)
            self.cancel()


class ServedStream(FakeContext, Stream):
    """A bidirectional stream of METHOD: both halves."""

    receiver: Receiver[Any]

    def __init__(self, server: Served, method: Method, peer: str, following: Next) -> None:
        super().__init__(peer)
        self._server = server
        self._method = method
        self._following = following
        self._incoming: deque[bytes | None] = deque()
        self._held = False
        self._ended = self._told = self._closed = False

    @property
    def queued_bytes(self) -> int:
        return 0

    async def drained(self) -> None:
        await asyncio.sleep(0)

    # --- what the handler says

    def send(self, message: Message) -> None:
        if not (self._ended or self.cancelled):
            self._following(message.SerializeToString())

    def finish(self) -> None:
        self._end(None)

    def fail(self, error: RpcError) -> None:
        self._end(ours(error))

    def _end(self, error: PocketMQError | None) -> None:
        if not (self._ended or self.cancelled):
            self._ended = True
            self._following(error)
            # As a carrier does: the receiver hears of it when the handler has returned.
            asyncio.get_running_loop().call_soon(self._close)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.streams.pop(self, None)
            self._incoming.clear()
            self._guard(self.receiver.on_close)

    def _guard(self, work: Callable[[], object]) -> object:
        try:
            return work()
        except RpcError as error:
            self.fail(error)
        except Exception as bug:
            self._server.note_bug(bug)
            self.fail(PocketMQError("internal error"))
        return None

    # --- what the client says

    def take(self, data: bytes | None) -> None:
        """Take the bytes of a message; None: no more follow."""
        self._incoming.append(data)
        self._work_off()

    def _work_off(self) -> None:
        while self._incoming and not (self._held or self._ended or self._closed):
            data = self._incoming.popleft()
            if data is None:
                self.told_end()
            elif not self._told:
                held = self._guard(lambda data=data: self._one(data))  # type: ignore[misc]
                if isinstance(held, Awaitable):
                    self._held = True
                    self._server.spawn(self._wait(held))

    def _one(self, data: bytes) -> Awaitable[None] | None:
        return self.receiver.on_message(self._method.decode(data))

    async def _wait(self, held: Awaitable[None]) -> None:
        try:
            await held
        except RpcError as error:
            self.fail(error)
        self._held = False
        self._work_off()

    def told_end(self) -> None:
        """Tell the receiver, once, that no message follows."""
        if not (self._told or self._ended or self._closed):
            self._told = True
            self._guard(self.receiver.on_end)

    def gone(self) -> None:
        """Know that the client broke off."""
        if not self._closed:
            self.cancel()
            self._close()
