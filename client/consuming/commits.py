"""The keeping of how far a consumer is: by the brokers for its group, or in a file of its own.

A broker takes all offsets of a request or none. It refuses those of a queue that is not ours any more (LeaseLost): the
source is told, and the others are committed all the same. What is committed again, since its broker may have forgotten
it, goes with the text that it had; what was kept is known, so that nothing is kept twice. Not thread-safe: its event
loop owns it.

A consumer that reads everything for itself keeps its offsets in a file of its own, Apache's `offsets.json`:

    ~/.rocketmq_offsets/<client id>/<group>/offsets.json        and offsets.json.bak, the one before

    {
    →"offsetTable":{
    →→{
    →→→"brokerName":"broker-a",
    →→→"queueId":0,
    →→→"topic":"orders"
    →→}:12,
    →→{ … }:7
    →}
    }

No JSON that others know: the keys of the table are objects. Written as RocketMQ 5.5.0's Java client does (fastjson 2),
by which both fastjson generations read it; both generations' layouts are read. A file that is missing, empty, or does
not parse gives way to its `.bak`.

A write merges: what another consumer has put into the file stays there. The new file is on the device before it takes
the old one's place, and the old one becomes the `.bak`, so that a crash at any moment leaves a whole one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from json import JSONDecoder
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from ...proto.clock import Clock, held as clock_held
from ...proto.errors import CorruptState, Disconnected, LeaseLost, OffsetsNotKept, PocketMQError
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..queue import Queue, in_parts
from .held_queue import HeldQueue, QueueSource
from .parts import ConsumerParts

logger = logging.getLogger(__name__)


#: What was committed reaches the followers of a master in a tenth of this.
_LAG_MS: Final = 1_000
#: Of each queue, so many of the last moments' offsets are kept in mind.
_RECENT_MAX: Final = 1_024
#: Queues that one log line names.
_QUEUES_NAMED: Final = 8
#: A broker's clock waits for so long without an outcome (PATIENCE_S of broker/timing/virtual_time.py).
HURRY_MS: Final = 5_000
_LOOK_MS: Final = 5
#: The right, the offset, and its text; None: as it is.
_Row: TypeAlias = tuple[HeldQueue, int, str | None]


class OffsetKeeper(ABC):
    """Keeps offsets: the brokers for a group, a file for a consumer that reads everything for itself."""

    #: Can texts go with offsets?
    keeps_metadata: ClassVar[bool] = True

    def __init__(self) -> None:
        self._committed: dict[Queue, int] = {}

    @abstractmethod
    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Keep OFFSETS, and with those of the queues in METADATA these texts ("": none).

        A queue that is not in METADATA keeps its text as long as its offset.
        """

    @abstractmethod
    def doubt(self, broker: str) -> None:
        """Hear that the connection to BROKER broke: it may be another run, and not know what was committed last."""

    def begin(self, held: HeldQueue) -> None:
        """Note what was kept of a queue when it came."""
        if held.committed >= 0:
            self._committed[held.queue] = held.committed

    def committed(self, queue: Queue) -> int | None:
        """Return what was kept last of QUEUE, by us or before it came; None: nothing yet."""
        return self._committed.get(queue)

    def kept(self, queue: Queue) -> frozenset[int]:
        """Return what whoever keeps them may have as the last of QUEUE, if nobody else has committed; −1: nothing."""
        return frozenset((self._committed.get(queue, -1),))

    def learn(self, queue: Queue, offset: int) -> None:
        """Note that OFFSET of QUEUE is kept, which somebody else has seen to."""
        self._committed[queue] = offset

    @abstractmethod
    def still_there(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        """Hear that what was asked at SENT_MS, after BREAKS of the broker, was answered under our right to QUEUE: until
        then it was the same run and the same master.
        """

    def forget(self, queue: Queue) -> None:
        """Forget what was kept of QUEUE: it has gone."""
        self._committed.pop(queue, None)


class Commits(OffsetKeeper):
    """Commits for the group what SOURCE says that we hold."""

    def __init__(self, parts: ConsumerParts, source: QueueSource) -> None:
        super().__init__()
        self._session = parts.session
        self._group = parts.group
        self._timeout_ms = parts.config.request_timeout_ms
        self._counts = parts.counts
        self._source = source
        #: What is committed again, since its broker may have forgotten it.
        self._doubtful: set[Queue] = set()
        #: What else the next master of a replica set may take for committed, and since when, by queue: it may not have
        #: heard of the last moments' commits, and may have heard of one that was not answered.
        self._recent: dict[Queue, deque[tuple[int, int]]] = {}
        #: How often its broker had broken off when each queue's offset was last known to be there.
        self._breaks: dict[Queue, int] = {}
        #: Texts that we committed with what is committed now.
        self._metadata: dict[Queue, str] = {}

    def doubt(self, broker: str) -> None:
        """Commit again to BROKER what it took so far: a broker writes offsets down only now and then."""
        self._doubtful |= {queue for queue in self._committed if queue.broker == broker}

    def forget(self, queue: Queue) -> None:
        """Forget what was committed of QUEUE: somebody else goes on with it."""
        super().forget(queue)
        self._doubtful.discard(queue)
        self._recent.pop(queue, None)
        self._breaks.pop(queue, None)
        self._metadata.pop(queue, None)

    def begin(self, held: HeldQueue) -> None:
        super().begin(held)
        self._breaks[held.queue] = self._session.routes.breaks(held.queue.broker)

    def kept(self, queue: Queue) -> frozenset[int]:
        recent = [offset for _, offset in self._recent.get(queue, ())]
        if self._breaks.get(queue) == self._session.routes.breaks(queue.broker):
            # What else its broker says now, it has been told since: by somebody else, or by a commit without an answer.
            recent = recent[-1:]
        return super().kept(queue) | set(recent)

    def learn(self, queue: Queue, offset: int) -> None:
        now_ms = self._session.clock.now_ms()
        if (before := self._committed.get(queue, -1)) != offset:
            self._note_recent(queue, before)
            self._note_recent(queue, offset)
        super().learn(queue, offset)
        self._know_until(queue, now_ms)
        self._breaks[queue] = self._session.routes.breaks(queue.broker)

    def still_there(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        if queue in self._breaks:
            self._breaks[queue] = max(self._breaks[queue], breaks)
            self._know_until(queue, sent_ms)

    def _note_recent(self, queue: Queue, offset: int) -> None:
        """Note that the next master may take OFFSET of QUEUE for committed."""
        recent = self._recent.setdefault(queue, deque(maxlen=_RECENT_MAX))
        if recent and recent[-1][1] == offset:
            recent.pop()
        recent.append((self._session.clock.now_ms(), offset))

    def _know_until(self, queue: Queue, now_ms: int) -> None:
        """Forget what no master after NOW_MS takes for committed, unless the last commit was not answered."""
        recent = self._recent.get(queue)
        if recent and recent[-1][1] == self._committed.get(queue):
            while recent and recent[0][0] < now_ms - _LAG_MS:
                recent.popleft()

    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Commit OFFSETS, to all brokers at once; queues that are not held, or committed so far, are left out.

        Those in METADATA are committed once more. Raises the first error that a broker gave, once all have answered.
        A queue that was lost is none.
        """
        texts = metadata or {}
        by_broker: dict[str, list[_Row]] = {}
        for queue, offset in offsets.items():
            held = self._source.held(queue)
            is_known = self._committed.get(queue) == offset
            text = texts.get(queue)
            if is_known and text is None:
                if queue not in self._doubtful:
                    continue
                text = self._metadata.get(queue)
            if held is not None:
                by_broker.setdefault(queue.broker, []).append((held, offset, text))
        results = await asyncio.gather(
            *(
                self._commit_to(broker, part)
                for broker, rows in by_broker.items()
                for part in in_parts(rows)
            ),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _commit_to(self, broker: str, rows: list[_Row]) -> None:
        try:
            await self._ask(broker, rows)
        except LeaseLost:
            if len(rows) == 1:
                self._source.lost(rows[0][0])
                return
            # The answer is about one of them: each for itself.
            for row in rows:
                await self._commit_to(broker, [row])

    async def _ask(self, broker: str, rows: Iterable[_Row]) -> None:
        request = pb.CommitOffsetsRequest(group=self._group)
        for held, offset, text in rows:
            topic, _, number = held.queue
            request.offsets.add(
                topic=topic, queue=number, offset=offset, lease=held.token, metadata=text
            )
            self._note_recent(held.queue, offset)
        try:
            await self._session.ask(
                broker, "CommitOffsets", request, pb.CommitOffsetsReply, self._timeout_ms
            )
        except PocketMQError as error:
            self._counts.commits_failed += 1
            if isinstance(error, Disconnected):
                self.doubt(broker)
            raise
        for held, offset, text in rows:
            if self._source.held(held.queue) == held:
                self._note(held.queue, offset, text)
            self._counts.commits += 1

    def _note(self, queue: Queue, offset: int, text: str | None) -> None:
        if text:
            self._metadata[queue] = text
        elif text is not None or self._committed.get(queue) != offset:
            self._metadata.pop(queue, None)
        self.learn(queue, offset)
        self._doubtful.discard(queue)


class RegularCommits:
    """Has KEEPER commit what FINISHED() says, every auto_commit_interval_ms; what fails is tried again.

    Where a broker's clock waits for what was fetched, at once when it is finished, for HURRY_MS.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        keeper: OffsetKeeper,
        finished: Callable[[], Mapping[Queue, int]],
    ) -> None:
        self._parts = parts
        self._clock = parts.session.clock
        self._keeper = keeper
        self._finished = finished
        self._hurries = False
        self._hurries_until_ms = 0
        #: What has come back, and is finished further than its broker knows.
        self._resumed: dict[Queue, int] = {}

    def start(self) -> None:
        """Begin, until the session ends."""
        self._parts.session.tasks.spawn(self._run())
        self._parts.on_clock_waits.append(self._hurry)

    def resumed(self, held: HeldQueue, offset: int) -> None:
        """Commit soon that HELD, which was lost and has come back, is finished up to OFFSET."""
        if offset != held.committed:
            if not self._resumed:
                self._parts.session.tasks.spawn(self._commit_resumed())
            self._resumed[held.queue] = offset

    async def _commit_resumed(self) -> None:
        """Commit what has come back in this turn, in one go."""
        resumed, self._resumed = self._resumed, {}
        are_there = await asyncio.gather(*(self._is_there(*one) for one in resumed.items()))
        finished = self._finished()
        there = [queue for queue, is_there in zip(resumed, are_there, strict=True) if is_there]
        await self._commit({queue: finished[queue] for queue in there if queue in finished})

    async def _is_there(self, queue: Queue, offset: int) -> bool:
        """Has QUEUE as many messages? Else somebody has accepted a loss, and the reader finds where to go on."""
        try:
            bounds = await self._parts.bounds.of(queue, None)
        except PocketMQError:
            return False  # It is committed with the others.
        return offset <= bounds.max_offset

    def _hurry(self) -> None:
        """Hear that a broker's clock waits until what has just come is committed."""
        self._hurries_until_ms = self._clock.now_ms() + HURRY_MS
        if not self._hurries:
            self._hurries = True
            self._parts.session.tasks.spawn(self._run_hurrying())

    async def _run(self) -> None:
        interval_ms = self._parts.config.auto_commit_interval_ms
        while True:
            await self._clock.sleep_until(self._clock.now_ms() + interval_ms)
            await self._commit(self._finished())

    async def _run_hurrying(self) -> None:
        try:
            while (now_ms := self._clock.now_ms()) < self._hurries_until_ms:
                await self._clock.sleep_until(now_ms + _LOOK_MS)
                await self._commit(self._finished())
        finally:
            self._hurries = False

    async def _commit(self, offsets: Mapping[Queue, int]) -> None:
        try:
            await self._keeper.commit(offsets)
        except PocketMQError as error:
            queues = ", ".join(map(str, sorted(offsets)[:_QUEUES_NAMED]))
            logger.warning(
                "offsets not committed, trying again later %s",
                Facts(group=self._parts.group, queues=queues, reason=error.message),
            )


_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = JSONDecoder()
_NO_PATH: Final = re.compile(r"[/\\\x00]")


def offsets_path(folder: str, client_id: str, group: str) -> Path:
    """Return where the offsets of GROUP lie; FOLDER empty: `.rocketmq_offsets` in the user's home."""
    root = Path(folder) if folder else Path.home() / ".rocketmq_offsets"
    return root / _NO_PATH.sub("_", client_id) / group / "offsets.json"


class LocalOffsets(OffsetKeeper):
    """The offsets in the file at what FIND_PATH returns. Not thread-safe: its event loop owns it."""

    keeps_metadata = False  # Apache's file has no room for it.

    def __init__(self, find_path: Callable[[], Awaitable[Path]], clock: Clock) -> None:
        super().__init__()
        self._find_path = find_path
        self._path: Path | None = None
        self._clock = clock
        self._writing = asyncio.Lock()

    async def committed_of(self, queues: Collection[Queue]) -> dict[Queue, int]:
        """Return where QUEUES go on; −1: nothing is known. Raises CorruptState if no file can be read."""
        path = await self._place()
        with clock_held(self._clock):
            stored = await asyncio.to_thread(load, path)
        return {queue: stored.get(queue, -1) for queue in queues}

    async def commit(
        self, offsets: Mapping[Queue, int], metadata: Mapping[Queue, str] | None = None
    ) -> None:
        """Keep OFFSETS; METADATA is none. Raises OffsetsNotKept if the file cannot be written."""
        new = {q: offset for q, offset in offsets.items() if self._committed.get(q) != offset}
        if not new:
            return
        path = await self._place()
        async with self._writing:
            with clock_held(self._clock):
                await asyncio.to_thread(save, path, new)
        self._committed |= new

    def doubt(self, broker: str) -> None:
        """Go on: the file knows everything still."""

    def still_there(self, queue: Queue, sent_ms: int, breaks: int) -> None:
        """The file stays what it is, whichever master there is."""

    async def _place(self) -> Path:
        if self._path is None:
            self._path = await self._find_path()
        return self._path


def load(path: Path) -> dict[Queue, int]:
    """Return the offsets in the file at PATH, or else in its `.bak`; none if neither is there.

    Raises CorruptState if what is there cannot be read.
    """
    backup = _backup(path)
    table, fault = _read(path)
    if table is not None:
        return table
    older, older_fault = _read(backup)
    if fault:
        logger.warning(
            "offsets not readable, taking the file before %s", Facts(path=path, reason=fault)
        )
    if older_fault or (fault and older is None):
        missing = "is missing or empty"
        raise CorruptState(
            f"{path} {fault or missing}, {backup} {older_fault or missing}:"
            " repair one of the two, or move both away to start without offsets",
            path=str(path),
            backup=str(backup),
        )
    return older or {}


def save(path: Path, new: Mapping[Queue, int]) -> None:
    """Put NEW into the file at PATH, beside what others have put there; on the device when this returns.

    Raises OffsetsNotKept.
    """
    text = render({**load(path), **new})
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with fresh.open("wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        _keep_backup(path)
        fresh.replace(path)
    except OSError as error:
        raise OffsetsNotKept(
            f"offsets cannot be kept in {path}: {error.strerror or error}; make it writable, or choose another"
            " folder with offsets_folder",
            path=str(path),
        ) from error


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _keep_backup(path: Path) -> None:
    """Make what the file holds its own `.bak`, unless it is not whole: then the older one is worth more."""
    if _read(path)[0] is None:
        return
    spare = path.with_name(f"{path.name}.bak.{os.getpid()}.new")
    spare.unlink(missing_ok=True)
    os.link(path, spare)
    spare.replace(_backup(path))


def _read(path: Path) -> tuple[dict[Queue, int] | None, str]:
    """Return what the file at PATH holds; or None, and what is wrong with it ("": it is missing or empty)."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (OSError, UnicodeDecodeError) as error:
        return None, f"cannot be read ({error})"
    if not text:
        return None, ""
    try:
        return parse(text), ""
    except ValueError as error:
        return None, f"does not parse ({error})"


def render(offsets: Mapping[Queue, int]) -> str:
    """Return OFFSETS as the file has them, in the order of topic, broker and number."""
    entries = [
        "\t\t{\n"
        f'\t\t\t"brokerName":{_quoted(queue.broker)},\n'
        f'\t\t\t"queueId":{queue.number},\n'
        f'\t\t\t"topic":{_quoted(queue.topic)}\n'
        f"\t\t}}:{offset}"
        for queue, offset in sorted(offsets.items())
    ]
    table = "{\n" + ",\n".join(entries) + "\n\t}" if entries else "{}"
    return f'{{\n\t"offsetTable":{table}\n}}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def parse(text: str) -> dict[Queue, int]:
    """Return the offsets in TEXT. Raises ValueError if it is nothing of the kind."""
    scanner = _Scanner(text)
    table: dict[Queue, int] = {}
    for key in scanner.object():
        if key != "offsetTable":
            scanner.value()
            continue
        for name in scanner.object():
            queue, offset = _queue_of(name), scanner.value()
            if not isinstance(offset, int) or isinstance(offset, bool):
                raise ValueError(f"offset {offset!r} of {queue} is no number")
            table[queue] = offset
    scanner.end()
    return table


def _queue_of(key: Any) -> Queue:
    try:
        topic, broker, number = key["topic"], key["brokerName"], key["queueId"]
    except (KeyError, TypeError):
        raise ValueError(f"{key!r} is no queue") from None
    if not (isinstance(topic, str) and isinstance(broker, str) and isinstance(number, int)):
        raise ValueError(f"{key!r} is no queue")
    return Queue(topic, broker, number)


class _Scanner:
    """Reads JSON whose objects may have objects as keys."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _next(self) -> str:
        """Return the character after white space, "" at the end."""
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _expect(self, wanted: str) -> str:
        found = self._next()
        if not found or found not in wanted:
            raise ValueError(f"{found!r} at {self._at}, where one of {wanted!r} belongs")
        self._at += 1
        return found

    def object(self) -> Iterator[Any]:
        """Yield the keys of an object; who asks takes each value before the next key."""
        self._expect("{")
        if self._next() == "}":
            self._at += 1
            return
        while True:
            key = self.value()
            self._expect(":")
            yield key
            if self._expect(",}") == "}":
                return

    def value(self) -> Any:
        """Return a value that is plain JSON."""
        self._next()
        value, self._at = _DECODER.raw_decode(self._text, self._at)
        return value

    def end(self) -> None:
        """Raise ValueError unless nothing follows."""
        if self._next():
            raise ValueError(
                f"{self._text[self._at : self._at + 10]!r} at {self._at}, behind the end"
            )
