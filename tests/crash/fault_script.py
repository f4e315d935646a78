"""All that a broker does, in one short script, and what has to be true afterwards.

The script runs in two lives of a broker over one store, on virtual time (its sleeps cost nothing) and without a
network. Each failure has to be reported: to the caller, at the start or stop of the broker, or in the log. Then a third
life, whose disk is sound, has to find everything that was acknowledged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Literal, TypeVar

from google.protobuf.message import Message

from pocketmq.broker.broker import Broker, Network
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.parts import BrokerParts
from pocketmq.broker.pop.receives import ReceiveRequest, ReceiveResult
from pocketmq.proto.errors import PocketMQError, QueueNotFound, StoreFull
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.recall_handle import encode_handle
from pocketmq.proto.record import Record, decode_record, encode_run
from pocketmq.proto.rpc import LATER, Limits, MethodTable
from pocketmq.proto.topics import dead_letter_topic
from pocketmq.store.disk import Disk
from pocketmq.store.flush import Flusher
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..fake_calls import FakeCall
from ..numbered import numbered_run
from ..runs import BORN, records_of, small_config
from ..simulation.virtual_loop import EPOCH_MS, loop_clock, run
from .failing_disk import FailingDisk, Fault

TOPIC: Final = "T"
OLD: Final = "Old"
POPPERS: Final = "poppers"
READERS: Final = "readers"
SENDERS: Final = "senders"
QUEUES: Final = 2
_HANG_S: Final = 120
_PATH: Final = "/pocketmq.v1.Broker/"
Value = TypeVar("Value")


@dataclass
class Ledger:
    """What was answered. Ids of messages, which are their bodies: acknowledged, or refused; and what was told."""

    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    #: Of what was refused: there was no room, so that the producer sends it to another broker.
    not_stored: set[str] = field(default_factory=set)
    has_topic: bool = False
    #: Will never be delivered, or may not be: rolled back, recalled.
    gone: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    #: Finished by the consumer, but the answer was an error: may be redelivered, or not.
    doubtful: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    #: Are dead letters, or delivered again: the answer was an error.
    maybe_dead: set[str] = field(default_factory=set)
    offset: int = -1
    told: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    #: A life that did not end well, after which messages may be redelivered.
    unclean: bool = False
    #: Lives that ended badly, or with a store that failed: what fired in the last seconds of each may fire again.
    bad_ends: int = 0


class _Switchboard:
    """A carrier without a wire: hands requests to the methods of TABLES."""

    def __init__(self, tables: Iterable[MethodTable], *, limits: Limits) -> None:
        self._methods = {method.path: method for table in tables for method in table}

    async def start(self, host: str, port: int) -> int:
        return port

    async def stop(self, grace_s: float) -> None:
        """No client is connected."""

    async def ask(self, name: str, request: Message) -> Any:
        """Return the answer to REQUEST, or raise it."""
        call = FakeCall()
        reply: Any = self._methods[_PATH + name].handler(request, call)
        if inspect.isawaitable(reply):
            reply = await reply
        if reply is not LATER:
            return reply
        while not call.answers:  # noqa: ASYNC110 (on virtual time)
            await asyncio.sleep(0.01)
        if call.error is not None:
            raise call.error
        return call.answer


class _Life:
    """One run of a broker on DISK; what happens is in LEDGER."""

    def __init__(
        self, folder: Path, disk: Disk, ledger: Ledger, flush: Literal["async", "sync"]
    ) -> None:
        self.disk = disk
        #: What was refused last.
        self.refusal: PocketMQError | None = None
        self.ledger = ledger
        self._board: _Switchboard | None = None

        def carrier(tables: Iterable[MethodTable], *, limits: Limits) -> _Switchboard:
            self._board = _Switchboard(tables, limits=limits)
            return self._board

        self.clock = loop_clock()
        self.broker = Broker.build(
            BrokerConfig(nameservers=(), port=8081),
            small_config(
                folder,
                flush=flush,
                log_file_size_bytes=8192,
                timer_log_file_size_bytes=2048,
                retention_ms=3_600_000,
                disk_expire_percent=1,
                disk_force_percent=99,
                disk_refuse_percent=100,
            ),
            disk=disk,
            clock=self.clock,
            random=Random(1),
            network=Network(make_carrier=carrier),
        )

    @property
    def parts(self) -> BrokerParts:
        assert self.broker._running is not None
        return self.broker._running.parts

    @property
    def store(self) -> MessageStore:
        return self.broker.store

    async def attempt(self, what: str, work: Awaitable[Value]) -> Value | None:
        """Return what WORK does; None if it was refused, which is noted. To hang, or another error, is a fault."""
        try:
            async with asyncio.timeout(_HANG_S):
                return await work
        except PocketMQError as error:
            self.ledger.told.append(f"{what}: {error.message}")
            self.refusal = error
        except TimeoutError:
            self.ledger.complaints.append(f"{what} hangs")
        except Exception:
            self.ledger.complaints.append(f"{what}: a bug: {traceback.format_exc(limit=-6)}")
        return None

    async def ask(self, name: str, request: Message) -> Any:
        """Return the answer to REQUEST; None if it was refused."""
        assert self._board is not None
        return await self.attempt(name, self._board.ask(name, request))

    async def start(self) -> bool:
        """Start; a start that reports why it fails is tried once more."""
        for _ in range(2):
            try:
                async with asyncio.timeout(_HANG_S):
                    await self.broker.start()
                return True
            except (PocketMQError, OSError) as error:  # The command prints both.
                self.ledger.told.append(f"start: {error}")
            except Exception:
                self.ledger.complaints.append(f"start: a bug: {traceback.format_exc(limit=-6)}")
        return False

    async def stop(self) -> None:
        told, health = len(self.ledger.told), self.store.health
        await self.attempt("stop", self.broker.stop())
        is_unclean = len(self.ledger.told) > told
        self.ledger.unclean |= is_unclean
        self.ledger.bad_ends += is_unclean or health.failure is not None

    # --- what clients do

    async def send(
        self,
        names: Sequence[str],
        queue: int = 0,
        *,
        topic: str = TOPIC,
        durability: pb.Durability = pb.MEMORY,
        **properties: str,
    ) -> bool:
        """Send NAMES as one run; return whether it was acknowledged."""
        messages = [
            (
                name.encode(),
                encode_properties({"UNIQ_KEY": name, "KEYS": f"key-{name}"} | properties),
            )
            for name in names
        ]
        records, sizes = encode_run(
            topic, queue, messages, born_timestamp_ms=EPOCH_MS, born_host=BORN
        )
        return await self.send_run(
            pb.ProduceRun(
                run_id=1,
                topic=topic,
                queue=queue,
                records=records,
                sizes=sizes,
                durability=durability,
            ),
            names,
        )

    async def send_run(self, run: pb.ProduceRun, names: Sequence[str]) -> bool:
        async def sent() -> bool:
            answer: asyncio.Future[pb.ProduceReply] = asyncio.get_running_loop().create_future()
            self.parts.sends.send(run, answer.set_result)
            reply = await answer
            if reply.HasField("error"):
                raise from_wire(reply.error)
            return True

        stored = bool(await self.attempt(f"send {names[0]}", sent()))
        (self.ledger.acknowledged if stored else self.ledger.refused).update(names)
        if not stored and isinstance(self.refusal, StoreFull):
            self.ledger.not_stored.update(names)
        return stored

    async def end(self, name: str, resolution: pb.Resolution) -> bool:
        request = pb.EndTransactionRequest(
            group=SENDERS, topic=TOPIC, transaction_id=name, resolution=resolution
        )
        return await self.ask("EndTransaction", request) is not None

    async def pop(self, batch: int) -> ReceiveResult:
        async def popped() -> ReceiveResult:
            answer: asyncio.Future[ReceiveResult] = asyncio.get_running_loop().create_future()
            asked = ReceiveRequest(
                group=POPPERS, topic=TOPIC, client_id="c", batch=batch, invisible_ms=10_000
            )
            self.parts.pops.receive(asked, answer.set_result)
            found = await answer
            if found.error is not None:
                raise found.error
            return found

        return await self.attempt("pop", popped()) or ReceiveResult()

    async def finish(self, what: str, work: Callable[[], object]) -> bool:
        """Do WORK on something popped; return whether it was acknowledged."""

        async def done() -> bool:
            work()
            safe: asyncio.Future[PocketMQError | None] = asyncio.get_running_loop().create_future()
            self.parts.pops.when_safe(safe.set_result)
            error = await safe
            if error is not None:
                raise error
            return True

        return bool(await self.attempt(what, done()))


async def first_life(life: _Life) -> None:
    """Use everything once."""
    ledger = life.ledger
    ledger.has_topic = await _create(life, TOPIC)
    await _create(life, OLD)
    for name in (POPPERS, READERS):
        group = pb.GroupConfig(name=name, retry_max_times=16, retry_queues=1, consume_enable=True)
        await life.ask("CreateGroup", pb.CreateGroupRequest(group=group))
    for number in range(6):  # They fill the first log file, which retention then takes.
        await life.send([f"old-{number}"], topic=OLD, FILL="x" * 1500)
    if isinstance(life.disk, FailingDisk) and len(life.store.log.files.files) > 1:
        life.disk.old = "commitlog/00000000000000000000"
    await life.send([f"plain-{n}" for n in range(6)], 0)
    await life.send([f"disk-{n}" for n in range(3)], 1, durability=pb.DISK)
    numbered = [f"numbered-{n}" for n in range(3)]
    keys = [{"UNIQ_KEY": name, "KEYS": _key(name)} for name in numbered]
    repeated = numbered_run([name.encode() for name in numbered], 0, queue=1, properties=keys)
    # As a producer does: again, until it is answered; it may be stored already.
    if await life.send_run(repeated, numbered) or await life.send_run(repeated, numbered):
        ledger.refused.difference_update(numbered)
        ledger.not_stored.difference_update(numbered)
    await life.send(["level"], 0, DELAY="1")
    due_ms = life.clock.now_ms() + 5_000
    await life.send(["timed"], 0, TIMER_DELIVER_MS=str(due_ms))
    late_ms = life.clock.now_ms() + 60_000
    if await life.send(["recalled"], 0, TIMER_DELIVER_MS=str(late_ms)):
        handle = encode_handle(TOPIC, "broker-a", late_ms, "recalled")
        await asyncio.sleep(1.5)  # On virtual time: its timer is written by then.
        if await life.ask("Recall", pb.RecallRequest(topic=TOPIC, handle=handle)):
            ledger.gone.add("recalled")
        else:
            ledger.refused.add("recalled")
    for name in ("commit", "rollback", "later"):
        if await life.send([name], 1, TRAN_MSG="true", PGROUP=SENDERS):
            ledger.acknowledged.remove(name)  # Not before it is committed.
    await _resolve(life, "commit", "rollback")
    await _pop_some(life)
    await _read_some(life)
    await life.ask("Lookup", pb.LookupRequest(topic=TOPIC, key=_key("plain-1")))
    # On virtual time, as all sleeps here: what is due is delivered; queues, checkpoint and tables reach the disk.
    await asyncio.sleep(70)


async def _create(life: _Life, topic: str) -> bool:
    config = pb.TopicConfig(name=topic, read_queues=QUEUES, write_queues=QUEUES, permission=6)
    return await life.ask("CreateTopic", pb.CreateTopicRequest(topic=config)) is not None


async def _resolve(life: _Life, commit: str, rollback: str = "") -> None:
    if await life.end(commit, pb.COMMIT) or await life.end(commit, pb.COMMIT):
        life.ledger.acknowledged.add(commit)
    else:
        life.ledger.refused.add(commit)
    if rollback and await life.end(rollback, pb.ROLLBACK):
        life.ledger.gone.add(rollback)
    elif rollback:
        life.ledger.refused.add(rollback)


async def _pop_some(life: _Life) -> None:
    ledger, pops = life.ledger, life.parts.pops
    popped = (await life.pop(4)).deliveries
    for number, one in enumerate(popped):
        name = _name(one.record)
        handle = one.handle
        if number < 2:
            done = await life.finish("ack", lambda: pops.acknowledge(POPPERS, TOPIC, handle))  # noqa: B023
            (ledger.finished if done else ledger.doubtful).add(name)
        elif number == 2:
            await life.finish(
                "change",
                lambda: pops.change_invisible(POPPERS, TOPIC, handle, 1_000),  # noqa: B023
            )
        elif await life.finish(
            "bury",
            lambda: pops.forward_to_dead_letters(POPPERS, TOPIC, handle, "tired"),  # noqa: B023
        ):
            ledger.finished.add(name)
            ledger.dead.add(name)
        else:
            ledger.maybe_dead.add(name)


async def _read_some(life: _Life) -> None:
    """Send one message back, another to the dead letters, and commit after them."""
    found = await life.attempt("read", _read(life.store))
    for record, level in zip(found or (), (1, -1), strict=False):
        await life.ask(
            "SendBack",
            pb.SendBackRequest(
                group=READERS,
                topic=TOPIC,
                queue_offset=record.queue_offset,
                log_offset=record.log_offset,
                delay_level=level,
            ),
        )
    offset = pb.GroupOffset(topic=TOPIC, queue=0, offset=2)
    if await life.ask("CommitOffsets", pb.CommitOffsetsRequest(group=READERS, offsets=[offset])):
        life.ledger.offset = 2


async def _read(store: MessageStore) -> list[Record]:
    return _records(store, TOPIC, 0)[:2]


def _records(store: MessageStore, topic: str, queue: int) -> list[Record]:
    try:
        return records_of(store, topic, queue)
    except QueueNotFound:
        return []


def _key(name: str) -> str:
    return f"key-{name}"


def _name(data: bytes) -> str:
    return decode_record(data).body.decode()


async def second_life(life: _Life) -> None:
    """Continue: resolve what is open, fill files so that old ones expire, delete a topic."""
    await _resolve(life, "later")
    for number in range(6):
        await life.send([f"more-{number}"], number % QUEUES, FILL="x" * 1500)
    await life.attempt("retention", _clean(life))
    await asyncio.sleep(3)


async def _clean(life: _Life) -> None:
    life.parts.clean()


async def check(life: _Life) -> None:
    """Say in the ledger what is not as it was promised. On a sound disk."""
    ledger = life.ledger
    if not life.parts.topics.has_queue(TOPIC, 0):
        if ledger.has_topic:
            ledger.complaints.append("the topic is lost")
        await _create(life, TOPIC)
    await asyncio.sleep(130)  # Whatever waits comes.
    found = Counter(r.body.decode() for q in range(QUEUES) for r in _records(life.store, TOPIC, q))
    old = {name for name in ledger.acknowledged if name.startswith("old")}
    promised = ledger.acknowledged - ledger.refused - ledger.gone - old
    _check_queues(life, promised, found)
    await _check_pops(life, set(found))
    for name in sorted(promised):
        reply = await life.ask("Lookup", pb.LookupRequest(topic=TOPIC, key=_key(name)))
        if reply is None or not reply.records:
            ledger.complaints.append(f"{name} is not found by its key")
    offset = life.parts.offsets.committed(TOPIC, READERS, 0)
    if ledger.offset >= 0 and not ledger.unclean and offset != ledger.offset:
        ledger.complaints.append(f"the committed offset is {offset}, not {ledger.offset}")
    if not await life.send(["after"], 0):
        ledger.complaints.append("a sound broker takes no messages")


def _check_queues(life: _Life, promised: set[str], found: Counter[str]) -> None:
    ledger = life.ledger
    for name in sorted(promised - found.keys()):
        ledger.complaints.append(f"{name} was acknowledged and is lost")
    for name in sorted(ledger.not_stored & found.keys()):
        ledger.complaints.append(f"{name} was refused, and is delivered")
    for name in sorted(ledger.gone & found.keys()):
        ledger.complaints.append(f"{name} was taken back, and is delivered")
    for name, count in found.items():
        again = ledger.bad_ends if name in ("level", "timed", "recalled") else 0
        if count > 1 + again:
            ledger.complaints.append(f"{name} is there {count} times")
    for name in sorted(ledger.dead - _dead_letters(life)):
        ledger.complaints.append(f"the dead letter {name} is lost")


def _dead_letters(life: _Life) -> set[str]:
    return {r.body.decode() for r in _records(life.store, dead_letter_topic(POPPERS), 0)}


async def _check_pops(life: _Life, there: set[str]) -> None:
    ledger = life.ledger
    popped = await _all_popped(life)
    done = ledger.finished | ledger.doubtful | (ledger.maybe_dead & _dead_letters(life))
    for name in sorted((there - done) - popped.keys()):
        ledger.complaints.append(f"{name} was never finished, and is not delivered")
    # Without its journal the broker says that changes stay in memory, or are lost.
    if not ledger.unclean and not any(_tells_of_lost_changes(line) for line in ledger.logged):
        for name in sorted(ledger.finished & popped.keys()):
            ledger.complaints.append(f"{name} was finished, and is redelivered")


def _tells_of_lost_changes(line: str) -> bool:
    return line.startswith(("tables not written", "tables not closed", "changes of tables lost"))


async def _all_popped(life: _Life) -> Counter[str]:
    popped: Counter[str] = Counter()
    while found := (await life.pop(16)).deliveries:
        popped.update(_name(one.record) for one in found)
        for one in found:
            life.parts.pops.acknowledge(POPPERS, TOPIC, one.handle)
    return popped


class _Heard(logging.Handler):
    """Hears what is logged as a warning or worse."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _no_thread(flusher: Flusher) -> None:
    """Leave FLUSHER without a thread."""


@contextmanager
def _heard(lines: list[str]) -> Iterator[None]:
    """Note in LINES what is logged; nothing waits for a thread meanwhile."""
    heard, logger, start = _Heard(lines), logging.getLogger("pocketmq"), Flusher.start
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(heard)
    # It does what it is given at once, so that operations have numbers.
    Flusher.start = _no_thread  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Flusher.start = start  # type: ignore[method-assign]
        logger.removeHandler(heard)
        logger.propagate = propagates


@dataclass(frozen=True)
class Outcome:
    """What came of one fault: HIT says where it was (empty: the script has fewer operations), of COUNT operations."""

    hit: str
    count: int
    complaints: Sequence[str]


def play(
    folder: Path,
    fault: Fault,
    number: int,
    *,
    also: int = 0,
    flush: Literal["async", "sync"] = "async",
) -> Outcome:
    """Run the script on a new store in FOLDER, with FLUSH, while operation NUMBER, and ALSO, fails with FAULT."""
    ledger = Ledger()
    disk = FailingDisk(str(folder), fault, number, also)

    async def lives() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda loop, context: ledger.complaints.append(
                f"a callback failed: {context.get('exception')!r} {context['message']}"
            )
        )
        for script in (first_life, second_life):
            life = _Life(folder, disk, ledger, flush)
            if await life.start():
                await script(life)
                await life.stop()
        if disk.hit and not ledger.told and not ledger.logged:
            ledger.complaints.append("the fault was not reported")
        last = _Life(folder, OsDisk(), ledger, flush)
        told = len(ledger.told)
        if await last.start():
            await check(last)
            await last.stop()
        ledger.complaints += [f"on a sound disk: {line}" for line in ledger.told[told:]]

    with _heard(ledger.logged):
        run(lives())
    return Outcome(disk.hit, disk.count, ledger.complaints)
