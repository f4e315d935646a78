"""The metadata of replica sets in ZooKeeper, through kazoo (the extra `replication`). Paths: registry_format.py.

Versions are one integer: epoch, czxid, version of the node. A node that is deleted and created again has a later czxid.
An ensemble that lost its data restarts its zxids, but the metadata written then has a later epoch.

`answered_ms` counts only answers that a quorum has committed: changes, and one empty transaction every sixth of a
session. A server that is cut off from its ensemble keeps answering reads while the others end the session.

kazoo silently starts a new session after the old one. Here, all operations raise SessionExpired from then on. A session
without a connection for twice its timeout is dropped.

kazoo runs three threads, which pass everything to the event loop by `call_soon_threadsafe`. Limits: `_REQUESTS_MAX`
requests under way, each up to two thirds of a session.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from ...proto.errors import ConfigError, MetadataConflict, RegistryUnavailable, SessionExpired
from ...proto.extras import pip_install
from .registry import EndMark, LiveNode, ReplicaSetState, VersionedCell, VersionedEndMark
from .registry_format import (
    REPLICA_ID_MAX,
    REPLICAS_MAX,
    parse_cell,
    parse_live,
    parse_mark,
    render_cell,
    render_live,
    render_mark,
)
from .zookeeper_access import OPEN_TO_ALL, ZooKeeperAccess, open_paths

if TYPE_CHECKING:
    from kazoo.client import KazooClient

logger = logging.getLogger(__name__)
#: kazoo warns of each attempt to connect. These warnings are dropped: the caller logs the failure
#: once.
_kazoo_logger = logging.getLogger(f"{__name__}.kazoo")
_kazoo_logger.setLevel(logging.ERROR)

ROOT: Final = "/pocketmq"
#: Limit of open requests: a live node per replica, and some changes.
_REQUESTS_MAX: Final = 2 * REPLICAS_MAX
_NAME_LENGTH_MAX: Final = 255
_RECONNECT_S: Final = 0.1
_CLOSE_S: Final = 3.0
#: How often a live node is replaced while another process changes it.
_ANNOUNCE_TRIES: Final = 5
_LOOK_MS: Final = 100
_NUMBER_BITS: Final = 64


class ZooKeeperSession:
    """One session with the ensemble SERVERS, "host:port[,host:port…][/root]", of SESSION_MS."""

    def __init__(
        self,
        servers: str,
        session_ms: int,
        now_ms: Callable[[], int],
        access: ZooKeeperAccess = OPEN_TO_ALL,
    ) -> None:
        self.servers = servers
        self.access = access
        self.session_ms = session_ms
        self.answered_ms = now_ms()
        self._on_beat: Callable[[bool], None] = lambda is_new: None
        self._now_ms = now_ms
        self._log = _KazooLog()
        self._client = _client(servers, session_ms, self._log, access)
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        #: Set by kazoo's thread, before a later session can be used.
        self._is_over = False
        #: ZooKeeper refused the account, and ended the session.
        self._is_denied = False
        #: Since when there is no connection; None: connected.
        self._lost_ms: int | None = None
        self._id: int | None = None
        self._began = asyncio.Event()
        self._stopped: asyncio.Future[None] | None = None
        self._beats: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        servers: str,
        *,
        session_ms: int,
        now_ms: Callable[[], int],
        wait_ms: int | None = None,
        access: ZooKeeperAccess = OPEN_TO_ALL,
    ) -> Self:
        """Return a session that has started within WAIT_MS (default: the session timeout), with ACCESS.

        Raises ConfigError if kazoo is not installed, SERVERS is malformed, the account is refused, or the server's
        session timeout is shorter; RegistryUnavailable if there is no answer.
        """
        session = cls(servers, session_ms, now_ms, access)
        session._client.add_listener(session._on_state)
        sent_ms = now_ms()
        session._client.start_async()
        try:
            async with asyncio.timeout((session_ms if wait_ms is None else wait_ms) / 1000):
                await session._began.wait()
        except TimeoutError:
            await session.close()
            failure = f" (the last attempt: {session._log.failure})" if session._log.failure else ""
            raise RegistryUnavailable(
                f"no ZooKeeper of {servers} has started a session{failure}: check that it is running, that this machine"
                " reaches it, and that it uses TLS or not as replication.zookeeper_tls_ca says",
                servers=servers,
            ) from None
        except BaseException:
            await session.close()
            raise
        if session._is_denied:
            await session.close()
            raise session._denied()
        session.answered_ms = sent_ms
        session._beats = asyncio.create_task(session._beat())
        return session

    @property
    def id(self) -> int | None:
        """The number of the session at ZooKeeper: the owner of its ephemeral nodes."""
        return self._id

    def listen(self, on_beat: Callable[[bool], None]) -> None:
        """Call ON_BEAT(False) at each beat, and ON_BEAT(True) after a new connection or the end of the session."""
        self._on_beat = on_beat

    async def ask(self, request: Callable[[KazooClient], Any], *, commits: bool = False) -> Any:
        """Return the answer to REQUEST, an asynchronous call of kazoo. COMMITS: it needs the commit of a quorum.

        kazoo's errors that are answers (NoNodeError, BadVersionError, …) are raised unchanged, others as `Registry`
        says.
        """
        from kazoo import exceptions

        self._check()
        answer: asyncio.Future[Any] = self._loop.create_future()
        sent_ms = self._now_ms()
        self._requests += 1
        request(self._client).rawlink(lambda result: self._hand_over(self._settle, answer, result))
        try:
            async with asyncio.timeout(self.session_ms * 2 / 3000):
                found = await answer
        except TimeoutError:
            raise RegistryUnavailable(
                f"ZooKeeper ({self.servers}) has not answered for two thirds of a session"
            ) from None
        except exceptions.SessionExpiredError:
            self._is_over = True
            raise _expired() from None
        except (
            exceptions.NoNodeError,
            exceptions.NodeExistsError,
            exceptions.BadVersionError,
            exceptions.RolledBackError,
        ):
            self._count(sent_ms, commits)
            raise
        except exceptions.AuthFailedError:
            raise self._denied() from None
        except exceptions.NoAuthError:
            who = (
                f"user {self.access.user!r}" if self.access.auth else "a client without an account"
            )
            raise ConfigError(
                f"ZooKeeper ({self.servers}) does not give {who} the required rights (NoAuthError): use the account"
                f" that created {ROOT} (replication.zookeeper_auth), or give this one all rights on it"
            ) from None
        except exceptions.KazooException as error:
            if self._is_over:
                raise _expired() from None
            raise RegistryUnavailable(
                f"ZooKeeper ({self.servers}) did not answer: {type(error).__name__}"
            ) from None
        self._count(sent_ms, commits)
        return found

    async def check(self) -> None:
        """Let a quorum commit a transaction that changes nothing: the session has lasted until then."""
        await self.ask(_commit_nothing, commits=True)

    async def look(
        self,
        path: str,
        request: Callable[[KazooClient], Any],
        watch: Callable[[object], None] | None = None,
    ) -> Any:
        """Return the answer to REQUEST, which reads PATH; None: it does not exist, and WATCH is called when it does."""
        from kazoo import exceptions

        while True:
            with suppress(exceptions.NoNodeError):
                return await self.ask(request)
            if not await self.ask(lambda client: client.exists_async(path, watch=watch)):
                return None

    async def close(self) -> None:
        """End the session, if a server answers within some seconds; otherwise it expires."""
        self._is_over = True
        if self._beats is not None:
            self._beats.cancel()
            with suppress(asyncio.CancelledError):
                await self._beats
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.shield(self._stop())

    def hand_over(self, call: Callable[[], None]) -> None:
        """Call CALL in the event loop; thread-safe."""
        self._hand_over(call)

    def check_length(self) -> None:
        """Raise ConfigError if ZooKeeper ends the session earlier than requested; log it if later."""
        asked_ms, given_ms = self.session_ms, self._log.session_ms
        if given_ms is None or given_ms == asked_ms:
            return
        if given_ms < asked_ms:
            raise ConfigError(
                f"session_ms is {asked_ms}, but ZooKeeper ({self.servers}) ends sessions after {given_ms} ms: set"
                f" replication.session_ms to {given_ms} or less, or raise ZooKeeper's maxSessionTimeout",
                field="session_ms",
                limit=given_ms,
                value=asked_ms,
            )
        logger.warning(
            "ZooKeeper detects dead replicas later than requested: its tickTime exceeds a quarter of session_ms"
            " servers=%s session_ms=%d given_ms=%d",
            self.servers,
            asked_ms,
            given_ms,
        )

    def _denied(self) -> ConfigError:
        return ConfigError(
            f"ZooKeeper ({self.servers}) refused the account {self.access.user!r}: check replication.zookeeper_user,"
            " and the secret in zookeeper_secret_file",
            field="zookeeper_user",
            value=self.access.user,
        )

    def _check(self) -> None:
        if self._is_denied:
            raise self._denied()
        if self._is_over:
            raise _expired()
        if not self._client.connected:
            raise RegistryUnavailable(
                f"no ZooKeeper of {self.servers} is connected: check that it is running, and reachable from here",
                servers=self.servers,
            )
        if self._requests >= _REQUESTS_MAX:
            raise RegistryUnavailable(
                f"{_REQUESTS_MAX} requests wait for ZooKeeper ({self.servers}), which is the limit"
            )

    def _settle(self, answer: asyncio.Future[Any], result: Any) -> None:
        self._requests -= 1
        if answer.done():
            return
        if result.exception is not None:
            answer.set_exception(result.exception)
        else:
            answer.set_result(result.value)

    def _count(self, sent_ms: int, commits: bool) -> None:
        if self._is_over:
            raise _expired()
        if commits:
            self.answered_ms = max(self.answered_ms, sent_ms)

    def _hand_over(self, call: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # The event loop is closed: the event has no receiver.
            self._loop.call_soon_threadsafe(call, *arguments)

    def _on_state(self, state: str) -> None:
        """Handle a change of the connection, in kazoo's thread; what it sets is seen before the next session."""
        if state == "LOST" and self._client.client_state == "AUTH_FAILED":
            self._is_over = self._is_denied = True
            self._hand_over(self._began.set)
            self._hand_over(self._end)
        elif state == "LOST" and self._id is not None:
            self._is_over = True
            self._hand_over(self._end)
        elif state == "SUSPENDED":
            self._hand_over(self._on_connection, False)
        elif state == "CONNECTED" and not self._is_over:
            if self._id is None:
                if own := self._client.client_id:
                    self._id = own[0]
                    self._hand_over(self._began.set)
            else:
                self._hand_over(self._on_connection, True)

    def _on_connection(self, is_there: bool) -> None:
        self._lost_ms = None if is_there else self._now_ms()
        if is_there:
            self._on_beat(True)

    def _end(self) -> None:
        self._stop()
        self._on_beat(True)

    def _stop(self) -> asyncio.Future[None]:
        """Stop kazoo, in a separate thread: it may wait long for a server that does not answer."""
        if self._stopped is None:
            stopped = self._stopped = self._loop.create_future()

            def stop() -> None:
                with suppress(Exception):
                    self._client.stop()
                    self._client.close()
                self._hand_over(stopped.set_result, None)

            threading.Thread(target=stop, name="pocketmq-zookeeper-stop", daemon=True).start()
        return self._stopped

    async def _beat(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self.session_ms / 6000)
            if self._lost_ms is not None and self._now_ms() - self._lost_ms > 2 * self.session_ms:
                self._is_over = True
                self._end()
                return
            with suppress(RegistryUnavailable, SessionExpired):
                await self.check()
                self._on_beat(False)


class ZooKeeperRegistry:
    """The metadata of the replica set NAME of CLUSTER through SESSION, which ends with it; a `Registry`."""

    def __init__(self, session: ZooKeeperSession, cluster: str, name: str) -> None:
        base = f"{sets_path(cluster)}/{_checked('set', name)}"
        self._session = session
        self.node = f"{base}/state"
        self._live_node = f"{base}/live"
        self.mark_node = f"{base}/mark"
        self._changed: Callable[[], None] = lambda: None
        #: The number of events, and how many of them were known when the last read began.
        self._cell_events, self._cell_read = 1, 0
        self._live_events, self._live_read = 1, 0
        session.listen(self._on_beat)

    @classmethod
    async def open(
        cls,
        servers: str,
        cluster: str,
        name: str,
        *,
        session_ms: int,
        now_ms: Callable[[], int],
        access: ZooKeeperAccess = OPEN_TO_ALL,
    ) -> Self:
        """Return the metadata store of the set NAME of CLUSTER, with a session of its own.

        A warning names nodes that everyone may change although ACCESS has an account.

        Raises ConfigError if ZooKeeper ends that before SESSION_MS, and what `ZooKeeperSession.open` raises.
        """
        for kind, value in (("cluster", cluster), ("set", name)):
            _checked(kind, value)
        session = await ZooKeeperSession.open(
            servers, session_ms=session_ms, now_ms=now_ms, access=access
        )
        try:
            session.check_length()
            registry = cls(session, cluster, name)
            await registry._warn_of_open_nodes()
        except BaseException:
            await session.close()
            raise
        return registry

    @property
    def answered_ms(self) -> int:
        return self._session.answered_ms

    async def open_nodes(self) -> list[str]:
        """Return the nodes of the set, and above it, that every client may change."""
        names = self.node.split("/")[1:-1]
        above = ["/" + "/".join(names[: count + 1]) for count in range(len(names))]
        return await open_paths(
            self._session.ask, [*above, self.node, self._live_node, self.mark_node]
        )

    async def _warn_of_open_nodes(self) -> None:
        if self._session.access.auth and (found := await self.open_nodes()):
            logger.warning(
                "ZooKeeper nodes can be changed by every client, set their ACLs servers=%s nodes=%s",
                self._session.servers,
                ",".join(found),
            )

    async def read(self) -> VersionedCell | None:
        events = self._cell_events
        found = await self._session.look(
            self.node,
            lambda client: client.get_async(self.node, watch=self._on_cell_event),
            self._on_cell_event,
        )
        self._cell_read = max(self._cell_read, events)
        if found is None:
            return None
        data, stat = found
        cell = parse_cell(data, self.node)
        return VersionedCell(cell, _version(cell, stat))

    async def create(self, cell: ReplicaSetState) -> int:
        from kazoo import exceptions

        data = render_cell(cell)
        try:
            _, stat = await self._session.ask(
                lambda client: client.create_async(
                    self.node, data, makepath=True, include_data=True
                ),
                commits=True,
            )
        except exceptions.NodeExistsError:
            raise MetadataConflict(f"{self.node} exists already", node=self.node) from None
        return _version(cell, stat)

    async def compare_and_set(self, cell: ReplicaSetState, version: int) -> int:
        from kazoo import exceptions

        data = render_cell(cell)
        made, number = _unpack(version)
        try:
            stat = await self._session.ask(
                lambda client: client.set_async(self.node, data, number), commits=True
            )
        except (exceptions.BadVersionError, exceptions.NoNodeError):
            stat = None
        if stat is None or stat.czxid != made:
            raise MetadataConflict(
                f"{self.node} does not have version {number} any more", node=self.node
            ) from None
        return _version(cell, stat)

    async def announce(self, replica_id: int, node: LiveNode) -> None:
        """Set the live node of REPLICA_ID; it is removed at the end of this session.

        A node that another session of the same address and store left is replaced. Any other one gets a session and a
        half to end, as this replica may have moved; raises ConfigError if it remains: the id is taken.
        """
        path = f"{self._live_node}/{replica_id}"
        for _ in range(self._session.session_ms * 3 // (2 * _LOOK_MS) + _ANNOUNCE_TRIES):
            if await self._announce(path, node):
                return
        raise ConfigError(
            f"{path}: replica id {replica_id} is taken by another running process: give each replica of the set an "
            "id of its own, see `pocketmq replicas status`",
            node=path,
            replica_id=str(replica_id),
        )

    async def live(self) -> Mapping[int, LiveNode]:
        events = self._live_events
        names = await self._session.look(
            self._live_node,
            lambda client: client.get_children_async(self._live_node, watch=self._on_live_event),
            self._on_live_event,
        )
        ids = sorted(int(name) for name in names or () if _is_replica_id(name))[:REPLICAS_MAX]
        nodes = await asyncio.gather(*(self._live(one) for one in ids))
        self._live_read = max(self._live_read, events)
        return {one: node for one, node in zip(ids, nodes, strict=True) if node is not None}

    async def check_session(self) -> None:
        await self._session.check()

    async def sync(self) -> None:
        await self._session.ask(lambda client: client.sync_async(self.node))

    async def read_mark(self) -> VersionedEndMark | None:
        found = await self._session.look(
            self.mark_node, lambda client: client.get_async(self.mark_node)
        )
        if found is None:
            return None
        data, stat = found
        return VersionedEndMark(parse_mark(data, self.mark_node), _node_version(stat))

    async def write_mark(self, mark: EndMark, version: int | None) -> int:
        from kazoo import exceptions

        data = render_mark(mark)

        def write(client: KazooClient) -> Any:
            if version is None:
                return client.create_async(self.mark_node, data, include_data=True)
            return client.set_async(self.mark_node, data, _unpack(version)[1])

        try:
            done = await self._session.ask(write, commits=True)
        except (
            exceptions.BadVersionError,
            exceptions.NoNodeError,
            exceptions.NodeExistsError,
        ):
            raise _mark_changed(self.mark_node) from None
        stat = done[1] if version is None else done
        if version is not None and stat.czxid != _unpack(version)[0]:
            raise _mark_changed(self.mark_node)
        return _node_version(stat)

    def watch(self, changed: Callable[[], None]) -> None:
        """Call CHANGED at each watch event.

        ZooKeeper's watches fire once and are lost with a connection; each read sets them again. Until metadata and live
        nodes have been read since the last event, CHANGED is called again every sixth of a session.
        """
        self._changed = changed

    async def close(self) -> None:
        self._changed = lambda: None
        await self._session.close()

    async def _announce(self, path: str, node: LiveNode) -> bool:
        """Set NODE at PATH, for this session; return False if it must be tried again."""
        from kazoo import exceptions

        ask = self._session.ask
        data, owner, version = b"", None, -1
        try:
            data, stat = await ask(lambda client: client.get_async(path))
            owner, version = stat.ephemeralOwner, stat.version
        except exceptions.NoNodeError:
            await ask(lambda client: client.ensure_path_async(self._live_node))
        if owner != self._session.id and not _may_be_of(data, path, node):
            await asyncio.sleep(_LOOK_MS / 1000)
            return False

        def write(client: KazooClient) -> Any:
            transaction = client.transaction()
            if owner == self._session.id:
                transaction.set_data(path, render_live(node), version)
            else:
                if owner is not None:
                    transaction.delete(path, version)
                transaction.create(path, render_live(node), ephemeral=True)
            return transaction.commit_async()

        results = await ask(write, commits=True)
        return not any(isinstance(result, Exception) for result in results)

    async def _live(self, replica_id: int) -> LiveNode | None:
        from kazoo import exceptions

        path = f"{self._live_node}/{replica_id}"
        with suppress(exceptions.NoNodeError, ConfigError):
            data, _ = await self._session.ask(
                lambda client: client.get_async(path, watch=self._on_live_event)
            )
            return parse_live(data, path)
        return None

    def _on_cell_event(self, _event: object) -> None:
        self._session.hand_over(self._cell_event)

    def _on_live_event(self, _event: object) -> None:
        self._session.hand_over(self._live_event)

    def _cell_event(self) -> None:
        self._cell_events += 1
        self._changed()

    def _live_event(self) -> None:
        self._live_events += 1
        self._changed()

    def _on_beat(self, is_new: bool) -> None:
        if is_new:  # The watches ended with the connection or the session.
            self._cell_events += 1
            self._live_events += 1
        if (self._cell_read, self._live_read) != (self._cell_events, self._live_events):
            self._changed()


async def set_names(session: ZooKeeperSession, cluster: str) -> list[str]:
    """Return the names of the replica sets of CLUSTER, sorted. Raises ConfigError for an invalid name."""
    path = sets_path(cluster)
    return sorted(await session.look(path, lambda client: client.get_children_async(path)) or ())


def sets_path(cluster: str) -> str:
    """Return the parent node of the sets of CLUSTER. Raises ConfigError for an invalid name."""
    return f"{ROOT}/{_checked('cluster', cluster)}/sets"


def _checked(kind: str, name: str) -> str:
    if (
        not name
        or "/" in name
        or name in (".", "..")
        or not name.isprintable()
        or len(name) > _NAME_LENGTH_MAX
    ):
        raise ConfigError(
            f"{kind} {name!r:.80}: a name in ZooKeeper must have 1 to {_NAME_LENGTH_MAX} printable characters"
            " without slash",
            field=kind,
            value=name,
        )
    return name


class _KazooLog(logging.LoggerAdapter[logging.Logger]):
    """The log of one kazoo client. It also catches the session timeout, which kazoo shows only in its log."""

    def __init__(self) -> None:
        super().__init__(_kazoo_logger, {})
        #: None: not known yet, or kazoo uses other words in its log.
        self.session_ms: int | None = None
        #: Why the last attempt to connect failed.
        self.failure = ""

    def log(self, level: int, msg: object, *arguments: object, **other: Any) -> None:
        # "Session created, session_id: %r session_passwd: %s\n negotiated session timeout: %s …"
        if str(msg).startswith("Session created"):
            self.session_ms = next((one for one in arguments[2:] if isinstance(one, int)), None)
        super().log(level, msg, *arguments, **other)


def _client(servers: str, session_ms: int, log: _KazooLog, access: ZooKeeperAccess) -> KazooClient:
    """Return a client that tries SERVERS one after the other, forever and with short pauses."""
    try:
        from kazoo.client import KazooClient
        from kazoo.handlers.threading import SequentialThreadingHandler
        from kazoo.retry import KazooRetry
    except ImportError:
        raise ConfigError(
            f"ZooKeeper needs kazoo, which is not installed: {pip_install('replication')}"
        ) from None
    count = _check_servers(servers)
    access.check_servers(servers)

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]
        """Gives a server that cannot be reached a part of the session's time, not all of it."""

        def create_connection(self, *arguments: Any, **settings: Any) -> Any:
            settings["timeout"] = session_ms / 3000 / count
            try:
                plain = super().create_connection(*arguments, **settings)
                if access.tls is None:
                    return plain
                plain.settimeout(settings["timeout"])  # kazoo sets no limit.
                host = settings["hostname"]
                return access.tls.wrap_socket(plain, server_hostname=host)
            except Exception as error:
                log.failure = str(error)
                raise

    return KazooClient(
        servers,
        timeout=session_ms / 1000,
        handler=Handler(),
        # With jitter its delays would shrink to nothing: each is computed from the last one.
        connection_retry=KazooRetry(max_tries=-1, delay=_RECONNECT_S, backoff=1, max_jitter=0),
        logger=log,
        **access.settings(),
    )


def _check_servers(servers: str) -> int:
    """Return the number of servers in "host:port[,host:port…][/root]"; raise ConfigError for another form."""
    hosts = servers.partition("/")[0].split(",")
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not name or not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65_536):
            raise ConfigError(
                f"ZooKeeper {servers!r:.200}: {host!r:.80} is not HOST:PORT, as in 127.0.0.1:2181",
                field="zookeeper",
                value=servers,
            )
    return len(hosts)


def _commit_nothing(client: KazooClient) -> Any:
    transaction = client.transaction()
    transaction.check("/", -1)
    return transaction.commit_async()


def _version(cell: ReplicaSetState, stat: Any) -> int:
    return cell.epoch << 2 * _NUMBER_BITS | _node_version(stat)


def _node_version(stat: Any) -> int:
    return int(stat.czxid) << _NUMBER_BITS | int(stat.version)


def _mark_changed(node: str) -> MetadataConflict:
    return MetadataConflict(f"{node} was changed by another process: read it again", node=node)


def _unpack(version: int) -> tuple[int, int]:
    """Return the czxid in VERSION, and the node's own version."""
    below = (1 << _NUMBER_BITS) - 1
    return version >> _NUMBER_BITS & below, version & below


def _is_replica_id(name: str) -> bool:
    return (
        name.isascii() and name.isdecimal() and len(name) <= 10 and 0 < int(name) <= REPLICA_ID_MAX
    )


def _may_be_of(data: bytes, path: str, node: LiveNode) -> bool:
    """Return whether the live node DATA may be an earlier one of the replica of NODE; true if it is malformed."""
    try:
        return parse_live(data, path).may_be(node.address, node.store_id)
    except ConfigError:
        return True


def _expired() -> SessionExpired:
    return SessionExpired("the session with ZooKeeper has ended: begin a new one")
