"""Replicated tables of the master: what its followers have, what they lack, and when all have a change.

    file                    content                                           sent
    topics.json             each topic; so do groups                          in the turn of the change
    subscriptionGroup.json
    consumerOffset.json     each group's offsets of each topic                every COALESCED_MS, if it changed
    delayOffset.json        each delay level
    tables/NAME             each entry of a table of the broker's journal (table_stream.py)

A frame is JSON: {"map of the file": {"name": entry, …}, …}. A full frame has every entry. A diff of base b and version
v has the entries that changed after b, null for deleted ones. Versions belong to one master: epoch << 32, plus a
count. A follower of another epoch, or one that has restarted, gets a full frame.

A frame is applied once the log is confirmed up to its `log_offset`, so no offset points beyond the log. Topics and
groups do not wait: they are sent before later bytes of the log and flushed first, so a replica that acknowledged a
message has its topic. Limits: FRAMES_MAX and STATE_SIZE_MAX unacknowledged per link, RECENT_MAX changes
per table (table_part.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from ...proto.errors import PocketMQError
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...store.flush import notify
from .frames import STATE_SIZE_MAX, VERSION_BITS

logger = logging.getLogger(__name__)

#: A little less than a tick, so that each tick counts.
COALESCED_MS: Final = 90
FRAMES_MAX: Final = 64

#: Called once: with None, or with the reason why the result is unknown.
Replicated: TypeAlias = Callable[[PocketMQError | None], None]


class StatePart(Protocol):
    """The replicated content of one file. COUNT grows with each change; 0: no content."""

    @property
    def file(self) -> str:
        """Its name in frames."""
        ...

    @property
    def is_kept(self) -> bool:
        """Whether each change is answered only when all replicas in sync have it."""
        ...

    @property
    def count(self) -> int:
        """The number of changes that `look` has seen."""
        ...

    @property
    def on_change(self) -> list[Callable[[], None]]:
        """Called in the turn of each change, if the part is kept."""
        ...

    def look(self) -> None:
        """Record what has changed."""
        ...

    def behind(self, base: int) -> bytes | None:
        """Return the changes after count BASE; None: they are not known any more."""
        ...

    def whole(self) -> bytes:
        """Return the complete content."""
        ...


@dataclass(slots=True)
class _Link:
    """The counts that were sent over a link, by file. NEEDED: the counts that it lacked at its hello."""

    replica: int
    sent: dict[str, int]
    acked: dict[str, int]
    needed: dict[str, int] = field(default_factory=dict)
    #: Sent and unacknowledged frames: file, count, bytes.
    under_way: list[tuple[str, int, int]] = field(default_factory=list)

    def has_room(self, size: int) -> bool:
        if not self.under_way:
            return True
        held = sum(size for _, _, size in self.under_way)
        return len(self.under_way) < FRAMES_MAX and held + size <= STATE_SIZE_MAX


class StateSource:
    """Sends PARTS, the tables of the master of EPOCH, to followers.

    OTHERS returns the other replicas of the maximal set. LOG_END returns the end of the log.
    """

    def __init__(
        self,
        epoch: int,
        parts: Iterable[StatePart],
        log_end: Callable[[], int],
        others: Callable[[], Iterable[int]],
    ) -> None:
        self._epoch = epoch
        self._parts = {part.file: part for part in parts}
        self._log_end = log_end
        self._others = others
        self._links: dict[int, _Link] = {}
        #: The counts that each replica has ever acknowledged in this epoch.
        self._has: dict[int, dict[str, int]] = {}
        #: Versions by file that all others must have before the callback is called.
        self._waiting: list[tuple[dict[str, int], Replicated]] = []
        self._coalesced_ms: int | None = None
        self._error: PocketMQError | None = None
        #: By file: the count of a frame that was too large to send, and its base.
        self._too_large: dict[str, tuple[int, int]] = {}
        for part in self._parts.values():
            part.look()

    def hello(
        self, link: int, replica: int, versions: Mapping[str, int]
    ) -> list[tuple[int, pb.FollowState]]:
        """Return the frames for REPLICA, which follows over LINK and has VERSIONS, by file.

        They must be sent before any byte of the log.
        """
        self._look(kept_only=False)
        known = {name: self._count_of(versions[name]) for name in versions if name in self._parts}
        for name, count in known.items():
            if count > self._parts[name].count:
                known[name] = 0  # It has another master's: the follower gets everything.
        found = _Link(replica, known, dict(known))
        found.needed = {name: self._parts[name].count for name in known}
        self._links[link] = found
        has = self._has.setdefault(replica, {})
        for name, count in known.items():
            has[name] = max(has.get(name, 0), count)
        self._settle()
        return self._frames([link], self._parts)

    def lost(self, link: int) -> None:
        """LINK was closed."""
        self._links.pop(link, None)

    def acked(self, link: int, ack: pb.FollowStateAck) -> list[tuple[int, pb.FollowState]]:
        """Record ACK of the follower on LINK; return the frames that may be sent now."""
        found = self._links.get(link)
        if found is None or ack.file not in found.acked:
            return []
        count = min(self._count_of(ack.version), found.sent[ack.file])
        found.acked[ack.file] = max(found.acked[ack.file], count)
        has = self._has[found.replica]
        has[ack.file] = max(has.get(ack.file, 0), count)
        found.under_way = [one for one in found.under_way if one[0] != ack.file or one[1] > count]
        self._settle()
        return self._frames([link], [name for name in self._parts if self._is_kept(name)])

    def has_all(self, replica: int) -> bool:
        """Return whether REPLICA has all present topics and groups, and of the other tables what there was at its
        hello.

        Only then may it be in sync, and so be elected.
        """
        return any(
            all(
                found.acked[name] >= (self._parts[name].count if self._is_kept(name) else needed)
                for name, needed in found.needed.items()
            )
            for found in self._links.values()
            if found.replica == replica
        )

    def has_everything(self, replica: int) -> bool:
        """Return whether REPLICA has the present state of all tables on its disk."""
        self._look(kept_only=False)
        return any(
            all(found.acked[name] >= self._parts[name].count for name in found.acked)
            for found in self._links.values()
            if found.replica == replica
        )

    def on_kept_change(self, callback: Callable[[], None]) -> None:
        """Call CALLBACK in the turn of each change of a kept part.

        It must send what `changed` returns before a later byte of the log.
        """
        for part in self._parts.values():
            part.on_change.append(callback)

    def changed(self, now_ms: int, *, all_now: bool = False) -> list[tuple[int, pb.FollowState]]:
        """Return the frames to send now, with their links. Call this when a kept part changes, and every 100 ms.

        NOW_MS is of a clock that is not set back. ALL_NOW: no change waits to be sent together with later ones.
        """
        last_ms = self._coalesced_ms
        is_early = last_ms is not None and now_ms - last_ms < COALESCED_MS
        kept_only = is_early and not all_now
        if not kept_only:
            self._coalesced_ms = now_ms
        self._look(kept_only=kept_only)
        self._settle()
        names = [name for name in self._parts if not kept_only or self._is_kept(name)]
        return self._frames(list(self._links), names)

    def when_replicated(self, tell: Replicated, *files: str) -> None:
        """Call TELL once every other replica of the maximal set has the present FILES on its disk."""
        if self._error is not None:
            tell(self._error)
            return
        parts = [self._parts[file] for file in files]
        for part in parts:
            part.look()
        self._waiting.append(({part.file: part.count for part in parts}, tell))
        self._settle()

    def close(self, error: PocketMQError) -> None:
        """End the epoch: fail all current and later waiters with ERROR."""
        self._error = error
        self._links.clear()
        waiting, self._waiting = self._waiting, []
        for _, one in waiting:
            notify(one, error)

    def _is_kept(self, name: str) -> bool:
        return self._parts[name].is_kept

    def _count_of(self, version: int) -> int:
        return version & (1 << VERSION_BITS) - 1 if epoch_of(version) == self._epoch else 0

    def _look(self, *, kept_only: bool) -> None:
        for part in self._parts.values():
            if part.is_kept or not kept_only:
                part.look()

    def _settle(self) -> None:
        """Call the waiters whose changes all others have by now."""
        if not self._waiting:
            return
        others = [self._has.get(replica, {}) for replica in self._others()]
        done: list[Replicated] = []
        waiting: list[tuple[dict[str, int], Replicated]] = []
        for needed, told in self._waiting:
            if all(has.get(file, 0) >= needed[file] for has in others for file in needed):
                done.append(told)
            else:
                waiting.append((needed, told))
        self._waiting = waiting
        for told in done:
            notify(told, None)

    def _frames(self, links: list[int], names: Iterable[str]) -> list[tuple[int, pb.FollowState]]:
        """Return a frame for each of LINKS and each part of NAMES that it lacks, within the limits of links."""
        frames: list[tuple[int, pb.FollowState]] = []
        for name in names:
            part = self._parts[name]
            made: dict[int, pb.FollowState | None] = {}
            for link in links:
                found = self._links[link]
                sent = found.sent.get(name)
                if sent is None or sent >= part.count:
                    continue
                if sent not in made:
                    made[sent] = self._frame(part, sent)
                frame = made[sent]
                if frame is None or not found.has_room(size := frame.ByteSize()):
                    continue
                found.sent[name] = part.count
                found.under_way.append((name, part.count, size))
                frames.append((link, frame))
        return frames

    def _frame(self, part: StatePart, base: int) -> pb.FollowState | None:
        if self._too_large.get(part.file) == (part.count, base):
            return None
        frame = pb.FollowState(
            epoch=self._epoch,
            log_offset=self._log_end(),
            file=part.file,
            version=self._epoch << VERSION_BITS | part.count,
        )
        diff = part.behind(base) if base else None
        content = part.whole() if diff is None else diff
        if len(content) > STATE_SIZE_MAX:
            if part.file not in self._too_large:
                logger.error(
                    "state too large for followers, which stay out of the in-sync set: delete what is not needed"
                    " file=%s bytes=%d limit=%d",
                    part.file,
                    len(content),
                    STATE_SIZE_MAX,
                )
            self._too_large[part.file] = part.count, base
            return None
        if diff is None:
            frame.whole = content
        else:
            frame.diff = content
            frame.base = self._epoch << VERSION_BITS | base
        return frame


def epoch_of(version: int) -> int:
    """Return the epoch of the master that sent VERSION of a file; 0: none did."""
    return version >> VERSION_BITS
