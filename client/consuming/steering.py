"""What an application can say to a pull consumer: which topics or queues, where in them, and when not.

POSITION, in all calls, is the position behind what the application was handed. Not thread-safe: the consumer's event
loop owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime

from ...proto.commit_metadata import check_metadata
from ...proto.errors import InvalidArgument
from ...proto.topics import check_topic
from ..queue import Queue
from ..subscriptions import Subscriptions
from .offsets import OffsetAndMetadata, ReadPosition
from .queue_reader import start_ms
from .reading import Active, PullReading
from .sharing import Sharing
from .supply import broadcast_supply, chosen_supply, group_supply, with_retries
from .unshared_queues import AssignedQueues, committed_positions


class Steering:
    """Steers READING."""

    def __init__(self, reading: PullReading) -> None:
        self._reading = reading
        self._parts = reading.parts
        self._chosen: AssignedQueues | None = None

    # ------------------------------------------------------------ what is read

    def subscribe(self, subscriptions: Subscriptions, position: ReadPosition | None) -> None:
        """Read SUBSCRIPTIONS from now on, and nothing else."""
        reading = self._reading
        reading.check_open()
        if self._chosen is not None:
            raise InvalidArgument(
                "this consumer reads the queues that it was assigned: make another one to subscribe",
                field="subscribe",
            )
        before, reading.subscriptions = reading.subscriptions, subscriptions
        if reading.supply is None:
            if subscriptions:
                self._begin(subscriptions)
            return
        source = reading.supply.source
        if not isinstance(source, Sharing):
            raise InvalidArgument(
                "a consumer that broadcasts keeps its subscriptions: make another one",
                field="subscribe",
            )
        source.replace_subscriptions(with_retries(subscriptions, self._parts))
        for queue, active in list(reading.active.items()):
            if queue.topic in before and queue.topic not in subscriptions:
                reading.halt(active)  # It is about to go.
            elif before.get(queue.topic) != subscriptions.get(queue.topic):
                reading.go(active, self._offset(active, position))

    def _begin(self, subscriptions: Subscriptions) -> None:
        reading = self._reading
        if reading.config.broadcasting:
            folder = reading.config.offsets_folder
            reading.use(broadcast_supply(subscriptions, reading, self._parts, folder))
        else:
            reading.use(group_supply(subscriptions, reading, self._parts, "pull"))

    async def assign(self, queues: Collection[Queue], position: ReadPosition | None) -> None:
        """Read QUEUES from now on, and no others, whatever the group's members do; what is before POSITION is done."""
        reading = self._reading
        reading.check_open()
        reading.come_back(position)
        # Nothing comes or goes but by the application's own wish.
        reading.has_listener = False
        if self._chosen is None:
            if reading.supply is not None:
                raise InvalidArgument(
                    "this consumer subscribes to topics: make another one to assign queues",
                    field="assign",
                )
            supply, self._chosen = chosen_supply(reading, self._parts)
            reading.use(supply)
        await self._chosen.replace(queues)

    def assignment(self) -> list[Queue]:
        """Return the queues that are read."""
        self._reading.check_open()
        return sorted(self._reading.active)

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Return the queues of TOPIC that can be read, whoever reads them."""
        self._reading.check_open()
        return (await self._parts.session.routes.find(check_topic(topic))).readable

    # ------------------------------------------------------------ where

    def _offset(self, active: Active, position: ReadPosition | None) -> int | None:
        """Return the offset of the next message of ACTIVE for the application; None: not known yet."""
        if position is not None and position.stretch is active.stretch:
            return position.offset
        return active.offset

    async def position(self, queue: Queue, position: ReadPosition | None) -> int:
        """Return the offset of the next message of QUEUE."""
        active = self._reading.active_queue(queue)
        offset = self._offset(active, position)
        return await active.reader.first_offset() if offset is None else offset

    async def committed(self, queue: Queue) -> OffsetAndMetadata | None:
        """Return what the group has committed of QUEUE; None: nothing."""
        reading = self._reading
        reading.check_open()
        if reading.supply is not None and reading.config.broadcasting:
            kept = reading.supply.keeper.committed(queue)
            return None if kept is None else OffsetAndMetadata(kept)
        session = self._parts.session
        await session.routes.find(queue.topic)
        found = (await committed_positions(self._parts, [queue])).get(queue)
        return None if found is None or found.offset < 0 else found

    def seek(self, queue: Queue, offset: int) -> None:
        """Go to OFFSET of QUEUE; what was handed out of it counts no more."""
        if offset < 0:
            raise InvalidArgument(
                f"offset is {offset}, but must be at least 0", field="offset", limit=0, value=offset
            )
        reading = self._reading
        active = reading.active_queue(queue)
        active.stretch.annul()
        reading.go(active, offset)
        reading.positions.finish(ReadPosition(active.stretch, offset))

    async def seek_to(
        self, queues: Collection[Queue] | None, where: datetime | int | None, *, last: bool = False
    ) -> dict[Queue, int]:
        """Go to the first message stored at WHERE or later of QUEUES (None: all), or else to the first or LAST.

        Return the offsets.
        """
        chosen = self.assignment() if queues is None else list(queues)
        for queue in chosen:
            self._reading.active_queue(queue)
        time_ms = None if where is None else start_ms(where)
        bounds = await asyncio.gather(*(self._parts.bounds.of(queue, time_ms) for queue in chosen))
        offsets: dict[Queue, int] = {}
        for queue, one in zip(chosen, bounds, strict=True):
            edge = one.max_offset if last else one.min_offset
            offsets[queue] = edge if where is None else one.offset_at_time
            self.seek(queue, offsets[queue])
        return offsets

    # ------------------------------------------------------------ when not

    def pause(self, queues: Collection[Queue], position: ReadPosition | None) -> None:
        """Hand out nothing more of QUEUES until they are resumed."""
        reading = self._reading
        for active in [reading.active_queue(queue) for queue in queues]:
            reading.set_paused(active.held.queue, True)
            if not active.is_paused:
                active.is_paused = True
                reading.go(active, self._offset(active, position))

    def resume(self, queues: Collection[Queue]) -> None:
        """Go on with QUEUES; those that are not paused go on anyway."""
        reading = self._reading
        reading.check_open()
        for queue in queues:
            reading.set_paused(queue, False)
            active = reading.active.get(queue)
            if active is not None and active.is_paused:
                active.is_paused = False
                active.reader.start(active.offset)

    # ------------------------------------------------------------ commits of one's own

    async def commit_offsets(self, offsets: Mapping[Queue, int | tuple[int, str]]) -> None:
        """Commit OFFSETS, which are those of the next messages, perhaps with texts, and nothing else."""
        reading = self._reading
        reading.check_open()
        plain: dict[Queue, int] = {}
        metadata: dict[Queue, str] = {}
        for queue, one in offsets.items():
            reading.active_queue(queue)
            if isinstance(one, tuple):
                plain[queue], text = one
                metadata[queue] = check_metadata(text)
            else:
                plain[queue] = one
        if reading.supply is not None and not reading.supply.keeper.keeps_metadata:
            _check_none(metadata)
        for queue, offset in plain.items():
            reading.positions.finish(ReadPosition(reading.active[queue].stretch, offset))
        if reading.supply is not None:
            await reading.supply.keeper.commit(plain, metadata)


def _check_none(metadata: Mapping[Queue, str]) -> None:
    for queue, text in metadata.items():
        if text:
            raise InvalidArgument(
                f"offset of {queue} cannot have metadata: a consumer that broadcasts keeps its offsets in Apache's"
                " offsets.json, which has no room for it; commit the offset alone",
                field="metadata",
            )
