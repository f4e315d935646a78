"""Administration of groups: create, describe, reset offsets, delete."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...proto import errors
from ...proto.clock import Clock
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.time_text import check_unix_ms
from ...proto.topics import check_group, check_topic
from ..config import ReadFrom, reads_any
from ..queue import Queue, in_parts
from . import descriptions
from .brokers import Brokers, Earlier, request_of
from .dead_letters import DeadLetterAdmin


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetTarget:
    """The target of an offset reset: exactly one of the four fields."""

    time_ms: int | None = None
    """The first message stored at or after this time, in Unix milliseconds."""
    offset: int | None = None
    """This offset."""
    first: bool = False
    """The oldest message."""
    last: bool = False
    """After the newest message: messages that exist now are skipped."""

    def __post_init__(self) -> None:
        given = (self.time_ms is not None) + (self.offset is not None) + self.first + self.last
        if given != 1:
            raise errors.InvalidArgument(
                f"{given} targets: pass one of time_ms=…, offset=…, first=True and last=True",
                field="target",
                value=given,
            )
        for field, value in (("time_ms", self.time_ms), ("offset", self.offset)):
            if value is not None and value < 0:
                raise errors.InvalidArgument(
                    f"{field} is {value}: it must be at least 0", field=field, limit=0, value=value
                )
        if self.time_ms is not None:
            check_unix_ms(self.time_ms, "time_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChange:
    """The change of a group's offset in one queue."""

    queue: Queue
    """The queue."""
    from_offset: int
    """Offset before; −1: never committed."""
    to_offset: int
    """Offset after."""
    min_offset: int
    """Offset of the oldest message of the queue."""
    max_offset: int
    """Offset after the newest message of the queue."""

    @property
    def skipped(self) -> int:
        """Number of messages that the group skips."""
        return max(0, self.to_offset - max(self.from_offset, self.min_offset))

    @property
    def repeated(self) -> int:
        """Number of messages that the group gets again."""
        return max(0, min(self.from_offset, self.max_offset) - self.to_offset)


def move(
    position: descriptions.GroupPosition, target: OffsetTarget, offset_at_time: int
) -> OffsetChange:
    """Return the change from POSITION to TARGET, within the offset range of the queue.

    OFFSET_AT_TIME: the offset for the time of TARGET.
    """
    low, high = position.min_offset, position.max_offset
    if target.offset is not None:
        wanted = target.offset
    elif target.time_ms is not None:
        wanted = offset_at_time
    else:
        wanted = low if target.first else high
    return OffsetChange(
        queue=position.queue,
        from_offset=position.offset,
        to_offset=min(max(wanted, low), high),
        min_offset=low,
        max_offset=high,
    )


def chosen(queues: Sequence[Queue], wanted: Collection[Queue | int]) -> list[Queue]:
    """Return those of QUEUES that are in WANTED. A number means this queue on every broker. Empty: all queues.

    Raises QueueNotFound.
    """
    if not wanted:
        return list(queues)
    for one in wanted:
        if not any(one in (queue, queue.number) for queue in queues):
            have = ", ".join(f"{queue.broker}:{queue.number}" for queue in queues[:32]) or "none"
            raise errors.QueueNotFound(f"there is no queue {one}: the queues are {have}", queue=one)
    return [queue for queue in queues if queue in wanted or queue.number in wanted]


#: Maximum number of members in an error message.
_NAMED_MAX: Final = 3


class GroupAdmin(DeadLetterAdmin):
    """The part of an admin for groups and their offsets."""

    def __init__(self, brokers: Brokers, clock: Clock) -> None:
        super().__init__(brokers)
        self._clock = clock

    async def _described(self, name: str) -> dict[str, pb.DescribeTopicReply]:
        return await self._brokers.ask_all(
            "DescribeTopic",
            pb.DescribeTopicRequest(topic=check_topic(name)),
            pb.DescribeTopicReply,
            passing=errors.TopicNotFound,
        )

    async def queue_offsets(
        self, topic: str, *, time_ms: int | None = None
    ) -> list[descriptions.QueueDescription]:
        """Return the offset range of each queue of TOPIC, and with TIME_MS the offset of this time."""
        if time_ms is not None:
            check_unix_ms(time_ms, "time_ms")
        found: list[descriptions.QueueDescription] = []
        for broker, described in (await self._described(topic)).items():
            queues = [pb.QueueId(topic=topic, queue=item.queue) for item in described.queues]
            request = pb.QueueOffsetsRequest(queues=queues, time_ms=time_ms)
            reply = await self._brokers.ask(broker, "QueueOffsets", request, pb.QueueOffsetsReply)
            found += [descriptions.queue_description(broker, offsets) for offsets in reply.offsets]
        return found

    async def create_group(  # noqa: PLR0913  (one for each setting)
        self,
        name: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        retry_intervals_ms: Sequence[int] = (),
        order: bool = False,
        consume_enable: bool = True,
        subscription_check: str = "grace",
        lite_topic: str = "",
        lite_exclusive: bool = False,
    ) -> descriptions.GroupDescription:
        """Create a group on every broker that does not have it.

        Args:
            name: Name of the group.
            retry_max_times: Retries before a message goes to the dead-letter queue.
            retry_queues: Queues of the retry topic.
            retry_intervals_ms: Delays before the first retry, the second, and so on; further retries use the last one.
                Up to 64 delays from 1 s to the broker's delay_max_ms (3 days). Empty: by delay level, 10 s to 2 h.
            order: Consume in order (FIFO).
            consume_enable: Consumers may read.
            subscription_check: What happens if members subscribe to different things. "grace": all are served for the
                broker's subscription_grace_ms, then only the newest subscription. "warn": all are served. "refuse":
                only the first subscription is served.
            lite_topic: The topic of type LITE whose lite topics the group consumes. Empty: an ordinary group.
            lite_exclusive: Each lite topic has one subscriber: a new one evicts the others.

        Raises:
            GroupExists: Every broker has the group, or one has it with other settings.
        """
        group = request_of(
            pb.GroupConfig,
            name=check_group(name),
            retry_max_times=retry_max_times,
            retry_queues=retry_queues,
            retry_intervals_ms=retry_intervals_ms,
            order=order,
            consume_enable=consume_enable,
            subscription_check=subscription_check,
            lite_topic=lite_topic,
            lite_exclusive=lite_exclusive,
        )
        before = await self._settings_of(name)
        made = descriptions.group_description(group)
        for broker, known in before.items():
            if descriptions.group_description(known) != made:
                raise errors.GroupExists(
                    f"group {name!r} exists on {broker} with other settings: update it, or use another name",
                    group=name,
                )
        replies = await self._brokers.change_all(
            "CreateGroup",
            pb.CreateGroupRequest(group=group),
            pb.GroupReply,
            errors.GroupExists,
            self._created_earlier(group, before),
        )
        return descriptions.group_description(next(iter(replies.values())).group)

    async def update_group(
        self,
        name: str,
        *,
        retry_max_times: int | None = None,
        retry_queues: int | None = None,
        retry_intervals_ms: Sequence[int] | None = None,
        order: bool | None = None,
        consume_enable: bool | None = None,
        subscription_check: str | None = None,
    ) -> descriptions.GroupDescription:
        """Change settings of a group. Raises GroupNotFound.

        The arguments are those of `create_group`; None: do not change this setting. Brokers that do not have the group
        get it with the settings of another broker.
        """
        values = {
            "retry_max_times": retry_max_times,
            "retry_queues": retry_queues,
            "retry_intervals_ms": retry_intervals_ms,
            "order": order,
            "consume_enable": consume_enable,
            "subscription_check": subscription_check,
        }
        changes = {field: value for field, value in values.items() if value is not None}
        if not changes:
            raise errors.InvalidArgument(
                f"group {name!r}: there is nothing to change. Pass one of {', '.join(values)}.",
                field="group",
            )
        group = request_of(pb.GroupConfig, name=check_group(name), **changes)
        change = pb.CreateGroupRequest(group=group, update=True, fields=list(changes))
        holders = await self._settings_of(name)
        if not holders:
            raise _not_found(name)
        ask = self._brokers.ask
        made = pb.GroupConfig()
        for broker in holders:
            made = (await ask(broker, "CreateGroup", change, pb.GroupReply)).group
        for broker in await self._brokers.addresses():
            if broker not in holders:
                await self._brokers.change(
                    broker,
                    "CreateGroup",
                    pb.CreateGroupRequest(group=made),
                    pb.GroupReply,
                    errors.GroupExists,
                    self._created_earlier(made, holders),
                )
        return descriptions.group_description(made)

    def _created_earlier(
        self, group: pb.GroupConfig, before: Container[str]
    ) -> Earlier[pb.GroupReply]:
        """Return a function that checks whether an earlier try has created GROUP. Brokers in BEFORE had it before."""

        async def earlier(broker: str) -> pb.GroupReply | None:
            if broker in before:
                return None
            found = (await self._settings_of(group.name)).get(broker)
            if found is None:
                return None
            is_same = descriptions.group_description(found) == descriptions.group_description(group)
            return pb.GroupReply(group=found) if is_same else None

        return earlier

    async def _settings_of(self, name: str) -> dict[str, pb.GroupConfig]:
        """Return the settings of group NAME on each broker that has it."""
        replies = await self._brokers.ask_all(
            "ListGroups", pb.GroupListRequest(), pb.GroupListReply
        )
        return {
            broker: group
            for broker, reply in replies.items()
            for group in reply.groups
            if group.name == name
        }

    async def delete_group(self, name: str) -> None:
        """Delete a group and its offsets on every broker."""
        request = pb.DeleteGroupRequest(group=check_group(name))
        before = await self._settings_of(name)

        async def earlier(broker: str) -> pb.DeleteGroupReply | None:
            return pb.DeleteGroupReply() if broker in before else None

        await self._brokers.change_all(
            "DeleteGroup", request, pb.DeleteGroupReply, errors.GroupNotFound, earlier
        )

    async def groups(self) -> list[descriptions.GroupDescription]:
        """Return all groups, sorted by name."""
        replies = await self._brokers.ask_all(
            "ListGroups", pb.GroupListRequest(), pb.GroupListReply
        )
        found = {group.name: group for reply in replies.values() for group in reply.groups}
        return [descriptions.group_description(found[name]) for name in sorted(found)]

    async def group_offsets(
        self, group: str, topic: str | None = None
    ) -> list[descriptions.GroupPosition]:
        """Return the committed offsets of a group: in all queues of TOPIC, or in all queues that it has committed."""
        found: list[descriptions.GroupPosition] = []
        for broker in await self._brokers.addresses():
            queues = [] if topic is None else await self._queue_ids(broker, topic)
            if topic is not None and not queues:
                continue
            request = pb.GroupOffsetsRequest(group=check_group(group), queues=queues)
            reply = await self._brokers.ask(broker, "GroupOffsets", request, pb.GroupOffsetsReply)
            found += await self._with_bounds(broker, reply.offsets)
        return found

    async def set_group_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Set committed offsets of a group. Raises LeaseLost if a member holds one of the queues.

        A consumer with assigned queues (`assign`) does not notice the change, and may overwrite it.
        """
        await self._commit(group, offsets, force=False)

    async def _commit(self, group: str, offsets: Mapping[Queue, int], *, force: bool) -> None:
        names = await self._brokers.addresses()
        for broker in sorted({queue.broker for queue in offsets}):
            if broker not in names:
                raise errors.RouteNotFound(
                    f"broker {broker!r} is not registered (known: {', '.join(names)})",
                    broker=broker,
                )
            own = [(queue, offset) for queue, offset in offsets.items() if queue.broker == broker]
            request = pb.CommitOffsetsRequest(
                group=check_group(group),
                offsets=[
                    pb.GroupOffset(topic=queue.topic, queue=queue.number, offset=offset)
                    for queue, offset in own
                ],
                force=force,
                moved_by=_who_asks(),
            )
            await self._brokers.ask(broker, "CommitOffsets", request, pb.CommitOffsetsReply)

    async def _queue_ids(self, broker: str, topic: str) -> list[pb.QueueId]:
        request = pb.DescribeTopicRequest(topic=check_topic(topic))
        try:
            reply = await self._brokers.ask(broker, "DescribeTopic", request, pb.DescribeTopicReply)
        except errors.TopicNotFound:
            return []
        return [pb.QueueId(topic=topic, queue=item.queue) for item in reply.queues]

    async def _with_bounds(
        self, broker: str, offsets: Iterable[pb.GroupOffset]
    ) -> list[descriptions.GroupPosition]:
        by_place = {(item.topic, item.queue): item.offset for item in offsets}
        if not by_place:
            return []
        queues = [pb.QueueId(topic=topic, queue=queue) for topic, queue in sorted(by_place)]
        described: list[descriptions.QueueDescription] = []
        for some in in_parts(queues):
            request = pb.QueueOffsetsRequest(queues=some)
            reply = await self._brokers.ask(broker, "QueueOffsets", request, pb.QueueOffsetsReply)
            described += [descriptions.queue_description(broker, item) for item in reply.offsets]
        return [
            descriptions.GroupPosition(
                queue=item.queue,
                offset=by_place[item.queue.topic, item.queue.number],
                min_offset=item.min_offset,
                max_offset=item.max_offset,
            )
            for item in described
        ]

    async def describe_group(
        self,
        group: str | descriptions.GroupDescription,
        *,
        topic: str | None = None,
        interval_ms: int = 0,
        read_from: ReadFrom = "master",
    ) -> descriptions.GroupStatus:
        """Return the members of a group, and its progress in each queue.

        Args:
            group: Name, or a description from `groups()`, which saves listing all groups again. The report of a group
                that was deleted since then is empty.
            topic: Only the queues of this topic; None: all that the group reads and that you are allowed to see.
            interval_ms: Time between two looks, for the rates; 0: one look. Consumers commit every few seconds, so a
                short interval is not exact.
            read_from: "any": followers read the queues. Their values may be slightly older.

        Raises:
            GroupNotFound: There is no such group.
        """
        if interval_ms < 0:
            raise errors.InvalidArgument(
                f"interval_ms is {interval_ms}: it must be at least 0", field="interval_ms", limit=0
            )
        from_any = reads_any(read_from)
        if isinstance(group, str):
            name, described = group, await self._find_group(group)
        else:
            name, described = group.name, group
        states = await self._states(name)
        if described is None and not descriptions.coordinating(states):
            raise _not_found(name)
        queues, hidden = await self._queues_of(name, states, topic)
        looks = [await self._look(name, queues, from_any=from_any, with_times=True)]
        if interval_ms:
            await self._clock.sleep_until(self._clock.now_ms() + interval_ms)
            looks.append(await self._look(name, queues, from_any=from_any, with_times=False))
        coordinator = descriptions.coordinating(states)
        state = states.get(coordinator, pb.GroupStateReply())
        left = [one.grace_left_ms for one in states.values() if one.HasField("grace_left_ms")]
        return descriptions.GroupStatus(
            name=name,
            coordinator=coordinator,
            generation=state.generation,
            leader=state.leader,
            strategy=state.strategy,
            assigned_by_clients=state.each_for_itself,
            rebalance_count=state.rebalance_count,
            subscription_check="grace" if described is None else described.subscription_check,
            grace_left_ms=min(left, default=None),
            members=descriptions.members_of(state),
            queues=descriptions.queues_of(states, looks),
            clients=descriptions.clients_of(states),
            hidden_topics=hidden,
        )

    async def _find_group(self, name: str) -> descriptions.GroupDescription | None:
        return next((one for one in await self.groups() if one.name == name), None)

    async def _states(self, group: str) -> dict[str, pb.GroupStateReply]:
        request = pb.GroupStateRequest(group=check_group(group))
        return await self._brokers.ask_all("GroupState", request, pb.GroupStateReply)

    async def _queues_of(
        self, group: str, states: Mapping[str, pb.GroupStateReply], topic: str | None
    ) -> tuple[dict[str, set[tuple[str, int]]], int]:
        """Return the queues of TOPIC, or of all topics that GROUP reads or has committed: (topic, number) by broker.

        The second value is the number of topics that the user is not allowed to see; 0 with TOPIC.
        """
        request = pb.GroupOffsetsRequest(group=group)
        committed = await self._brokers.ask_all("GroupOffsets", request, pb.GroupOffsetsReply)
        topics = (
            {topic}
            if topic is not None
            else {
                subscription.topic
                for state in states.values()
                for member in (*state.members, *state.official)
                for subscription in member.subscriptions
            }
            | {one.topic for reply in committed.values() for one in reply.offsets}
        )
        found: dict[str, set[tuple[str, int]]] = {}
        hidden = 0
        if topic is None:
            counts = [one.hidden_topics for one in states.values()]
            counts += [one.hidden_topics for one in committed.values()]
            hidden = max(counts, default=0)
        for name in sorted(topics):
            try:
                described = await self._described(name)
            except errors.NotAuthorized:
                if topic is not None:
                    raise
                hidden += 1  # The policies of the user have changed just now.
                continue
            except errors.TopicNotFound:
                if topic is not None:
                    raise
                continue  # It is a retry topic without messages.
            for broker, reply in described.items():
                found.setdefault(broker, set()).update((name, one.queue) for one in reply.queues)
        return found, hidden

    async def _look(
        self,
        group: str,
        queues: Mapping[str, Collection[tuple[str, int]]],
        *,
        from_any: bool,
        with_times: bool,
    ) -> descriptions.Look:
        committed: dict[Queue, int] = {}
        metadata: dict[Queue, str] = {}
        bounds: dict[Queue, tuple[int, int]] = {}
        unread_ms: dict[Queue, int] = {}
        unread_bytes: dict[Queue, int] = {}
        in_flight: dict[Queue, tuple[int, int]] = {}
        purged: dict[Queue, int] = {}
        at_ms: dict[str, int] = {}
        for broker, wanted in queues.items():
            ids = [pb.QueueId(topic=topic, queue=number) for topic, number in sorted(wanted)]
            for some in in_parts(ids):
                ask = self._brokers.ask
                looked = pb.GroupOffsetsRequest(
                    group=group,
                    queues=some,
                    with_times=with_times,
                    from_any=from_any,
                )
                offsets = await ask(broker, "GroupOffsets", looked, pb.GroupOffsetsReply)
                now = await ask(broker, "Now", pb.ClockRequest(), pb.ClockReply)
                if offsets.follows:
                    popped = await ask(
                        broker,
                        "GroupOffsets",
                        pb.GroupOffsetsRequest(group=group, queues=some, with_lent=True),
                        pb.GroupOffsetsReply,
                    )
                    ends: Iterable[pb.QueueOffsets] = offsets.bounds
                else:
                    popped = offsets
                    request = pb.QueueOffsetsRequest(queues=some)
                    ends = (
                        await ask(broker, "QueueOffsets", request, pb.QueueOffsetsReply)
                    ).offsets
                at_ms.setdefault(broker, self._clock.now_ms())
                for one in offsets.offsets:
                    queue = Queue(one.topic, broker, one.queue)
                    committed[queue] = one.offset
                    purged[queue] = one.purged_below
                    if one.metadata:
                        metadata[queue] = one.metadata
                    is_unread = with_times and one.unread_store_time_ms >= 0
                    age_ms = now.now_ms - one.unread_store_time_ms if is_unread else 0
                    unread_ms[queue] = max(0, age_ms)
                    if one.HasField("unread_bytes"):
                        unread_bytes[queue] = one.unread_bytes
                for one in popped.offsets:
                    in_flight[Queue(one.topic, broker, one.queue)] = (one.lent_count, one.read_to)
                for end in ends:
                    bounds[Queue(end.topic, broker, end.queue)] = (end.min_offset, end.max_offset)
        return descriptions.Look(
            at_ms=at_ms,
            committed=committed,
            metadata=metadata,
            bounds=bounds,
            oldest_unread_ms=unread_ms,
            unread_bytes=unread_bytes,
            in_flight=in_flight,
            purged=purged,
        )

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        target: OffsetTarget,
        *,
        queues: Collection[Queue | int] = (),
        force: bool = False,
        dry_run: bool = False,
        create: bool = False,
    ) -> list[OffsetChange]:
        """Reset the offsets of a group in a topic; return the changes.

        Args:
            group: The consumer group.
            topic: Topic whose offsets are reset.
            target: The new position.
            queues: Queues, or numbers of queues on every broker; empty: all.
            force: Reset even while consumers are connected. They lose their queues, and restart at the new offsets.
            dry_run: Only return the changes.
            create: Create the group if it does not exist.

        Raises:
            GroupNotFound: There is no such group, and `create` is False.
            GroupInUse: Consumers are connected, and `force` is False.
        """
        if not create and all(one.name != group for one in await self.groups()):
            states = await self._states(group)
            if not descriptions.coordinating(states):
                raise _not_found(group)
        if not force and not dry_run:
            await self._check_unused(group)
        positions = await self.group_offsets(group, topic)
        if not positions:
            await self._described(topic)  # Raises an error if the topic is the reason.
        times = {
            one.queue: one.offset_at_time
            for one in await self.queue_offsets(topic, time_ms=target.time_ms)
        }
        wanted = chosen([position.queue for position in positions], queues)
        moves = [
            move(position, target, times[position.queue])
            for position in positions
            if position.queue in wanted
        ]
        if not dry_run:
            await self._commit(group, {one.queue: one.to_offset for one in moves}, force=force)
        return moves

    async def _check_unused(self, group: str) -> None:
        states = await self._states(group)
        members = {member.member_id for state in states.values() for member in state.members}
        members |= {lease.member_id for state in states.values() for lease in state.leases}
        if members:
            named = ", ".join(sorted(members)[:_NAMED_MAX])
            more = "" if len(members) <= _NAMED_MAX else f" and {len(members) - _NAMED_MAX} more"
            raise errors.GroupInUse(
                f"group {group!r} has connected members: {named}{more}. Stop them, or use force: then they restart at"
                " the new offsets.",
                group=group,
                members=len(members),
            )


def _who_asks() -> str:
    """Return "user@host" of this process, which the broker stores with the change."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # The user of a container may have no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _not_found(group: str) -> errors.GroupNotFound:
    return errors.GroupNotFound(
        f"group {group!r} does not exist: create it, or check the name", group=group
    )
