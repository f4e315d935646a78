"""A master that speaks Apache's wires over a store of ours, as Java's source says: for tests without Java."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pocketmq.proto.remoting.client import read_command
from pocketmq.proto.remoting.codes import NOT_SUPPORTED, RequestCode
from pocketmq.proto.remoting.command import encode
from pocketmq.proto.slave_protocol import (
    Handshake,
    LogFrame,
    classic_frame,
    handshake_answer,
    transfer_frame,
)
from pocketmq.store.message_store import MessageStore

from ...runs import small_config

#: What a small store is configured as, by Apache's names.
_SIZES = {
    "mappedFileSizeCommitLog": "log_file_size_bytes",
    "mappedFileSizeConsumeQueue": "queue_file_size_bytes",
    "maxHashSlotNum": "index_slots",
    "maxIndexNum": "index_entries",
}
_TABLES: dict[int, str] = {
    21: '{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"mappingDataVersion":{},"topicConfigTable":{"A":'
    '{"attributes":{},"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG","topicName":"A",'
    '"topicSysFlag":0,"writeQueueNums":2}},"topicQueueMappingDetailMap":{}}',
    43: '{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":5},"groupTopicMap":{},'
    '"offsetTable":{"A@g":{0:1,1:7}},"pullOffsetTable":{}}',
    45: '{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":5},"offsetTable":{3:2}}',
    201: '{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"forbiddenTable":{},"subscriptionGroupTable":'
    '{"g":{"groupName":"g","retryMaxTimes":5}}}',
}


@dataclass
class JavaMasterDouble:
    """Serves the log of STORE, in the classic way, or with EPOCHS in that of controller mode."""

    store: MessageStore
    path: Path
    epochs: tuple[tuple[int, int], ...] = ()
    name: str = "broker-a"
    #: Does it refuse all requests?
    is_mute: bool = False
    #: Frames of so many bytes.
    frame: int = 700
    settings: dict[str, str] = field(default_factory=dict)
    tables: dict[int, str] = field(default_factory=lambda: dict(_TABLES))
    #: What slaves reported, and connections that are open.
    reports: list[int] = field(default_factory=list)
    handshakes: list[bytes] = field(default_factory=list)
    _servers: dict[int, asyncio.Server] = field(default_factory=dict)
    _writers: dict[int, list[asyncio.StreamWriter]] = field(default_factory=lambda: {0: [], 1: []})
    _serving: list[asyncio.Task[None]] = field(default_factory=list)
    ports: list[int] = field(default_factory=lambda: [0, 0])

    async def start(self) -> Self:
        """Listen, on the ports of the last time."""
        for number, serve in enumerate((self._serve_rpc, self._serve_log)):
            server = await asyncio.start_server(serve, "127.0.0.1", self.ports[number])
            self._servers[number] = server
            self.ports[number] = server.sockets[0].getsockname()[1]
        return self

    @property
    def rpc(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def stop(self, number: int) -> None:
        """Close port NUMBER, 0 requests and 1 the log, and its connections."""
        self._servers.pop(number).close()
        for writer in self._writers[number]:
            writer.close()
        self._writers[number].clear()

    def kill(self) -> None:
        for number in list(self._servers):
            self.stop(number)

    async def close(self) -> None:
        """Kill it, and wait until nothing of it is left."""
        self.kill()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _note_serving(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.append(task)

    # --- requests

    async def _serve_rpc(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._note_serving()
        self._writers[0].append(writer)
        with suppress(OSError):
            while (request := await read_command(reader, 1 << 20)) is not None:
                body = self._body(request.code, dict(request.fields))
                code = NOT_SUPPORTED if body is None else 0
                writer.write(encode(request.answer(body or b"", code=code)))
        writer.close()

    def _body(self, code: int, fields: dict[str, str]) -> bytes | None:
        if self.is_mute:
            return None
        if code == RequestCode.GET_BROKER_CONFIG:
            config: Any = small_config(self.path)
            told = {name: str(getattr(config, ours)) for name, ours in _SIZES.items()}
            told |= {
                "brokerName": self.name,
                "brokerClusterName": "DefaultCluster",
                "brokerRole": "ASYNC_MASTER",
            }
            told |= {"enableControllerMode": str(bool(self.epochs)).lower()} | self.settings
            return "".join(f"{name}={value}\n" for name, value in told.items()).encode()
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            bounds = (self.store.min_log_offset, self.store.max_log_offset)
            names = ("commitLogMinOffset", "commitLogMaxOffset")
            return json.dumps({"table": dict(zip(names, map(str, bounds), strict=True))}).encode()
        if code == RequestCode.VIEW_MESSAGE_BY_ID:
            return self.store.log.record(int(fields["offset"]))
        text = self.tables.get(code)
        return None if text is None else text.encode()

    # --- the log

    async def _serve_log(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._note_serving()
        self._writers[1].append(writer)
        with suppress(asyncio.IncompleteReadError, OSError):  # The follower has gone.
            if self.epochs:
                self.handshakes.append(await reader.readexactly(16))
                last = self.epochs[-1][0]
                writer.write(
                    handshake_answer(Handshake(self.store.max_log_offset, last, self.epochs))
                )
            at = await self._report(reader)
            if not at and not self.epochs:  # As Apache's: the newest file alone.
                at = self.store.max_log_offset
                at -= at % self.store.log.files.file_size
            listening = asyncio.ensure_future(self._listen(reader))
            while not writer.is_closing() and not listening.done():
                while data := self._raw(at):
                    writer.write(self._framed(at, data))
                    at += len(data)
                await asyncio.sleep(0.01)
            await listening
        writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                await self._report(reader)

    async def _report(self, reader: asyncio.StreamReader) -> int:
        data = await reader.readexactly(12 if self.epochs else 8)
        self.reports.append(int.from_bytes(data[-8:], "big"))
        return self.reports[-1]

    def _raw(self, at: int) -> bytes:
        file = self.store.log.files.file_at(at)
        if file is None or at >= self.store.max_log_offset:
            return b""
        begin = at - file.start
        end = file.position
        for _, start in self.epochs:
            if at < start < file.start + end:
                end = start - file.start
        return file.read(begin, min(self.frame, end - begin))

    def _framed(self, at: int, data: bytes) -> bytes:
        if not self.epochs:
            return classic_frame(at, data)
        epoch, start = [one for one in self.epochs if one[1] <= at][-1]
        return transfer_frame(LogFrame(at, data, epoch, start, at))
