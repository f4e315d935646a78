"""A broker whose time is moved by hand: the calls that tell and move it, and the mark that its store carries.

A store that was written under a virtual clock holds store times, due times and offsets of a time that nobody else
lives in. It says so in `<root>/pocketmq/clock.json`, {"clock":"virtual","now_ms":N}: N is never before a time that
stands in the store, because a move writes its end before it begins. A broker with the machine's clock refuses such a
store, unless it is forced, which removes the mark. The folder `pocketmq` can be lost: then the store is one as any
other, whose newest messages may be of the future, and a virtual broker goes on from the newest.

    begin(clock, disk, store_config)               # before the store is opened
    mark = keep_mark(clock, disk, store_config)    # once it is open and locked
    …
    mark.close()                                   # before it is closed

What was handed out and has no outcome yet: a clock that is moved stays at its instant until there is one.

Messages live by the moved clock, and consumers in real time. Were the clock not to wait for them, hours of retries
would fall due while a listener runs for the first time. So an instant is not left while any of this holds:

    groups that share queues    what a fetch under a lease brought is neither committed nor sent back; the holder of a
                                queue is about to fetch again; a topic that members read, or their retry topic, has
                                messages in a queue that no member has yet
    groups that pop             a push consumer has what it has neither acknowledged, handed back nor forwarded; there
                                is something for one that is about to receive again; a simple consumer has what it was
                                given since the move began, and its time is not over

Nobody waits for a reply whose outcome does not show here: consumers that read everything for themselves, fetches
without a lease, and retries that a client makes by itself (in order, in its own process) before it reports.

Bounds: the clock waits for PATIENCE_S of real time after the last change of all this. Then the log says for whom it
waited, and in this move it does not wait for them again. The event loop owns it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Final

from ..proto.clock import Clock, VirtualClock
from ..proto.errors import PocketMQError, StoreMismatch, Unsupported
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.rpc import Call, MethodTable, service, unary
from ..proto.time_text import parse_duration
from ..proto.topics import retry_topic
from ..store.config import StoreConfig
from ..store.disk import Disk
from ..store.message_store import MessageStore
from ..store.state_files import read_checkpoint
from .groups.coordinator import Coordination
from .groups.leases import QueueKey
from .messages.fetch_reply import Done
from .offsets import Offsets
from .pop.pops import Pops
from .pop.receives import Asked, Popped
from .topics_and_groups import Topics

logger = logging.getLogger(__name__)

_SERVICE: Final = "pocketmq.v1.Broker"
_NAME: Final = "clock.json"


# --- telling and moving the time


def is_virtual(clock: Clock) -> bool:
    """Can CLOCK be moved?"""
    return isinstance(clock, VirtualClock)


async def advance(clock: Clock, by: int | str) -> int:
    """Move CLOCK by BY, milliseconds or "2h30m"; return the new time once all that falls due until then has happened.

    Raises Unsupported where CLOCK moves by itself, InvalidArgument for a step that is none. A caller that is cancelled
    does not stop the move.
    """
    if not isinstance(clock, VirtualClock):
        raise Unsupported(
            "this broker lives by the machine's clock, which nobody moves: start it with --clock virtual"
        )
    by_ms = parse_duration(by, field="by") if isinstance(by, str) else by
    # A caller who gives up must not leave the clock somewhere on the way.
    await asyncio.shield(asyncio.ensure_future(clock.advance(by_ms)))
    return clock.unix_ms()


def methods(clock: Clock) -> MethodTable:
    """Return the table of the calls that tell and move CLOCK."""

    def reply() -> pb.ClockReply:
        return pb.ClockReply(now_ms=clock.unix_ms(), virtual=is_virtual(clock))

    def now(request: pb.ClockRequest, call: Call) -> pb.ClockReply:
        return reply()

    async def move(request: pb.AdvanceClockRequest, call: Call) -> pb.ClockReply:
        await advance(clock, request.by_ms)
        return reply()

    return service(
        _SERVICE,
        {
            "Now": unary(pb.ClockRequest, pb.ClockReply, now),
            "AdvanceClock": unary(pb.AdvanceClockRequest, pb.ClockReply, move),
        },
    )


# --- the store's mark


def check_clock(
    disk: Disk, config: StoreConfig, *, virtual: bool, now_ms: int, force: bool = False
) -> int:
    """Return the time at which a broker on the store of CONFIG begins; NOW_MS is the machine's.

    VIRTUAL: where the store's time stood, or NOW_MS for a store without the mark; never before its newest message.
    Otherwise NOW_MS. Raises StoreMismatch for a marked store and the machine's clock, unless FORCE, which removes the
    mark. Nothing else is written.
    """
    path = _path(config)
    stood_ms = _read(disk, path)
    if virtual:
        newest_ms = read_checkpoint(disk, config.checkpoint_path).log_time_ms
        return max(now_ms if stood_ms is None else stood_ms, newest_ms)
    if stood_ms is None:
        return now_ms
    if not force:
        stood = _instant(stood_ms) if stood_ms else "at an unknown time"
        raise StoreMismatch(
            f"the store {config.path} was written under a virtual clock, which stood {stood}:"
            " open it with --clock virtual, or with --force-clock if its times may be wrong from now on",
            path=path,
            now_ms=stood_ms,
        )
    disk.delete(path)
    disk.sync_folder(config.own_folder)
    logger.warning("mark of the virtual clock removed path=%s now_ms=%d", path, stood_ms)
    return now_ms


def begin(clock: Clock, disk: Disk, config: StoreConfig) -> None:
    """Have CLOCK, if it is a virtual one, begin where the time of the store of CONFIG stood, if that is later.

    Raises StoreMismatch for a marked store and the machine's clock.
    """
    start_ms = check_clock(disk, config, virtual=is_virtual(clock), now_ms=clock.unix_ms())
    if isinstance(clock, VirtualClock):
        clock.start_at(start_ms)


class Mark:
    """The mark of an open store while CLOCK moves. `close` writes it once more, and lets the clock go."""

    def __init__(self, clock: Clock, disk: Disk, config: StoreConfig) -> None:
        self._clock = clock
        self._disk = disk
        self._folder = config.own_folder
        self._path = _path(config)

    def write(self, now_ms: int) -> None:
        """Have the store say that its time is NOW_MS, on the device when this returns."""
        self._disk.make_folders(self._folder)
        text = json.dumps({"clock": "virtual", "now_ms": now_ms}, separators=(",", ":"))
        self._disk.write_atomically(self._path, text.encode())

    def open(self) -> None:
        if isinstance(self._clock, VirtualClock):
            self.write(self._clock.unix_ms())
            self._clock.before_move.append(self._move)

    def close(self) -> None:
        """Write the present time, and follow the clock no longer. Twice is once."""
        if isinstance(self._clock, VirtualClock) and self._move in self._clock.before_move:
            self._clock.before_move.remove(self._move)
            self._move(self._clock.unix_ms())

    def _move(self, target_ms: int) -> None:
        """Note a move. A disk that is full does not stop time: the mark stays, with an older time."""
        try:
            self.write(target_ms)
        except PocketMQError as error:
            logger.error("mark of the virtual clock not written reason=%s", error.message)


def keep_mark(clock: Clock, disk: Disk, config: StoreConfig) -> Mark:
    """Mark the store of CONFIG, which is open, if CLOCK is a virtual one; the mark follows its moves until `close`.

    Raises StoreFull or DiskFailure if the mark cannot be written.
    """
    mark = Mark(clock, disk, config)
    mark.open()
    return mark


def _path(config: StoreConfig) -> str:
    return f"{config.own_folder}/{_NAME}"


def _read(disk: Disk, path: str) -> int | None:
    """Return the time that the mark at PATH says, 0 if it cannot be read; None: there is no mark."""
    try:
        found = json.loads(disk.read(path))
    except FileNotFoundError:
        return None
    except ValueError:
        return 0
    now_ms = found.get("now_ms") if isinstance(found, dict) else None
    return now_ms if isinstance(now_ms, int) and now_ms >= 0 else 0


def _instant(timestamp_ms: int) -> str:
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"at {timestamp_ms} ms"
    return f"at {when.isoformat(sep=' ', timespec='milliseconds').replace('+00:00', 'Z')}"


# ---------------------------------------------------------------- what was handed out and has no outcome yet


PATIENCE_S: Final = 5.0
_LOOK_S: Final = 0.001
_TOLD_MAX: Final = 5
#: Offsets of a queue that are remembered as sent back.
_RETURNED_MAX: Final = 10_000

#: A queue as a group has it: (group, topic, queue).
_GroupQueue = tuple[str, str, int]
#: Who is waited for, and how far that is: it changes with each outcome.
_Open = dict[tuple[Hashable, ...], Hashable]


class Awaited:
    """Keeps CLOCK, while it is moved, at its instant until what was handed out has an outcome."""

    def __init__(
        self,
        clock: VirtualClock,
        store: MessageStore,
        topics: Topics,
        offsets: Offsets,
        pops: Pops,
        coordination: Coordination,
    ) -> None:
        self._clock = clock
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._pops = pops
        self._coordination = coordination
        #: Has anything happened since nobody was to be waited for? And where did the log end then?
        self._stirred = True
        self._settled_end = 0
        #: Under which token a fetch waits; under which what was fetched last, and its end.
        self._waiting: dict[_GroupQueue, int] = {}
        self._fetched: dict[_GroupQueue, tuple[int, int]] = {}
        #: What was sent back and may not be committed yet: offsets.
        self._returned: dict[_GroupQueue, set[int]] = {}
        #: When a push consumer last received, or got an answer, by (group, topic), in real time.
        self._pushed_s: dict[tuple[str, str], float] = {}
        #: What simple consumers were given in this move, by handle: its group and topic.
        self._lent: dict[str, tuple[str, str]] = {}
        self._moving = self._is_over = False
        self._given_up: set[tuple[Hashable, ...]] = set()

    def start(self) -> None:
        """Begin to keep the clock."""
        self._clock.before_move.append(self._begin)
        self._clock.before_leaving.append(self.settle)
        self._clock.after_move.append(self._end)

    def stop(self) -> None:
        """Keep it no more: a move that waits goes on."""
        self._is_over = True
        if self.settle in self._clock.before_leaving:
            self._clock.before_move.remove(self._begin)
            self._clock.before_leaving.remove(self.settle)
            self._clock.after_move.remove(self._end)

    def _begin(self, target_ms: int) -> None:
        self._moving = self._stirred = True
        self._given_up.clear()

    def _end(self) -> None:
        self._moving = False
        self._lent.clear()

    # --- what happens

    def fetching(self, request: pb.FetchRequest, done: Done) -> Done:
        """Hear of a fetch; return what is to be told its answer instead of DONE."""
        if not request.lease:
            return done
        key, token = (request.group, request.topic, request.queue), request.lease
        self._waiting[key] = token

        def answered(reply: pb.FetchReply) -> None:
            self._stirred = True
            if self._waiting.get(key) == token:
                del self._waiting[key]
            if reply.records:
                reply.clock_waits = True
                self._fetched[key] = token, reply.next_offset
            done(reply)

        return answered

    def sent_back(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Hear that a message was stored again, for later, or as a dead letter."""
        returned = self._returned.setdefault((group, topic, queue), set())
        if len(returned) >= _RETURNED_MAX:
            returned.clear()
        returned.add(offset)

    def receiving(self, asked: Asked, done: Callable[[Popped], None]) -> Callable[[Popped], None]:
        """Hear of a receive; return what is to be told its end instead of DONE."""
        key = asked.group, asked.topic
        if asked.auto_renew:
            self._pushed_s[key] = _now_s()

        def popped(popped: Popped) -> None:
            self._stirred = True
            if asked.auto_renew:
                self._pushed_s[key] = _now_s()
            elif self._moving:
                self._lent.update((delivery.handle, key) for delivery in popped.deliveries)
            done(popped)

        return popped

    # --- waiting for what comes of it

    async def settle(self) -> bool:
        """Return once nobody is to be waited for at this instant; return whether that took any time."""
        # What comes due again for a push consumer that is just about to receive stirs nothing.
        has_arrived = self._store.max_log_offset != self._settled_end
        if not self._stirred and not has_arrived and not self._pushed_s:
            return False
        waited, before, since_s = False, self._open(), _now_s()
        while before:
            waited = True
            await asyncio.sleep(_LOOK_S)
            if self._is_over:
                break
            now = self._open()
            if now != before:
                before, since_s = now, _now_s()
            elif _now_s() - since_s >= PATIENCE_S:
                self._give_up(now)
                before = self._open()
        self._stirred = False
        self._settled_end = self._store.max_log_offset
        return waited

    def _give_up(self, found: _Open) -> None:
        self._given_up.update(found)
        told = "; ".join(" ".join(map(str, who)) for who in list(found)[:_TOLD_MAX])
        more = f"; and {len(found) - _TOLD_MAX} more" if len(found) > _TOLD_MAX else ""
        logger.warning(
            "the clock goes on without outcomes now_ms=%d after_s=%.0f waited_for=%s%s",
            self._clock.now_ms(),
            PATIENCE_S,
            told,
            more,
        )

    def _open(self) -> _Open:
        """Return who is to be waited for."""
        found = self._open_queues() | self._open_pops()
        return {who: state for who, state in found.items() if who not in self._given_up}

    def _open_queues(self) -> _Open:
        found: _Open = {}
        coordination = self._coordination
        groups = coordination.coordinator.read_topics()
        read = {(group, topic) for group, topics in groups for topic in topics}
        for group, key, lease in coordination.held():
            read.add((group, retry_topic(group)))
            place = group, key.topic, key.queue
            committed = self._committed(group, key)
            token, end = self._fetched.get(place, (0, 0))
            is_fetching = self._waiting.get(place) == lease.token
            if not is_fetching or (token == lease.token and committed < end):
                found[place] = committed, end, is_fetching
        for group, name in read:
            found |= self._unread(group, name)
        return found

    def _unread(self, group: str, name: str) -> _Open:
        """Return the queues of topic NAME that have messages for GROUP, and no member has."""
        topic = self._topics.find(name)
        found: _Open = {}
        for number in range(0 if topic is None else topic.read_queues):
            key = QueueKey(name, number)
            if self._coordination.holder(group, key) is None:
                end, committed = self._store.queue_bounds(*key)[1], self._committed(group, key)
                if committed < end:
                    found[group, *key] = committed, end
        return found

    def _committed(self, group: str, key: QueueKey) -> int:
        """Return up to where GROUP has finished KEY: what it committed, and what it sent back behind that."""
        offset = self._offsets.committed(key.topic, group, key.queue) or 0
        returned = self._returned.get((group, key.topic, key.queue))
        while returned and offset in returned:
            offset += 1
        return offset

    def _open_pops(self) -> _Open:
        pops, oldest_s = self._pops, _now_s() - PATIENCE_S
        found: _Open = {("client", owner): count for owner, count in pops.owed().items()}
        self._lent = {
            handle: key for handle, key in self._lent.items() if pops.is_lent(*key, handle)
        }
        for group, topic in self._lent.values():
            found["group", group, "topic", topic] = len(self._lent)
        self._pushed_s = {
            key: pushed_s for key, pushed_s in self._pushed_s.items() if pushed_s > oldest_s
        }
        for group, topic in self._pushed_s:
            if pops.has_some_left(group, topic):
                found["push consumers of", group, topic] = True
        return found


def _now_s() -> float:
    return asyncio.get_running_loop().time()
