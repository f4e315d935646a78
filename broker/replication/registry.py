"""The metadata of replica sets in ZooKeeper: one `Cell` per set, and a live node per running replica.

    <cluster>/sets/<name>/state      persistent, changed only by compare-and-set on the version that was read
        {"format":1,"epoch":7,"master":2,"in_sync":[1,2],"replicas":{"1":"host:port","2":"host:port"}}
    <cluster>/sets/<name>/live/<id>  ephemeral: removed with the session that announced it
        {"address":"host:port","epoch":7,"end":4096,"unclean":false,"epoch_seen":7,"damaged":1}
    <cluster>/sets/<name>/mark       persistent: how far acknowledged records reach (mark.py)
        {"format":1,"end":4096,"epoch":7,"accepted":0}

`epoch` is the set's own number (i32 as in RocketMQ's files), so it survives the loss of ZooKeeper's data. `master` 0:
no master yet. `in_sync` lists the replicas that have everything acknowledged, ascending. An elected master writes a
higher epoch with its own id, so each epoch has one master. Unknown fields are ignored and lost at the next change;
incompatible changes raise `format`, and a later format is refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from ...proto.clock import Readings
from ...proto.errors import (
    ConfigError,
    MetadataConflict,
    PocketMQError,
    RegistryUnavailable,
    SessionExpired,
)

FORMAT: Final = 1
NODE_SIZE_MAX: Final = 65_536
REPLICAS_MAX: Final = 64
REPLICA_ID_MAX: Final = 2**31 - 1
EPOCH_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
_ADDRESS_LENGTH_MAX: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The metadata of a replica set."""

    epoch: int
    #: A replica id; 0 before the first election.
    master: int
    in_sync: frozenset[int]
    #: "host:port" by replica id.
    replicas: Mapping[int, str] = field(default_factory=dict)


class VersionedCell(NamedTuple):
    """A cell as it was at a version of its node; versions of one node only grow."""

    cell: Cell
    version: int


class EndMark(NamedTuple):
    """How far acknowledged records reach.

    Every member of the in-sync set had the log on disk up to END, and the record before END was written in EPOCH.
    ACCEPTED is the epoch for which an administrator last accepted a loss; 0: never.
    """

    end: int = 0
    epoch: int = 0
    accepted: int = 0


class VersionedEndMark(NamedTuple):
    """A mark as it was at a version of its node; versions of one node only grow."""

    mark: EndMark
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveNode:
    """What a replica that runs says of itself."""

    address: str
    #: Of its last record; orders candidates, together with END. Both are hints, and may be old.
    epoch: int
    end: int
    #: It may lack what it once acknowledged: no candidate, and in no set, until it has caught up.
    unclean: bool = False
    #: Identifies its store; "": unknown.
    store_id: str = ""
    #: The highest epoch it has seen, also after a failed election: followers' hellos are compared with it.
    epoch_seen: int = 0
    #: Places of its log that are known to be damaged.
    damaged: int = 0

    def may_be(self, address: str, store_id: str) -> bool:
        """May the replica at ADDRESS with the store STORE_ID be who says this? Else another process has its id."""
        return self.address == address and (
            store_id == self.store_id or not store_id or not self.store_id
        )


def better_candidates(
    cell: Cell,
    live: Mapping[int, LiveNode],
    replica_id: int,
    epoch: int,
    end: int,
    damaged: int = 0,
) -> int:
    """Return how many may be elected after the master of CELL, and have more than REPLICA_ID, which ends there.

    One whose log is damaged has less than one whose log is not.
    """
    mine = (damaged > 0, -epoch, -end, replica_id)
    return sum(
        (node.damaged > 0, -node.epoch, -node.end, one) < mine
        for one, node in live.items()
        if one in cell.in_sync and one not in (replica_id, cell.master) and not node.unclean
    )


class Registry(Protocol):
    """One session with the metadata store of one replica set.

    An operation raises RegistryUnavailable if no answer came; a change may then have been applied, or be applied later.
    Reads may return old data; compare versions. After the session is over all operations raise SessionExpired: the live
    node is gone, and a new session has to be opened.
    """

    @property
    def answered_ms(self) -> int:
        """The `CLOCK_BOOTTIME`, in ms, at which the latest request that was answered had been sent."""
        ...

    async def read(self) -> VersionedCell | None:
        """Return the set's metadata; None: there is none. Raises ConfigError if it cannot be parsed."""
        ...

    async def create(self, cell: Cell) -> int:
        """Create the set's metadata and return its version. Raises MetadataConflict if it exists."""
        ...

    async def compare_and_set(self, cell: Cell, version: int) -> int:
        """Replace the metadata of VERSION by CELL; return the new version. Raises MetadataConflict if it changed."""
        ...

    async def announce(self, replica_id: int, node: LiveNode) -> None:
        """Set the live node of REPLICA_ID; it ends with this session."""
        ...

    async def live(self) -> Mapping[int, LiveNode]:
        """Return the live nodes by replica id; one that cannot be understood is left out."""
        ...

    async def check_session(self) -> None:
        """Return once a quorum has agreed, by a transaction that changes nothing, that this session has not ended."""
        ...

    async def sync(self) -> None:
        """Have all later reads of this session see what was written before now."""
        ...

    async def read_mark(self) -> VersionedEndMark | None:
        """Return the mark; None: there is none. Raises ConfigError if it cannot be understood."""
        ...

    async def write_mark(self, mark: EndMark, version: int | None) -> int:
        """Replace the mark of VERSION (None: no mark exists) and return the new version, or raise MetadataConflict."""
        ...

    def watch(self, changed: Callable[[], None]) -> None:
        """Call CHANGED whenever the set's metadata or a live node may have changed."""
        ...

    async def close(self) -> None:
        """End the session, and with it the live node."""
        ...


# ---------------------------------------------------------------- cells and their bytes


def render_cell(cell: Cell) -> bytes:
    """Return the bytes of CELL. Raises ConfigError if it breaks a rule."""
    _check_cell(cell, "the metadata to write")
    return _render(
        {
            "format": FORMAT,
            "epoch": cell.epoch,
            "master": cell.master,
            "in_sync": sorted(cell.in_sync),
            "replicas": {str(one): cell.replicas[one] for one in sorted(cell.replicas)},
        }
    )


def parse_cell(data: bytes, node: str) -> Cell:
    """Return the metadata in DATA, the bytes of NODE, which errors name. Raises ConfigError."""
    fields = _object_in(data, node)
    number = _integer(fields, "format", node, 1, 2**31)
    if number != FORMAT:
        raise _refused(
            node,
            f'"format" is {number}, and this program knows {FORMAT}',
            "upgrade this broker: another one of the set is of a later version",
        )
    epoch = _integer(fields, "epoch", node, 0, EPOCH_MAX)
    master = _integer(fields, "master", node, 0, REPLICA_ID_MAX)
    in_sync = fields.get("in_sync")
    if not isinstance(in_sync, list) or not all(_is_id(one) for one in in_sync):
        raise _refused(
            node, f'"in_sync" must be a list of replica ids from 1 on, not {in_sync!r:.80}'
        )
    if len(set(in_sync)) != len(in_sync):
        raise _refused(node, f'"in_sync" names a replica twice: {in_sync!r:.80}')
    addresses = fields.get("replicas")
    if not isinstance(addresses, dict):
        raise _refused(
            node, f'"replicas" must be an object of addresses by replica id, not {addresses!r:.80}'
        )
    replicas: dict[int, str] = {}
    for key, address in addresses.items():
        if not (key.isascii() and key.isdecimal() and str(int(key[:12])) == key):
            raise _refused(
                node, f'"replicas" has the key {key!r:.80}, which is no replica id from 1 on'
            )
        replicas[int(key)] = address
    cell = Cell(epoch=epoch, master=master, in_sync=frozenset(in_sync), replicas=replicas)
    _check_cell(cell, node)
    return cell


def render_live(node: LiveNode) -> bytes:
    """Return the bytes of a live node."""
    return _render(
        {
            "address": node.address,
            "epoch": node.epoch,
            "end": node.end,
            "unclean": node.unclean,
            **({"damaged": node.damaged} if node.damaged else {}),
            **({"epoch_seen": node.epoch_seen} if node.epoch_seen else {}),
            **({"store": node.store_id} if node.store_id else {}),
        }
    )


def parse_live(data: bytes, node: str) -> LiveNode:
    """Return the live node in DATA, the bytes of NODE, which errors name. Raises ConfigError."""
    fields = _object_in(data, node)
    unclean = fields.get("unclean")
    if not isinstance(unclean, bool):
        raise _refused(node, f'"unclean" must be true or false, not {unclean!r:.80}')
    address = fields.get("address")
    _check_address(address, '"address"', node)
    store_id = fields.get("store", "")
    if not isinstance(store_id, str):
        raise _refused(node, f'"store" must be text, not {store_id!r:.80}')
    return LiveNode(
        address=str(address),
        epoch=_integer(fields, "epoch", node, 0, EPOCH_MAX),
        end=_integer(fields, "end", node, 0, OFFSET_MAX),
        unclean=unclean,
        store_id=store_id,
        epoch_seen=_integer({"epoch_seen": 0, **fields}, "epoch_seen", node, 0, EPOCH_MAX),
        damaged=_integer({"damaged": 0, **fields}, "damaged", node, 0, OFFSET_MAX),
    )


def render_mark(mark: EndMark) -> bytes:
    """Return the bytes of MARK. Raises ConfigError if they could not be read back."""
    data = _render({"format": FORMAT, **mark._asdict()})
    parse_mark(data, "the mark to write")
    return data


def parse_mark(data: bytes, node: str) -> EndMark:
    """Return the mark in DATA, the bytes of NODE, which errors name. Raises ConfigError."""
    fields = _object_in(data, node)
    if (number := fields.get("format")) != FORMAT:
        raise _refused(
            node,
            f'"format" is {number!r:.40}, and this program knows {FORMAT}',
            "upgrade this broker: another one of the set is of a later version",
        )
    return EndMark(
        end=_integer(fields, "end", node, 0, OFFSET_MAX),
        epoch=_integer(fields, "epoch", node, 0, EPOCH_MAX),
        accepted=_integer(fields, "accepted", node, 0, EPOCH_MAX),
    )


def _render(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _object_in(data: bytes, node: str) -> dict[str, Any]:
    if len(data) > NODE_SIZE_MAX:
        raise _refused(node, f"it has {len(data)} bytes, and {NODE_SIZE_MAX} are the limit")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise _refused(node, f"it is no JSON: {data[:40]!r}") from None
    if not isinstance(fields, dict):
        raise _refused(node, f"it is no JSON object: {data[:40]!r}")
    return fields


def _check_cell(cell: Cell, node: str) -> None:
    """Raise ConfigError if values of CELL contradict each other or exceed their limits."""
    if not 0 <= cell.epoch <= EPOCH_MAX:
        raise _refused(node, f'"epoch" is {cell.epoch}, not from 0 to {EPOCH_MAX}')
    if len(cell.replicas) > REPLICAS_MAX:
        raise _refused(
            node, f'"replicas" has {len(cell.replicas)} entries, and {REPLICAS_MAX} are the limit'
        )
    for one, address in cell.replicas.items():
        if not _is_id(one):
            raise _refused(node, f'"replicas" has the id {one}, not from 1 to {REPLICA_ID_MAX}')
        _check_address(address, f'"replicas" at "{one}"', node)
    if unknown := sorted(cell.in_sync - cell.replicas.keys()):
        raise _refused(node, f'"in_sync" has {unknown[0]}, which "replicas" does not have')
    if cell.master and cell.master not in cell.in_sync:
        raise _refused(node, f'"master" is {cell.master}, which "in_sync" does not have')


def _check_address(address: object, name: str, node: str) -> None:
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host.isprintable():  # A lone surrogate is not either: no reply could carry it.
        host = ""
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
    if not (host and colon and is_port and len(host) <= _ADDRESS_LENGTH_MAX):
        raise _refused(node, f'{name} must be "host:port", not {address!r:.80}')


def _is_id(value: object) -> bool:
    return type(value) is int and 1 <= value <= REPLICA_ID_MAX


def _integer(fields: dict[str, Any], name: str, node: str, least: int, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise _refused(
            node, f'"{name}" must be an integer from {least} to {most}, not {value!r:.80}'
        )
    return value


def _refused(node: str, fault: str, remedy: str = "") -> ConfigError:
    remedy = remedy or "correct the node, or write it again for the replica whose log is the newest"
    return ConfigError(f"{node}: {fault}; {remedy}", node=node)


# ---------------------------------------------------------------- the sessions of a replica with the metadata store


logger = logging.getLogger(__name__)

#: Opens a session. Raises RegistryUnavailable.
OpenSession = Callable[[], Awaitable[Registry]]
#: Called once: with whether the session is known to have lasted.
SessionChecked = Callable[[bool], None]
_PAUSE_MS: Final = 200
#: Interval of the log lines while the metadata store does not answer.
TOLD_MS: Final = 30_000


class SessionUser(Protocol):
    """Receives what the metadata store answers."""

    def session_began(self) -> None: ...

    def session_ended(self) -> None: ...

    def registry_answered(self, sent_ms: int) -> None: ...

    def registry_seen(
        self,
        cell: VersionedCell | None,
        live: Mapping[int, LiveNode],
        mark: VersionedEndMark | None,
    ) -> None: ...

    def set_done(self, version: int) -> None: ...

    def set_refused(self) -> None: ...

    def set_unknown(self) -> None: ...

    def mark_written(self, found: VersionedEndMark | None) -> None: ...


class RegistrySessions:
    """Sessions from OPEN_SESSION, for USER, the replica REPLICA_ID, whose registry ends one after SESSION_MS."""

    def __init__(
        self,
        open_session: OpenSession,
        user: SessionUser,
        replica_id: int,
        session_ms: int,
        clock: Readings,
    ) -> None:
        self._open_session = open_session
        self._user = user
        self._replica_id = replica_id
        #: Reads at this interval renew the lease, and find changes that no watch reported.
        self._poll_ms = max(20, session_ms // 5)
        self._registry: Registry | None = None
        self._asked: deque[_Request] = deque()
        self._news = asyncio.Event()
        self._is_reading = False
        self._is_synced = False
        self._next_node: LiveNode | None = None
        #: Those who wait for a check of the session that was not sent yet.
        self._checking: list[SessionChecked] = []
        self._silent = Silence("no answer from the metadata store, retrying", clock)
        #: Why the live node was refused; None: it was not, or was not announced yet.
        self.refused: ConfigError | None = None
        self._not_taken = Silence("live node refused by the metadata store, retrying", clock)

    # --- what the replica asks; nothing comes of it without a session, but that a change is unknown

    def read(self) -> None:
        """Read the set's metadata, then the live nodes, then the mark."""
        if not self._is_reading and self._registry is not None:
            self._is_reading = True
            self._ask(_Request(self._read))

    def announce(self, node: LiveNode) -> None:
        """Set the live node; of several that wait the last is set."""
        if self._registry is None:
            return
        if self._next_node is None:
            self._ask(_Request(self._announce))
        self._next_node = node

    def compare_and_set(self, cell: Cell, version: int) -> None:
        """Replace the metadata of VERSION."""

        async def change(registry: Registry) -> None:
            try:
                new = await registry.compare_and_set(cell, version)
            except MetadataConflict:
                self._user.set_refused()
            except PocketMQError:
                self._user.set_unknown()
                raise
            else:
                self._user.set_done(new)

        if self._registry is None:
            self._user.set_unknown()
        else:
            self._ask(_Request(change, self._user.set_unknown))

    def write_mark(self, mark: EndMark, version: int | None) -> None:
        """Replace the mark of VERSION; `mark_written` answers, with None if that is not known to be done."""

        async def write(registry: Registry) -> None:
            written = None
            try:
                written = VersionedEndMark(mark, await registry.write_mark(mark, version))
            except MetadataConflict:
                self.read()
            finally:
                self._user.mark_written(written)

        if self._registry is None:
            self._user.mark_written(None)
        else:
            self._ask(_Request(write, lambda: self._user.mark_written(None)))

    def check_session(self, tell: SessionChecked) -> None:
        """TELL whether the metadata store said, to a request sent after this call, that the session has not ended."""
        if self._registry is None:
            tell(False)
            return
        if not self._checking:
            self._ask(_Request(self._check_session, self._not_checked))
        self._checking.append(tell)

    def _not_checked(self) -> None:
        checking, self._checking = self._checking, []
        for tell in checking:
            tell(False)

    async def _check_session(self, registry: Registry) -> None:
        checking, self._checking = self._checking, []
        lasts = False
        try:
            await registry.check_session()
            lasts = True
            self._user.registry_answered(registry.answered_ms)
        finally:
            for tell in checking:
                tell(lasts)

    def _ask(self, request: _Request) -> None:
        self._asked.append(request)
        self._news.set()

    async def _read(self, registry: Registry) -> None:
        self._is_reading = False
        if not self._is_synced:
            await registry.sync()
            self._is_synced = True
        cell, live = await registry.read(), await registry.live()
        # The mark last: once a master's live node is gone, all that it wrote into the mark is seen.
        self._user.registry_seen(cell, live, await registry.read_mark())

    async def _announce(self, registry: Registry) -> None:
        node, self._next_node = self._next_node, None
        if node is None:
            return
        try:
            await registry.announce(self._replica_id, node)
        except ConfigError as error:
            self.refused = error
            self._not_taken.tell(error.message)
        else:
            self.refused = None
            self._not_taken.over()

    # --- sessions

    async def run(self) -> None:
        """Have one session after the other, until this is cancelled."""
        while True:
            try:
                registry = await self._open_session()
            except PocketMQError as error:
                await self._pause(error)
                continue
            self._registry = registry
            try:
                registry.watch(self.read)
                self._user.session_began()
                await self._use(registry)
            except SessionExpired as error:
                logger.warning("session with the metadata store ended reason=%s", error.message)
            finally:
                self._registry = None
                self._forget()
                await _close(registry)
            self._user.session_ended()

    async def _use(self, registry: Registry) -> None:
        """Ask what is asked for until the session is over."""
        while True:
            if not self._asked:
                self._news.clear()
                try:
                    async with asyncio.timeout(self._poll_ms / 1000):
                        await self._news.wait()
                except TimeoutError:
                    self.read()
                continue
            request = self._asked.popleft()
            try:
                await request.send(registry)
                self._silent.over()
            except SessionExpired:
                raise
            except PocketMQError as error:
                await self._pause(error)
            self._user.registry_answered(registry.answered_ms)

    async def _pause(self, error: PocketMQError) -> None:
        self._silent.tell(error.message)
        await asyncio.sleep(_PAUSE_MS / 1000)

    def _forget(self) -> None:
        """Drop requests that were not sent; the result of a change under way stays unknown."""
        asked, self._asked = self._asked, deque()
        self._is_reading, self._is_synced, self._next_node = False, False, None
        for request in asked:
            request.drop()


@dataclass(frozen=True, slots=True)
class _Request:
    """One request: SEND sends it, DROP is called if it is not sent."""

    send: Callable[[Registry], Awaitable[None]]
    drop: Callable[[], None] = lambda: None


class Silence:
    """Logs a repeated failure: at first, every `TOLD_MS`, and when it is over."""

    def __init__(self, what: str, clock: Readings) -> None:
        self._what = what
        self._clock = clock
        self._told_ms: int | None = None
        self._reason = ""
        self._count = 0

    def tell(self, reason: str) -> None:
        """It failed once more, for REASON."""
        now_ms = self._clock.now_ms()
        self._count += 1
        again = self._told_ms is None or now_ms - self._told_ms >= TOLD_MS
        if again or reason != self._reason:
            logger.warning("%s times=%d reason=%s", self._what, self._count, reason)
            self._told_ms, self._reason = now_ms, reason

    def over(self) -> None:
        """It went well."""
        if self._told_ms is not None:
            logger.warning("%s: no longer times=%d", self._what, self._count)
            self._told_ms, self._reason, self._count = None, "", 0


async def first_look(
    open_session: OpenSession, clock: Readings
) -> tuple[VersionedCell | None, Mapping[int, LiveNode]]:
    """Return the set's metadata and the live nodes, retrying until there is an answer. Raises ConfigError."""
    silent = Silence("no answer from the metadata store, retrying", clock)
    while True:
        try:
            registry = await open_session()
            try:
                return await registry.read(), await registry.live()
            finally:
                await _close(registry)
        except (RegistryUnavailable, SessionExpired) as error:
            silent.tell(error.message)
            await asyncio.sleep(_PAUSE_MS / 1000)


async def _close(registry: Registry) -> None:
    with suppress(PocketMQError):
        await registry.close()
