"""Java slaves of this broker: Apache RocketMQ's HA protocol, and a slave's requests to its master and name server.

    PORT      requests, as of a name server and of a master. A slave has it as namesrvAddr: the reply to REGISTER_BROKER
              has the addresses of the master and of its log, which a slave of 5.5.0 learns in no other way
    PORT − 2  the same, where slaves ask for tables (RocketMQ's VIP channel)
    PORT + 1  the log, in the classic protocol

A slave gets only what is confirmed and on this broker's disk, so it is never ahead after a power cut. An empty one gets
the log from its oldest file on (RocketMQ: only the newest file). Its reports are ignored; no send waits for it. A slave
whose log ends after this log, or before its oldest file, is refused with a log line.

Like RocketMQ it is plaintext and unauthenticated: it listens on loopback unless `java_slaves_host` says otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from ...proto.errors import ConfigError, PocketMQError
from ...proto.remoting.client import read_command
from ...proto.remoting.codes import NOT_SUPPORTED, RequestCode
from ...proto.remoting.command import REQUEST_MAX, RemotingCommand, encode
from ...proto.slave_protocol import ClassicReports, classic_frame
from ...store.file_table import FileTable
from ...store.format import state_tables
from ...store.format.java_json import Json, render
from ...store.message_store import MessageStore
from ...store.offsets_file import OffsetsFile
from ...store.state_files import StateFile
from ..config import BrokerConfig

logger = logging.getLogger(__name__)

SLAVES_MAX: Final = 16
CONNECTIONS_MAX: Final = 64
#: RocketMQ's haTransferBatchSize.
_FRAME: Final = 32 << 10
#: Interval of checks for records that are confirmed and on disk.
_LOOK_S: Final = 0.1
#: Both sides in RocketMQ drop a peer that sent nothing for 20 s.
_HEARTBEAT_S: Final = 5.0
_SILENCE_MAX_S: Final = 20.0
_SYSTEM_ERROR: Final = 1


@dataclass(slots=True)
class SlaveLink:
    """A connected slave, which was sent the log up to SENT."""

    sent: int
    #: Set when more of the log is on disk.
    news: asyncio.Event = field(default_factory=asyncio.Event)


class JavaSlaves:
    """Serves Java slaves the log of STORE and its tables. `start`, then `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: FileTable[state_tables.TopicConfig],
        groups: FileTable[state_tables.GroupConfig],
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = 0
        #: Set when a slave received something, or disconnected.
        self._advanced = asyncio.Event()
        #: Slaves that are connected.
        self.slaves: list[SlaveLink] = []

    async def start(self) -> None:
        """Listen on all three ports; raise ConfigError, which names the port, if one is not available."""
        self._store.events.flushed.append(self._flushed)
        port = self._config.java_slaves_port
        for number, serve in (
            (port, self._serve_requests),
            (port - 2, self._serve_requests),
            (port + 1, self._serve_log),
        ):
            try:
                server = await asyncio.start_server(
                    self._guarded(serve), self._config.java_slaves_host, number
                )
            except OSError as error:
                await self.stop()
                raise ConfigError(
                    f"broker.java_slaves_port {port}: cannot listen on {self._config.java_slaves_host}:{number}:"
                    f" {error.strerror or error}",
                    field="java_slaves_port",
                    value=number,
                ) from None
            self._servers.append(server)

    async def stop(self, grace_s: float = 0) -> None:
        """Send slaves the rest of the log, for up to GRACE_S seconds, then disconnect them. Idempotent."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        store = self._store
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                end = min(store.max_log_offset, store.confirmed_offset)
                while any(one.sent < end for one in self.slaves):
                    self._advanced.clear()
                    await self._advanced.wait()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _flushed(self, offset: int) -> None:
        for slave in self.slaves:
            slave.news.set()

    def _guarded(
        self, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        """Return a handler of connections that runs SERVE, and closes the connection at its end or error."""

        async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except (OSError, ValueError, PocketMQError) as error:
                logger.info("Java slave disconnected reason=%s", error)
            finally:
                writer.close()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(guarded(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return begin

    @property
    def _limit(self) -> int:
        """Slaves may have the log up to this offset."""
        return min(self._store.flushed_offset, self._store.confirmed_offset)

    async def _serve_log(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self.slaves) >= SLAVES_MAX:
            logger.warning("Java slave refused, the limit is reached limit=%d", SLAVES_MAX)
            return
        reports = ClassicReports()
        end = await self._report(reader, reports)
        begin = self._begin(end)
        peer = writer.get_extra_info("peername")
        if end is None or begin is None:
            logger.warning(
                "Java slave refused, it has another log: empty its store, and start it again"
                " peer=%s end=%s log_end=%d",
                peer,
                end,
                self._store.max_log_offset,
            )
            return
        slave = SlaveLink(begin)
        self.slaves.append(slave)
        logger.info("Java slave connected peer=%s offset=%d", peer, begin)
        listening = asyncio.ensure_future(self._listen(reader, reports))
        try:
            await self._send(writer, slave, listening)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            self.slaves.remove(slave)
            self._advanced.set()

    def _begin(self, end: int | None) -> int | None:
        """Return the offset from which a slave needs the log if its own ends at END; None: it has another log."""
        log = self._store.log
        if end == 0:
            return log.files.files[0].start if log.files.files else 0
        known = end is not None and log.min_offset <= end <= self._store.max_log_offset
        return end if known else None

    async def _report(self, reader: asyncio.StreamReader, reports: ClassicReports) -> int | None:
        """Return the next end that the slave reports; None: it disconnected or was silent."""
        with suppress(TimeoutError):  # Silence ends the connection.
            async with asyncio.timeout(_SILENCE_MAX_S):
                while data := await reader.read(4096):
                    if (end := reports.feed(data)) is not None:
                        return end
        return None

    async def _listen(self, reader: asyncio.StreamReader, reports: ClassicReports) -> None:
        """Read and ignore reports until the slave disconnects."""
        while await self._report(reader, reports) is not None:
            pass

    async def _send(
        self, writer: asyncio.StreamWriter, slave: SlaveLink, listening: asyncio.Future[None]
    ) -> None:
        """Send the log until the slave disconnects."""
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        while not listening.done():
            data = self._raw(slave.sent)
            if data is None:
                logger.warning("Java slave is too far behind offset=%d", slave.sent)
                return
            if data or loop.time() - sent_s >= _HEARTBEAT_S:
                writer.write(classic_frame(slave.sent, data))
                await writer.drain()
                slave.sent += len(data)
                sent_s = loop.time()
                self._advanced.set()
            if data:
                await asyncio.sleep(0)  # Let other work run.
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await slave.news.wait()
            slave.news.clear()

    def _raw(self, at: int) -> bytes | None:
        """Return the bytes at AT that a slave may have, from one file; None: they were deleted."""
        limit = self._limit
        if at >= limit:
            return b""
        file = self._store.log.files.file_at(at)
        if file is None:
            return None
        begin = at - file.start
        return file.read(begin, min(_FRAME, limit - at, file.size - begin))

    async def _serve_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._connections >= CONNECTIONS_MAX:
            return
        self._connections += 1
        try:
            host = writer.get_extra_info("sockname")[0]
            while (request := await read_command(reader, REQUEST_MAX)) is not None:
                if request.is_answer:
                    continue
                answer = await self._answer(request, f"[{host}]" if ":" in host else host)
                if request.wants_answer:
                    writer.write(encode(answer))
                    await writer.drain()
        finally:
            self._connections -= 1

    async def _answer(self, request: RemotingCommand, host: str) -> RemotingCommand:
        """Return the answer to REQUEST, which arrived at HOST."""
        if request.code == RequestCode.REGISTER_BROKER:
            return self._registered(request, host)
        if request.code == RequestCode.UNREGISTER_BROKER:
            return request.answer()
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return request.answer(self._cluster_info(host).encode())
        if request.code == RequestCode.GET_TIMER_CHECK_POINT:
            return request.answer(self._store.timers.checkpoint.written.pack())
        table = self._tables().get(request.code)
        if table is None:
            return request.answer(
                code=NOT_SUPPORTED, remark=f" request type {request.code} not supported"
            )
        return request.answer((await asyncio.to_thread(table)).encode())

    def _registered(self, request: RemotingCommand, host: str) -> RemotingCommand:
        fields, config = request.fields, self._config
        if (fields.get("clusterName"), fields.get("brokerName")) != (config.cluster, config.name):
            return request.answer(
                code=_SYSTEM_ERROR,
                remark=f"this is {config.name} of {config.cluster}: a slave needs the same names",
            )
        if fields.get("brokerId") == "0":
            return request.answer(
                code=_SYSTEM_ERROR,
                remark=f"{config.name} has a master here: set brokerId=1 or more, and brokerRole=SLAVE",
            )
        port = config.java_slaves_port
        return request.answer(
            fields={"masterAddr": f"{host}:{port}", "haServerAddr": f"{host}:{port + 1}"}
        )

    def _cluster_info(self, host: str) -> str:
        """Return the brokers of the cluster, as a slave's name server knows them: this one, reached at HOST."""
        name, cluster = self._config.name, self._config.cluster
        broker: Json = {
            "brokerAddrs": {0: f"{host}:{self._config.java_slaves_port}"},
            "brokerName": name,
            "cluster": cluster,
            "enableActingMaster": False,
        }
        table: Json = {"brokerAddrTable": {name: broker}, "clusterAddrTable": {cluster: [name]}}
        return render(table, pretty=False)

    def _tables(self) -> dict[int, Callable[[], str]]:
        """Return functions that return the text of each table, as it is now or was last saved."""
        topics, groups = dict(self._topics.entries), dict(self._groups.entries)
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: lambda: render(
                {
                    "dataVersion": self._topics.version.to_json(),
                    "mappingDataVersion": state_tables.DataVersion().to_json(),
                    state_tables.TOPICS.members: _beans(topics),
                    "topicQueueMappingDetailMap": {},
                },
                pretty=False,
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda: render(
                {
                    "dataVersion": self._groups.version.to_json(),
                    "forbiddenTable": {},
                    state_tables.GROUPS.members: _beans(groups),
                },
                pretty=False,
            ),
            RequestCode.GET_ALL_CONSUMER_OFFSET: lambda: state_tables.render_consumer_offsets(
                OffsetsFile(self._store.disk, self._store.config.path)
                .load(state_tables.parse_consumer_offsets)
                .value
                or state_tables.ConsumerOffsets()
            ),
            RequestCode.GET_ALL_DELAY_OFFSET: lambda: state_tables.render_delay_offsets(
                self._file("delayOffset.json").load(state_tables.parse_delay_offsets).value
                or state_tables.DelayOffsets()
            ),
            RequestCode.GET_TIMER_METRICS: lambda: state_tables.render_timer_metrics(
                *(
                    self._file("timermetrics").load(state_tables.parse_timer_metrics).value
                    or (state_tables.DataVersion(), {})
                )
            ),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: lambda: '{"messageRequestModeMap":{}}',
        }

    def _file(self, name: str) -> StateFile:
        return StateFile(self._store.disk, self._store.config.path, name)


def _beans(
    entries: Mapping[str, state_tables.TopicConfig | state_tables.GroupConfig],
) -> dict[str | int, Json]:
    return {name: entry.to_json() for name, entry in entries.items()}
