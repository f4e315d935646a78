"""Atomic consume-and-produce: the offsets that a group has processed and the messages it produced, all or nothing.

    asked     validated like a send and a commit of offsets; the group must be at the offset where the read began, and
              the caller must own its queues
    decided   in the same turn of the event loop: the commit record (records.py) is appended, and the group's offsets
              are updated
    made      once the record is on disk, whatever `store.flush` says: the messages are appended to their queues in one
              turn, and the answer is sent. They were not visible before
    done      once these messages are on disk as well

The same commit (by id) gets the same answer again. If its id is no longer known, the group's offsets have changed:
OffsetMoved. A start completes commits that were decided but not done. consumerOffset.json, which has the offsets, also
has the progress: the next numbers in the queue of commit records, as offsets of two system groups:

    CID_RMQ_SYS_ATOMIC_OFFSETS   of a record whose offsets the file does not have
    CID_RMQ_SYS_ATOMIC_COPIES    of a record whose messages may not be on disk

Commit records are in the order of decisions, and nothing of a commit happens before its record is on disk. A power cut
can leave a later record without an earlier one; the later one is invalid. Each record names its predecessor.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Final, TypeAlias

from ...proto import errors
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc import LATER, Call, Later, MethodTable, service, unary
from ...proto.run import Run
from ...proto.topics import COMMIT_COPIES_GROUP, COMMIT_OFFSETS_GROUP, COMMIT_TOPIC
from ...store.log_writer import Appended
from ...store.message_store import MessageStore
from ..config import BrokerConfig
from ..consumer_groups import Groups, check_own_choice
from ..groups.lease_guard import LeaseGuard
from ..messages.admission import check_body_sizes, validate
from ..messages.appender import Appender
from ..messages.message_types import check_type
from ..offsets import Offsets
from ..timing.timers import Timers
from ..timing.timing_wheel import Timer
from ..topics import TYPE_ATTRIBUTE, Topics
from .commit_record import check_ids, copies_of, encode_commit
from .found_commits import CopyPlace, FoundCommit, found_commits

logger = logging.getLogger(__name__)

QUEUES_MAX: Final = 1_000
MESSAGES_MAX: Final = 10_000
_ID_LENGTH_MAX: Final = 64
_OPEN_MAX: Final = 10_000
_OPEN_BYTES_MAX: Final = 64 * 1024 * 1024
_KNOWN_MAX: Final = 10_000
_KNOWN_MESSAGES_MAX: Final = 1_000_000
_WINDOW_BYTES: Final = 16 * 1024 * 1024
_RETRY_MS: Final = 1_000
#: Commits (up to 4 MiB each) that wait until the first one after a start of the broker may be
#: decided.
_UNTIL_BEGUN_MAX: Final = 64

#: Group and commit id.
_Key: TypeAlias = tuple[str, str]


@dataclass(slots=True)
class _Commit:
    """A commit that is decided.

    CONTENT is None once its messages are appended: then END_OFFSET is the end of the log after them, REPLY the answer.
    """

    key: _Key
    number: int
    log_offset: int
    places: list[list[CopyPlace | None]]
    content: pb.AtomicCommitRequest | None
    end_offset: int = 0
    reply: pb.AtomicCommitReply = field(default_factory=pb.AtomicCommitReply)
    calls: list[Call] = field(default_factory=list)

    count: int = 0

    @property
    def size(self) -> int:
        return 0 if self.content is None else sum(len(run.records) for run in self.content.runs)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitParts:
    """What atomic commits need of the broker. TIMERS use the machine's time. UNIX_MS returns the time of messages."""

    store: MessageStore
    topics: Topics
    groups: Groups
    offsets: Offsets
    appends: Appender
    lease_guard: LeaseGuard
    check_not_popped: Callable[[str], None]
    timers: Timers
    unix_ms: Callable[[], int]


class AtomicCommits:
    """The atomic commits of PARTS' store. The event loop owns it."""

    def __init__(self, config: BrokerConfig, parts: CommitParts) -> None:
        self._config = config
        self._parts = parts
        self._store = parts.store
        self._topics = parts.topics
        self._offsets = parts.offsets
        #: Commits that are decided and not made; commits that are made and not done; both in order.
        self._decided: deque[_Commit] = deque()
        self._made: deque[_Commit] = deque()
        self._decided_bytes = 0
        self._known: dict[_Key, _Commit] = {}
        self._known_messages = 0
        self._has_started = False
        #: The number of the last record since the broker started.
        self._last = -1
        #: Records up to this number are on disk.
        self._safe_number = -1
        #: Whether consumerOffset.json records that all earlier commits are complete.
        self._has_begun = False
        self._until_begun: list[tuple[pb.AtomicCommitRequest, Call]] = []
        self._retry: Timer | None = None
        #: Set while the broker stops; new commits fail with it.
        self._refusal: errors.PocketMQError | None = None
        self._store.events.flushed.append(self._flushed)

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        method = unary(pb.AtomicCommitRequest, pb.AtomicCommitReply, self.commit)
        return service("pocketmq.v1.Broker", {"CommitAtomically": method})

    @property
    def open_count(self) -> int:
        """The number of commits that are decided and not done."""
        return len(self._made) + len(self._decided)

    def oldest_log_offset(self) -> int | None:
        """Return the log offset of the oldest record that is still needed; None: none is."""
        oldest = self._oldest()
        return None if oldest is None else oldest.log_offset

    def _oldest(self) -> _Commit | None:
        return next(chain(self._made, self._decided), None)

    def start(self) -> None:
        """Complete commits that were decided. Call this before the first call arrives."""
        low, high = self._store.queue_bounds(COMMIT_TOPIC, 0)
        saved = self._offsets.committed(COMMIT_TOPIC, COMMIT_OFFSETS_GROUP, 0)
        copied = self._offsets.committed(COMMIT_TOPIC, COMMIT_COPIES_GROUP, 0)
        self._has_begun = saved == high and copied is not None
        begin = high if saved is None else min(saved, high)
        copied = begin if copied is None else min(copied, begin)
        if low < high:
            self._find(low, copied, begin)
        if saved != high and (saved is not None or low < high):
            self._offsets.commit(COMMIT_TOPIC, COMMIT_OFFSETS_GROUP, 0, high)
            self._offsets.follow_log(self._store.max_log_offset)
        self._has_started = True
        if self._decided:
            # After a kill, these records may be in memory only.
            self._store.request_sync(
                self._store.max_log_offset, partial(self._synced, self._decided[-1])
            )
        self._advance()

    def _find(self, low: int, copied: int, begin: int) -> None:
        """Restore the records from number COPIED on. The file lacks the offsets of those from BEGIN on."""
        entries = self._store.queues.get(COMMIT_TOPIC, 0)
        assert entries is not None, "a queue with commit records exists"
        window = entries.first_from(max(0, self._store.max_log_offset - _WINDOW_BYTES))
        moved = 0
        for found in found_commits(self._store, max(low, min(window, copied))):
            number = found.record.number
            if number >= begin:
                self._move(found.record.content)
                moved += 1
            if number >= copied:
                self._take_in(found)
            elif found.is_whole:
                self._remember(self._commit_of(found))
        if moved or self._decided:
            logger.info("atomic commits found moved=%d open=%d", moved, len(self._decided))

    def _move(self, content: pb.AtomicCommitRequest) -> None:
        for one in content.offsets:
            if self._topics.has_queue(one.topic, one.queue):
                self._offsets.commit(one.topic, content.group, one.queue, one.end)

    def _take_in(self, found: FoundCommit) -> None:
        commit = self._commit_of(found)
        commit.content = found.record.content
        self._enter(commit)

    def _enter(self, commit: _Commit) -> None:
        self._decided.append(commit)
        self._decided_bytes += commit.size
        self._remember(commit)

    def _commit_of(self, found: FoundCommit) -> _Commit:
        record = found.record
        key = record.content.group, record.content.commit_id
        commit = _Commit(key, record.number, record.log_offset, found.places, None)
        commit.count = sum(map(len, found.places))
        commit.reply = self._reply(commit, 0)
        return commit

    def close(self) -> None:
        """Complete decided commits if the store can; the next start completes the others."""
        if self._retry is not None:
            self._parts.timers.cancel(self._retry)
        is_needed = self.open_count > 0 or self._offsets.is_ahead_of_log
        if not is_needed or self._store.health.failure is not None:
            return
        try:
            self._store.flush()
            if self._decided:
                self._synced(self._decided[-1], None)
                self._store.flush()
        except errors.StoreError as error:
            logger.error(
                "atomic commits not completed, the next start completes them reason=%s",
                error.message,
            )
        self._flushed(self._store.flushed_offset)

    def refuse(self, error: errors.PocketMQError) -> None:
        """Refuse new commits with ERROR from now on; commits that were decided are still answered."""
        self._refusal = error

    def commit(self, request: pb.AtomicCommitRequest, call: Call) -> Later:
        """Execute a commit, or answer one that was executed; the answer is sent when its messages can be read."""
        known = self._known.get((request.group, request.commit_id))
        if known is not None:
            self._answer_again(known, call)
        elif self._refusal is not None:
            raise self._refusal
        elif self._has_begun:
            self._decide(request, call)
        else:
            _check_fields(request)
            if len(self._until_begun) == _UNTIL_BEGUN_MAX:
                raise errors.Overloaded(
                    f"{_UNTIL_BEGUN_MAX} atomic commits wait for the first one since the start: try again later",
                    field="runs",
                    limit=_UNTIL_BEGUN_MAX,
                )
            self._until_begun.append((request, call))
            if len(self._until_begun) == 1:
                self._begin()
        return LATER

    def _answer_again(self, commit: _Commit, call: Call) -> None:
        if commit.content is None:
            again = pb.AtomicCommitReply()
            again.CopyFrom(commit.reply)
            again.repeated = True
            self._answer(commit, [call], again)
        else:
            commit.calls.append(call)

    def _begin(self) -> None:
        """Let consumerOffset.json record that all earlier commits are complete; then execute the waiting requests."""
        _, high = self._store.queue_bounds(COMMIT_TOPIC, 0)
        self._offsets.commit(COMMIT_TOPIC, COMMIT_OFFSETS_GROUP, 0, high)
        self._advance()
        self._offsets.when_saved(self._begun)

    def _begun(self, error: errors.PocketMQError | None) -> None:
        asked, self._until_begun = self._until_begun, []
        self._has_begun = error is None
        for request, call in asked:
            if error is not None:
                call.fail(error)
                continue
            try:
                self.commit(request, call)
            except errors.PocketMQError as refused:
                call.fail(refused)

    def _decide(self, request: pb.AtomicCommitRequest, call: Call) -> None:
        """Append the record of REQUEST, and move the group's offsets."""
        self._store.health.check_writable()
        _check_fields(request)
        self._check_room(request)
        content = pb.AtomicCommitRequest(commit_id=request.commit_id, group=request.group)
        for run in request.runs:
            admitted = self._admitted(run)
            content.runs.add(
                topic=run.topic,
                queue=run.queue,
                records=bytes(admitted.records),
                sizes=admitted.columns.sizes.tolist(),
            )
        self._check_offsets(request)
        for one in request.offsets:
            content.offsets.add(topic=one.topic, queue=one.queue, begin=one.begin, end=one.end)
        record = encode_commit(content, self._last, self._parts.unix_ms(), self._store.host)
        for run in request.runs:
            self._topics.for_writing(
                run.topic, run.queue
            )  # Only now: a valid batch may create the topic.
        self._topics.for_group(COMMIT_TOPIC, 1)
        self._parts.groups.ensure(request.group)
        appended = self._parts.appends.append_one(Run.of(COMMIT_TOPIC, 0, [record]))
        # It is decided: from here on nothing may fail.
        number = self._last = appended.first_queue_offset
        for one in request.offsets:
            self._offsets.commit(one.topic, request.group, one.queue, one.end)
        self._offsets.commit(COMMIT_TOPIC, COMMIT_OFFSETS_GROUP, 0, number + 1)
        self._offsets.follow_log(appended.end_offset)
        places: list[list[CopyPlace | None]] = [[None] * len(run.sizes) for run in content.runs]
        commit = _Commit(
            (request.group, request.commit_id),
            number,
            int(appended.log_offsets[0]),
            places,
            content,
            calls=[call],
            count=sum(map(len, places)),
        )
        self._enter(commit)
        self._store.request_sync(appended.end_offset, partial(self._synced, commit))

    def _admitted(self, run: pb.AtomicRun) -> Run:
        """Return RUN as a batch that may be stored, validated like a send."""
        self._topics.check_sendable(run.topic)
        admitted = validate(run.records, run.sizes, run.topic, run.queue)
        check_body_sizes(admitted.run, self._store.config.message_size_max_bytes)
        topic = self._topics.find(run.topic)
        if topic is not None and self._config.topic_message_type_check:
            check_type(admitted, topic.attributes.get(TYPE_ATTRIBUTE, ""))
        if not admitted.plain:
            raise errors.InvalidArgument(
                f"a message for {run.topic!r} is delayed or part of another transaction: an atomic commit takes only"
                " messages that are delivered at once",
                field="runs",
                value=run.topic,
            )
        check_ids(admitted.run)
        return admitted.run

    def _check_offsets(self, request: pb.AtomicCommitRequest) -> None:
        """Raise the error of invalid offsets in REQUEST, or of a caller that does not own the queues."""
        group = request.group
        self._parts.check_not_popped(group)
        for one in request.offsets:
            self._topics.for_reading(one.topic, one.queue)
            _, high = self._store.queue_bounds(one.topic, one.queue)
            if not 0 <= one.end <= high or one.end == one.begin:
                raise errors.InvalidArgument(
                    f"offset {one.end} of {one.topic}/{one.queue} cannot be committed from {one.begin} on: it must"
                    f" differ, and be between 0 and {high}",
                    field="end",
                    limit=high,
                    value=one.end,
                )
        held = (
            pb.GroupOffset(topic=one.topic, queue=one.queue, lease=one.lease)
            for one in request.offsets
        )
        self._parts.lease_guard.check_commit(group, held)
        for one in request.offsets:
            committed = self._offsets.committed(one.topic, group, one.queue)
            stands_at = -1 if committed is None else committed
            if stands_at != one.begin:
                raise errors.OffsetMoved(
                    f"group {group!r} is at {stands_at} in queue {one.queue} of {one.topic!r}, but the read began at"
                    f" {one.begin}: another consumer has committed. Drop the results and read again from there",
                    group=group,
                    topic=one.topic,
                    queue=one.queue,
                    committed=stands_at,
                    begin=one.begin,
                )

    def _check_room(self, request: pb.AtomicCommitRequest) -> None:
        more = sum(len(run.records) for run in request.runs)
        there = self._decided_bytes
        if len(self._decided) >= _OPEN_MAX or (there and there + more > _OPEN_BYTES_MAX):
            raise errors.Overloaded(
                f"{len(self._decided)} atomic commits with {there} bytes are open, the limits are {_OPEN_MAX} and"
                f" {_OPEN_BYTES_MAX}: try again later",
                field="runs",
                limit=_OPEN_BYTES_MAX,
                value=there + more,
            )

    def _remember(self, commit: _Commit) -> None:
        self._known[commit.key] = commit
        self._known_messages += commit.count
        while len(self._known) > _KNOWN_MAX or self._known_messages > _KNOWN_MESSAGES_MAX:
            oldest = next(iter(self._known.values()))
            if oldest.content is not None:
                break  # The others are open and have other limits.
            self._forget(oldest)

    def _forget(self, commit: _Commit) -> None:
        if self._known.pop(commit.key, None) is not None:
            self._known_messages -= commit.count

    def _synced(self, commit: _Commit, error: errors.StoreError | None) -> None:
        """Append the messages of commits up to COMMIT: its record is on disk, unless there is an ERROR."""
        if error is None:
            self._safe_number = max(self._safe_number, commit.number)
            self._make()
            return
        # It is unknown whether it is decided. The store accepts nothing any more; the next start
        # decides.
        self._forget(commit)
        calls, commit.calls = commit.calls, []
        for call in calls:
            call.fail(error)

    def _make(self) -> None:
        """Append the messages of commits whose record is on disk, in order."""
        while self._decided and self._decided[0].number <= self._safe_number:
            commit = self._decided[0]
            assert commit.content is not None, "its messages are not appended yet"
            try:
                stored_ms = self._append(commit, commit.content)
            except errors.PocketMQError as error:
                logger.error(
                    "messages of an atomic commit not appended, will be retried group=%s id=%s reason=%s",
                    *commit.key,
                    error.message,
                )
                self._try_again()
                break
            self._decided.popleft()
            self._decided_bytes -= commit.size
            commit.reply = self._reply(commit, stored_ms)
            commit.content, commit.places = None, []
            self._made.append(commit)
            calls, commit.calls = commit.calls, []
            self._answer(commit, calls, commit.reply)
        self._flushed(self._store.flushed_offset)

    def _answer(self, commit: _Commit, calls: list[Call], reply: pb.AtomicCommitReply) -> None:
        """Answer CALLS with REPLY once the messages of COMMIT can be read."""

        def confirmed(error: errors.PocketMQError | None) -> None:
            for call in calls:
                if error is None:
                    call.reply(reply)
                else:
                    call.fail(error)

        self._parts.appends.when_confirmed(commit.end_offset, confirmed)

    def _append(self, commit: _Commit, content: pb.AtomicCommitRequest) -> int:
        """Append the missing messages of COMMIT, all or nothing; return their store time, 0 if none is missing."""
        rows: list[list[int]] = []
        runs: list[Run] = []
        for run, places in zip(content.runs, commit.places, strict=True):
            missing = [row for row, place in enumerate(places) if place is None]
            if missing and not self._is_there(run.topic, run.queue):
                logger.warning(
                    "messages of an atomic commit dropped, their topic was deleted group=%s id=%s topic=%s",
                    *commit.key,
                    run.topic,
                )
                missing = []
            rows.append(missing)
            if missing:
                runs.append(copies_of(run, commit.log_offset, set(missing)))
        results = self._parts.appends.put(runs, together=True) if runs else []
        for result in results:
            if isinstance(result, errors.PocketMQError):
                raise result
        appended = (result for result in results if isinstance(result, Appended))
        commit.end_offset = self._store.max_log_offset
        stored_ms = 0
        for places, missing in zip(commit.places, rows, strict=True):
            if not missing:
                continue
            one = next(appended)
            stored_ms = one.store_timestamp_ms
            for number, row in enumerate(missing):
                places[row] = CopyPlace(
                    one.first_queue_offset + number, int(one.log_offsets[number])
                )
        self._parts.appends.notify((run.topic, run.queue) for run in runs)
        return stored_ms

    def _is_there(self, topic: str, queue: int) -> bool:
        found = self._topics.find(topic)
        return found is not None and queue < max(found.read_queues, found.write_queues)

    def _reply(self, commit: _Commit, stored_ms: int) -> pb.AtomicCommitReply:
        host = str(self._store.host)
        reply = pb.AtomicCommitReply(store_timestamp_ms=stored_ms, store_host=host)
        for places in commit.places:
            reply.places.add(
                queue_offsets=[-1 if place is None else place.queue_offset for place in places],
                log_offsets=[-1 if place is None else place.log_offset for place in places],
            )
        return reply

    def _try_again(self) -> None:
        if self._retry is None or not self._retry.active:
            self._retry = self._parts.timers.after(_RETRY_MS, self._make)

    def _flushed(self, offset: int) -> None:
        offset = min(offset, self._parts.appends.flushed_offset)
        while self._made and self._made[0].end_offset <= offset:
            self._made.popleft()
        if self._has_started:
            self._advance()

    def _advance(self) -> None:
        """Record up to which number all commits are done."""
        oldest = self._oldest()
        done = self._store.queue_bounds(COMMIT_TOPIC, 0)[1] if oldest is None else oldest.number
        noted = self._offsets.committed(COMMIT_TOPIC, COMMIT_COPIES_GROUP, 0)
        if done != noted and (noted is not None or done or self._until_begun):
            self._offsets.commit(COMMIT_TOPIC, COMMIT_COPIES_GROUP, 0, done)


def _check_fields(request: pb.AtomicCommitRequest) -> None:
    check_own_choice(request.group)
    if not 1 <= len(request.commit_id) <= _ID_LENGTH_MAX:
        raise errors.InvalidArgument(
            f"commit_id has {len(request.commit_id)} characters, must be 1 to {_ID_LENGTH_MAX}",
            field="commit_id",
            limit=_ID_LENGTH_MAX,
            value=len(request.commit_id),
        )
    _check_count("offsets", len(request.offsets), 1, QUEUES_MAX)
    _check_count("runs", len(request.runs), 0, QUEUES_MAX)
    _check_count("messages", sum(len(run.sizes) for run in request.runs), 0, MESSAGES_MAX)
    _check_once("offsets", ((one.topic, one.queue) for one in request.offsets))
    _check_once("runs", ((run.topic, run.queue) for run in request.runs))


def _check_count(field: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        raise errors.InvalidArgument(
            f"{field}: {count} in one atomic commit, must be {least} to {most}",
            field=field,
            limit=most,
            value=count,
        )


def _check_once(field: str, queues: Iterable[tuple[str, int]]) -> None:
    seen: set[tuple[str, int]] = set()
    for topic, queue in queues:
        if (topic, queue) in seen:
            raise errors.InvalidArgument(
                f"{field}: queue {queue} of {topic[:64]!r} is listed twice: list it once",
                field=field,
                value=queue,
            )
        seen.add((topic, queue))
