"""`pocketmq.v1.Broker`: each method calls the part of the broker that implements it. No decisions are made here."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from ..proto.access.listing import SeenNames, visible
from ..proto.access.policies import GET, of_all_messages, of_group, of_topic
from ..proto.commit_metadata import check_metadata
from ..proto.errors import InvalidArgument, PocketMQError, StoreError
from ..proto.errors_wire import without_topics
from ..proto.gen import pocketmq_v1_pb2 as pb
from ..proto.lite_topics import LITE
from ..proto.rpc import LATER, Call, Later, MethodTable, bidi, service, unary
from ..proto.topics import DEAD_LETTERS_GROUP, check_group, dead_letter_topic
from ..store.format.state_tables import GroupConfig, TopicConfig
from ..store.message_store import MessageStore
from ..store.offsets_file import OFFSETS_FILE
from .callbacks import Safe, ended, in_turn
from .config import BrokerConfig
from .consumer_groups import SUBSCRIPTION_CHECK, Groups, check_own_choice, subscription_check
from .groups.coordination import Coordination
from .groups.lag import IN_A_TURN, add_unread, check_count, check_natural, stored_ms
from .message_streams import FetchStream, ProduceStream
from .messages.fetch import Fetches
from .messages.lookup import Lookups, in_steps
from .messages.send import SendCounts, Sends, TopicSends
from .offset_updates import check_committable
from .offsets import Offsets
from .pop.lite_receives import BIND_TOPIC, EXCLUSIVE, MODEL
from .pop.service import PopService
from .replication.file_stream import GROUPS_FILE, TOPICS_FILE
from .replication.state_deliveries import DELIVERIES_FILE
from .replication.state_source import StateSource
from .replication.table_stream import STATISTICS_FILE
from .retry_policies import retry_intervals_of
from .topics import TYPE_ATTRIBUTE, Topics

#: What replicas need to know before a topic or a group counts as deleted, or an offset as reset.
_OF_GROUPS: Final = (OFFSETS_FILE, DELIVERIES_FILE, STATISTICS_FILE)
#: Maximum length of the name of the administrator who moves a group.
_WHO_MAX: Final = 200
#: Waits until the name servers know the present topics.
Announced = Callable[[], Awaitable[None]]


class BrokerService:
    """The methods of `pocketmq.v1.Broker`."""

    def __init__(  # noqa: PLR0913  (it connects these parts)
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        coordination: Coordination,
        pops: PopService,
        state: StateSource | None = None,
    ) -> None:
        """STATE knows which tables followers have; None: there are no followers."""
        self._pops = pops
        self._state = state
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._coordination = coordination

    def methods(
        self,
        sends: Sends,
        fetches: Fetches,
        lookups: Lookups,
        announced: Announced,
        status: Callable[[], pb.BrokerStatusReply],
    ) -> MethodTable:
        """Return the method table for a carrier."""
        changes = _Changes(
            self._store,
            self._topics,
            self._groups,
            self._offsets,
            announced,
            self._coordination,
            self._pops,
            self._state,
        )

        async def look_up(request: pb.LookupRequest, _: Call) -> pb.LookupReply:
            return await lookups.lookup(request)

        return service(
            "pocketmq.v1.Broker",
            {
                "Produce": bidi(
                    pb.ProduceRun,
                    pb.ProduceReply,
                    lambda stream: ProduceStream(
                        stream, sends, self._config.produce_batches_in_flight, str(self._store.host)
                    ),
                ),
                "Fetch": bidi(
                    pb.FetchRequest,
                    pb.FetchReply,
                    lambda stream: FetchStream(stream, fetches, self._config.fetches_in_flight),
                ),
                "CommitOffsets": unary(
                    pb.CommitOffsetsRequest, pb.CommitOffsetsReply, self.commit_offsets
                ),
                "GroupOffsets": unary(
                    pb.GroupOffsetsRequest, pb.GroupOffsetsReply, self.group_offsets
                ),
                "QueueOffsets": unary(
                    pb.QueueOffsetsRequest, pb.QueueOffsetsReply, self.queue_offsets
                ),
                "CreateTopic": unary(pb.CreateTopicRequest, pb.TopicReply, changes.create_topic),
                "DeleteTopic": unary(
                    pb.DeleteTopicRequest, pb.DeleteTopicReply, changes.delete_topic
                ),
                "DescribeTopic": unary(
                    pb.DescribeTopicRequest,
                    pb.DescribeTopicReply,
                    lambda request, call: self.describe_topic(request, sends.counts),
                ),
                "ListTopics": unary(pb.BrokerTopicsRequest, pb.BrokerTopicsReply, self.list_topics),
                "CreateGroup": unary(pb.CreateGroupRequest, pb.GroupReply, changes.create_group),
                "DeleteGroup": unary(
                    pb.DeleteGroupRequest, pb.DeleteGroupReply, changes.delete_group
                ),
                "ListGroups": unary(pb.GroupListRequest, pb.GroupListReply, self.list_groups),
                "Lookup": unary(pb.LookupRequest, pb.LookupReply, look_up),
                "Status": unary(
                    pb.BrokerStatusRequest,
                    pb.BrokerStatusReply,
                    lambda _, call: self._seen_status(call, status()),
                ),
            },
        )

    def _seen_status(self, call: Call, reply: pb.BrokerStatusReply) -> pb.BrokerStatusReply:
        """Return REPLY without what the user may not see: paths and reasons contain names of topics."""
        needs = of_all_messages(self._config.cluster, GET)
        if not all(call.user.may(call, need) for need in needs):
            recovery = json.loads(reply.recovery)
            for finding in recovery["findings"]:
                finding["path"] = finding["why"] = ""
            reply.recovery = json.dumps(recovery)
            reply.not_writable_because = without_topics(reply.not_writable_because)
        return reply

    def commit_offsets(
        self, request: pb.CommitOffsetsRequest, call: Call
    ) -> pb.CommitOffsetsReply | Later:
        """Commit offsets of a group: all of them, or none if one is invalid or another member owns its queue."""
        check_count("offsets", len(request.offsets))
        check_own_choice(request.group)
        for one in request.offsets:
            self._topics.for_reading(one.topic, one.queue)
            check_committable(self._store, one)
            if one.metadata:
                check_metadata(one.metadata)
        if request.force:
            self._pops.check_kept(request.group)
        else:
            self._pops.check_not_popped(request.group)
            self._coordination.lease_guard.check_commit(request.group, request.offsets)
        self._groups.ensure(request.group)
        is_move = request.force or bool(request.moved_by)
        if is_move:
            self._note_moves(request, call)
        for one in request.offsets:
            text = one.metadata if one.HasField("metadata") else None
            self._offsets.commit(one.topic, request.group, one.queue, one.offset, text)
        if request.force:
            # The owners of the queues must start at the new offsets: they have to acquire their
            # queues again.
            keys = [(one.topic, one.queue) for one in request.offsets]
            self._coordination.leases.end(request.group, keys)
            for one in request.offsets:
                self._pops.moved(request.group, one.topic, one.queue, one.offset)
        if is_move:
            self._reply_when_saved(call)
            return LATER
        return pb.CommitOffsetsReply()

    def _note_moves(self, request: pb.CommitOffsetsRequest, call: Call) -> None:
        """Record which administrator moved the group, and to which offsets."""
        who = (request.moved_by or "an administrator")[:_WHO_MAX]
        for one in request.offsets:
            before = self._offsets.committed(one.topic, request.group, one.queue)
            key = (request.group, one.topic, one.queue)
            self._coordination.consume_stats.move(key, f"{who} ({call.peer})", before, one.offset)

    def _reply_when_saved(self, call: Call) -> None:
        """Answer CALL once offsets are saved. A kill may lose progress, which is repeated, but never a move to an
        earlier offset.
        """

        def end(error: PocketMQError | None) -> None:
            if error is None:
                call.reply(pb.CommitOffsetsReply())
            else:
                call.fail(error)

        def count(done: Safe) -> None:
            # If the table cannot be written, the log reports it.
            self._coordination.consume_stats.when_durable(lambda error: done(None))

        def replicate(done: Safe) -> None:
            when_replicated(self._state, done, GROUPS_FILE, *_OF_GROUPS)

        # The group may be new.
        in_turn(end, self._offsets.when_saved, self._groups.table.when_safe, count, replicate)

    def group_offsets(self, request: pb.GroupOffsetsRequest, call: Call) -> Later:
        """Answer the committed offsets of a group: of the queues in REQUEST, or of all that the user may see."""
        check_count("queues", len(request.queues))
        check_group(request.group)
        reply = pb.GroupOffsetsReply()
        for queue in request.queues:
            self._topics.for_reading(queue.topic, queue.queue)
            found = self._offsets.committed(queue.topic, request.group, queue.queue)
            offset = -1 if found is None else found
            reply.offsets.add(topic=queue.topic, queue=queue.queue, offset=offset)
        if not request.queues:
            self._add_all_offsets(request.group, SeenNames(call), reply)
        for one in reply.offsets:
            if one.topic == dead_letter_topic(request.group):
                mark = self._offsets.committed(one.topic, DEAD_LETTERS_GROUP, one.queue)
                one.purged_below = max(0, mark or 0)
            if text := self._offsets.metadata(one.topic, request.group, one.queue):
                one.metadata = text
        in_steps(self._with_times(reply, request), call.reply, call.fail)
        return LATER

    def _add_all_offsets(self, group: str, seen: SeenNames, reply: pb.GroupOffsetsReply) -> None:
        """Add to REPLY what GROUP committed in topics that the user may see; count missing topics that it subscribes
        to.
        """
        for topic, queue, offset in self._offsets.of_group(group):
            if self._topics.has_queue(topic, queue) and seen.has_topic(topic):
                reply.offsets.add(topic=topic, queue=queue, offset=offset)
        for topic in self._coordination.topics_of(group):
            seen.has_topic(topic)
        reply.hidden_topics = seen.hidden_topics

    def _with_times(
        self, reply: pb.GroupOffsetsReply, request: pb.GroupOffsetsRequest
    ) -> Generator[None, None, pb.GroupOffsetsReply]:
        """Yield until REPLY has all that REQUEST asks for with its offsets; return it."""
        if request.with_times:
            yield from add_unread(self._store, reply.offsets)
        if request.with_times or request.with_lent:
            self._add_lent(request.group, reply.offsets)
        return reply

    def _add_lent(self, group: str, offsets: Iterable[pb.GroupOffset]) -> None:
        """Add to each of OFFSETS how many messages GROUP has in flight there."""
        for one in offsets:
            one.lent_count, one.read_to = self._pops.delivered(group, one.topic, one.queue)

    def queue_offsets(self, request: pb.QueueOffsetsRequest, call: Call) -> Later:
        """Answer the first and the end offset of queues, and the offset for a point in time."""
        check_count("queues", len(request.queues))
        time_ms = request.time_ms if request.HasField("time_ms") else None
        for queue in request.queues:
            self._topics.for_reading(queue.topic, queue.queue)
        in_steps(self._bounds_of(request.queues, time_ms), call.reply, call.fail)
        return LATER

    def _bounds_of(
        self, queues: Iterable[pb.QueueId], time_ms: int | None
    ) -> Generator[None, None, pb.QueueOffsetsReply]:
        reply = pb.QueueOffsetsReply()
        for at, queue in enumerate(queues, 1):
            if at % IN_A_TURN == 0:
                yield
            reply.offsets.append(self._bounds(queue.topic, queue.queue, time_ms=time_ms))
        return reply

    def _bounds(self, topic: str, queue: int, *, time_ms: int | None = None) -> pb.QueueOffsets:
        low, high = self._store.queue_bounds(topic, queue)
        bounds = pb.QueueOffsets(topic=topic, queue=queue, min_offset=low, max_offset=high)
        bounds.min_store_time_ms = stored_ms(self._store, topic, queue, low)
        if time_ms is not None:
            has_any = low < high
            bounds.offset_at_time = (
                self._store.offset_by_time(topic, queue, time_ms) if has_any else high
            )
        return bounds

    def describe_topic(
        self, request: pb.DescribeTopicRequest, counts: SendCounts
    ) -> pb.DescribeTopicReply:
        """Answer the settings of a topic, the offset ranges of its queues, and what COUNTS says was sent to it."""
        topic = self._topics.get(request.topic)
        sent = counts.by_topic.get(topic.name, TopicSends())
        return pb.DescribeTopicReply(
            topic=topic_message(topic),
            queues=[self._bounds(topic.name, queue) for queue in range(topic.read_queues)],
            sent=pb.TopicSent(
                messages=sent.messages,
                bytes=sent.bytes,
                runs=sent.stored,
                failed_runs=sent.failed,
                last_ms=sent.last_ms,
            ),
        )

    def list_topics(self, request: pb.BrokerTopicsRequest, call: Call) -> pb.BrokerTopicsReply:
        """Answer the topics of this broker, sorted by name, all or one page of them."""
        check_natural("skip", request.skip)
        check_natural("max_topics", request.max_topics)
        every = self._topics.all(include_system=request.include_system)
        found = visible(call.may, every, lambda one: one.name, of_topic)
        hidden = len(every) - len(found)
        if wanted := request.containing.lower():
            found = [topic for topic in found if wanted in topic.name.lower()]
        end = request.skip + request.max_topics if request.max_topics else None
        some = found[request.skip : end]
        return pb.BrokerTopicsReply(
            topics=[topic_message(one) for one in some], total=len(found), hidden=hidden
        )

    def list_groups(self, request: pb.GroupListRequest, call: Call) -> pb.GroupListReply:
        """Answer the groups of this broker."""
        every = self._groups.all()
        found = visible(call.may, every, lambda one: one.name, of_group)
        hidden = len(every) - len(found)
        return pb.GroupListReply(groups=[_group_message(one) for one in found], hidden=hidden)


class _Changes:
    """Methods that change topics and groups. A change of a topic is answered when the name servers know it."""

    def __init__(  # noqa: PLR0913  (it connects these parts)
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        announced: Announced,
        coordination: Coordination,
        pops: PopService,
        state: StateSource | None,
    ) -> None:
        self._pops = pops
        self._state = state
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._announced = announced
        self._coordination = coordination

    async def create_topic(self, request: pb.CreateTopicRequest, call: Call) -> pb.TopicReply:
        asked = _topic_config(request.topic)
        if request.update and request.fields:
            asked = _changed(self._topics.get(asked.name), asked, request.fields, _TOPIC_FIELDS)
        topic = self._topics.create(asked, update=request.update)
        await ended(self._topics.table.when_safe)
        await self._replicated(TOPICS_FILE)
        await self._announced()
        return pb.TopicReply(topic=topic_message(topic))

    async def delete_topic(self, request: pb.DeleteTopicRequest, call: Call) -> pb.DeleteTopicReply:
        self._topics.check_deletable(request.topic)
        # A store that takes no writes refuses, and then the topic stays.
        self._pops.forget_topic(request.topic)
        self._store.delete_topic(request.topic)
        self._topics.delete(request.topic)
        self._coordination.forget_topic(request.topic)
        self._offsets.forget_topic(request.topic)
        await ended(self._offsets.when_saved)
        await ended(self._topics.table.when_safe)
        await self._without_statistics()
        await self._replicated(TOPICS_FILE, *_OF_GROUPS)
        await self._announced()
        return pb.DeleteTopicReply()

    async def create_group(self, request: pb.CreateGroupRequest, call: Call) -> pb.GroupReply:
        asked = _group_config(request.group)
        intervals: Sequence[int] | None = request.group.retry_intervals_ms
        if request.update and request.fields:
            asked = _changed(self._groups.get(asked.name), asked, request.fields, _GROUP_FIELDS)
            intervals = intervals if "retry_intervals_ms" in request.fields else None
        if request.group.lite_topic and not request.update:
            self._check_parent(request.group.lite_topic)
        made = self._groups.create(asked, update=request.update, retry_intervals_ms=intervals)
        await ended(self._groups.table.when_safe)
        await self._replicated(GROUPS_FILE)
        return pb.GroupReply(group=_group_message(made))

    def _check_parent(self, name: str) -> None:
        """Raise InvalidArgument unless topic NAME has lite topics."""
        if self._topics.get(name).attributes.get(TYPE_ATTRIBUTE) != LITE:
            raise InvalidArgument(
                f"topic {name!r} has no lite topics: create it with --type LITE",
                field="lite_topic",
                value=name,
            )

    async def delete_group(self, request: pb.DeleteGroupRequest, call: Call) -> pb.DeleteGroupReply:
        self._pops.forget_group(request.group)
        self._groups.delete(request.group)
        self._coordination.forget_group(request.group)
        self._offsets.forget_group(request.group)
        await ended(self._offsets.when_saved)
        await ended(self._groups.table.when_safe)
        await self._without_statistics()
        await self._replicated(GROUPS_FILE, *_OF_GROUPS)
        return pb.DeleteGroupReply()

    async def _without_statistics(self) -> None:
        """Wait until the statistics of deleted queues are removed on disk: a new queue of the same name must not get
        them.
        """
        with suppress(StoreError):  # The log reports it.
            await ended(self._coordination.consume_stats.when_durable)

    async def _replicated(self, *files: str) -> None:
        """Wait until every replica in sync has the present FILES; return at once without replicas."""
        await ended(lambda done: when_replicated(self._state, done, *files))


def when_replicated(state: StateSource | None, done: Safe, *files: str) -> None:
    """Call DONE once every replica in sync has the present FILES; at once without a STATE."""
    if state is None:
        done(None)
    else:
        state.when_replicated(done, *files)


def topic_message(topic: TopicConfig) -> pb.TopicConfig:
    """Return TOPIC as a message of the protocol."""
    return pb.TopicConfig(
        name=topic.name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        permission=topic.permission,
        type=topic.attributes.get(TYPE_ATTRIBUTE, ""),
        attributes=topic.attributes,
        order=topic.order,
    )


def _topic_config(message: pb.TopicConfig) -> TopicConfig:
    attributes = dict(message.attributes)
    if message.type:
        attributes[TYPE_ATTRIBUTE] = message.type
    return TopicConfig(
        name=message.name,
        read_queues=message.read_queues,
        write_queues=message.write_queues,
        permission=message.permission,
        attributes=attributes,
        order=message.order,
    )


#: Fields of a topic in the protocol, and the attributes of TopicConfig that they update.
_TOPIC_FIELDS: Final = {
    "read_queues": "read_queues",
    "write_queues": "write_queues",
    "permission": "permission",
    "order": "order",
    "type": "attributes",
    "attributes": "attributes",
}


#: The same of a group. `Groups.create` builds the policy from the retry intervals.
_GROUP_FIELDS: Final = {
    "retry_max_times": "retry_times_max",
    "retry_queues": "retry_queues",
    "retry_intervals_ms": "retry_policy",
    "order": "consume_message_orderly",
    "consume_enable": "consume_enable",
    "subscription_check": "attributes",
}


Settings = TypeVar("Settings", TopicConfig, GroupConfig)


def _changed(
    known: Settings, asked: Settings, fields: Iterable[str], names: Mapping[str, str]
) -> Settings:
    """Return KNOWN with FIELDS taken from ASKED; NAMES maps fields to attributes."""
    for field in fields:
        if field not in names:
            raise InvalidArgument(
                f"fields: unknown field {field[:64]!r}; use {', '.join(names)}",
                field="fields",
                value=field[:64],
            )
    return replace(known, **{names[field]: getattr(asked, names[field]) for field in fields})


def _group_config(message: pb.GroupConfig) -> GroupConfig:
    return GroupConfig(
        name=message.name,
        retry_times_max=message.retry_max_times,
        retry_queues=message.retry_queues or 1,
        consume_message_orderly=message.order,
        consume_enable=message.consume_enable,
        attributes={SUBSCRIPTION_CHECK: message.subscription_check, **_lite_attributes(message)},
    )


def _lite_attributes(message: pb.GroupConfig) -> dict[str, str]:
    if not message.lite_topic:
        return {}
    exclusive = {MODEL: EXCLUSIVE} if message.lite_exclusive else {}
    return {BIND_TOPIC: message.lite_topic, **exclusive}


def _group_message(group: GroupConfig) -> pb.GroupConfig:
    return pb.GroupConfig(
        name=group.name,
        retry_max_times=group.retry_times_max,
        retry_queues=group.retry_queues,
        order=group.consume_message_orderly,
        consume_enable=group.consume_enable,
        retry_intervals_ms=retry_intervals_of(group.retry_policy),
        subscription_check=subscription_check(group),
        lite_topic=group.attributes.get(BIND_TOPIC, ""),
        lite_exclusive=group.attributes.get(MODEL) == EXCLUSIVE,
    )
