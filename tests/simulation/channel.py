"""A channel of `proto/channels.py` for the client's code: unary calls and bidirectional streams over a link."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from pocketmq.proto.errors import PocketMQError
from pocketmq.proto.errors_wire import ERROR_KEY, to_wire
from pocketmq.proto.rpc.channels import EOF, CallFailed, ChannelClosed, StatusCode

from .machine import Machine
from .network import Ends, Link, Network
from .served import ServedCall, ServedStream


def _of_error(error: PocketMQError) -> CallFailed:
    wire = to_wire(error)
    trailing = ((ERROR_KEY, wire.SerializeToString()),)
    return CallFailed(StatusCode[error.status], wire.message, trailing)


def _unavailable(reason: str) -> CallFailed:
    return CallFailed(StatusCode.UNAVAILABLE, reason)


class Channel:
    """What MACHINE opens to ADDRESS."""

    def __init__(self, network: Network, machine: Machine, address: str) -> None:
        self._network = network
        self._machine = machine
        self._link = network.link(machine, address)
        self._closed = False
        self._streams: dict[StreamCall, None] = {}

    def unary_unary(
        self, path: str, request_serializer: Any, response_deserializer: Any
    ) -> Callable[..., Any]:
        async def call(request: Any, timeout: float | None = None) -> Any:
            self._check_open()
            await self._machine.awake()
            asked = UnaryCall(self._link, path, request_serializer(request))
            try:
                async with asyncio.timeout(timeout):
                    outcome = await asked.outcome()
            except TimeoutError:
                raise CallFailed(StatusCode.DEADLINE_EXCEEDED, "deadline exceeded") from None
            finally:
                asked.leave()
            await self._machine.awake()
            return response_deserializer(outcome)

        return call

    def stream_stream(
        self, path: str, request_serializer: Any, response_deserializer: Any
    ) -> Callable[..., Any]:
        def call() -> StreamCall:
            self._check_open()
            stream = StreamCall(self._link, path, request_serializer, response_deserializer)
            self._streams[stream] = None
            stream.add_done_callback(lambda ended: self._streams.pop(ended, None))
            stream.start()
            return stream

        return call

    def _check_open(self) -> None:
        if self._closed:
            raise ChannelClosed

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        for stream in list(self._streams):
            stream.cancel()

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class UnaryCall(Ends):
    """One question over LINK."""

    def __init__(self, link: Link, path: str, data: bytes) -> None:
        self._link = link
        self._path = path
        self._data = data
        self._served: ServedCall | None = None
        self._result: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def outcome(self) -> bytes:
        """Return the answer's bytes, or raise the call's status."""
        link = self._link
        link.open[self] = None
        if not link.up or link.network.server(link.address) is None:
            await asyncio.sleep(link.network.random.uniform(1, 20) / 1000)
            raise _unavailable("failed to connect to all addresses")
        link.to_server(self._arrive)
        return await self._result

    def _arrive(self) -> None:
        server = self._link.network.server(self._link.address)
        if server is None:
            self.broken("the server is gone")
            return
        peer = self._link.machine.address
        self._served = server.ask(
            self._path,
            self._data,
            peer,
            lambda answer: self._link.to_client(lambda: self._hear(answer)),
        )

    def _hear(self, answer: bytes | PocketMQError) -> None:
        if self._result.done():
            return
        if isinstance(answer, PocketMQError):
            self._result.set_exception(_of_error(answer))
        else:
            self._result.set_result(answer)

    def broken(self, reason: str) -> None:
        if self._served is not None:
            self._served.gone()
        if not self._result.done():
            self._result.set_exception(_unavailable(reason))

    def leave(self) -> None:
        """Care no more."""
        if self._link.machine.alive:
            self._link.open.pop(self, None)
            if self._served is not None:
                self._served.gone()
        if self._result.done() and not self._result.cancelled():
            self._result.exception()  # Heard, whoever waited.
        else:
            self._result.cancel()


class StreamCall(Ends):
    """One bidirectional stream over LINK, a `channels.StreamCall`."""

    def __init__(self, link: Link, path: str, serialize: Any, deserialize: Any) -> None:
        self._link = link
        self._path = path
        self._serialize = serialize
        self._deserialize = deserialize
        self._served: ServedStream | None = None
        self._take: Callable[[Any], None] | None = None
        self._incoming: deque[bytes] = deque()
        self._changed = asyncio.Event()
        #: Set once it has ended: None: well; else the status.
        self._ended: list[CallFailed | None] = []
        self._connected = False
        self._cancelled = False
        self._on_done: list[Callable[[StreamCall], None]] = []

    def start(self) -> None:
        link = self._link
        link.open[self] = None
        if not link.up or link.network.server(link.address) is None:
            delay_s = link.network.random.uniform(1, 20) / 1000
            asyncio.get_running_loop().call_later(delay_s, self.broken, "failed to connect")
        else:
            link.to_server(self._open)

    def _open(self) -> None:
        link = self._link
        server = link.network.server(link.address)
        if server is None:
            self.broken("the server is gone")
            return
        try:
            self._served = server.open(self._path, link.machine.address, self._from_server)
        except PocketMQError as error:
            self._from_server(error)
        self._connected = True
        self._changed.set()

    def _from_server(self, following: bytes | PocketMQError | None) -> None:
        self._link.to_client(lambda: self._hear(following))

    def _hear(self, following: bytes | PocketMQError | None) -> None:
        if isinstance(following, bytes):
            if not self._ended:
                self._incoming.append(following)
                self._changed.set()
        else:
            self._end(None if following is None else _of_error(following))

    def _end(self, status: CallFailed | None) -> None:
        if self._ended:
            return
        self._ended.append(status)
        self._link.open.pop(self, None)
        self._changed.set()
        for callback in self._on_done:
            callback(self)

    def broken(self, reason: str) -> None:
        if self._served is not None:
            self._served.gone()
        # The client hears of it when it runs: one that stands still does not yet.
        self._link.machine.run(lambda: self._end(_unavailable(reason)))

    # --- what the client's code calls

    async def wait_for_connection(self) -> None:
        while not (self._connected or self._ended):
            await self._change()
        await self._link.machine.awake()
        if self._ended:
            self._raise_end()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise_end(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._ended[0] is not None:
            raise self._ended[0]

    async def write(self, message: Any) -> None:
        await self._link.machine.awake()
        if self._ended:
            raise asyncio.InvalidStateError("RPC already finished.")
        data = self._serialize(message)
        self._link.to_server(lambda: self._to_server(data))
        await asyncio.sleep(0)

    def write_nowait(self, message: Any) -> bool:
        return False  # Everything takes its time here.

    def deliver_to(self, take: Callable[[Any], None]) -> None:
        self._take = take

    def _to_server(self, data: bytes | None) -> None:
        if self._served is not None:
            self._served.take(data)

    async def done_writing(self) -> None:
        if not self._ended:
            self._link.to_server(lambda: self._to_server(None))

    async def read(self) -> Any:
        while True:
            await self._link.machine.awake()
            if self._incoming and not self._cancelled:
                message = self._deserialize(self._incoming.popleft())
                if self._take is None:
                    return message
                self._take(message)
                continue
            if self._ended:
                self._raise_end()
                return EOF
            await self._change()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    def done(self) -> bool:
        return bool(self._ended)

    def cancel(self) -> bool:
        if self._ended:
            return False
        self._cancelled = True
        cancelled = CallFailed(StatusCode.CANCELLED, "Locally cancelled by application!")
        if self._link.machine.alive:
            self._link.to_server(self._server_hears)
            self._end(cancelled)
        else:  # Nobody hears of it: the link knows the call until it is cut.
            self._ended.append(cancelled)
            self._changed.set()
        return True

    def _server_hears(self) -> None:
        if self._served is not None:
            self._served.gone()

    def add_done_callback(self, callback: Callable[[StreamCall], None]) -> None:
        if self._ended:
            callback(self)
        else:
            self._on_done.append(callback)

    async def _status(self) -> CallFailed | None:
        while not self._ended:
            await self._change()
        return self._ended[0]

    async def code(self) -> StatusCode:
        status = await self._status()
        return StatusCode.OK if status is None else status.code()

    async def details(self) -> str:
        status = await self._status()
        return "" if status is None else status.details() or ""
