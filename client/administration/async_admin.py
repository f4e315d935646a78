"""Administration from coroutines: topics, groups, offsets, brokers, finding single messages, dead letters.

Topics and groups are made on every broker of the cluster. What `create_…`, `update_…` and `delete_…` did is visible to
the next call, of any client that asks the same name servers, when they return.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Self

from ...proto.clock import Clock, SystemClock
from ...proto.errors import (
    GroupNotFound,
    InvalidArgument,
    RouteNotFound,
    TopicExists,
    TopicNotFound,
)
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.topics import PERMISSION_ALL, check_group, check_topic
from ..config import ClientConfig
from ..connections import Connections, GrpcConnections
from ..name_servers import DEFAULT_NAME_SERVERS
from ..queue import Queue
from ..received_message import ReceivedMessage
from ..session import Session
from .brokers import Brokers
from .dead_letters import DeadLetterAdmin
from .descriptions import (
    BrokerDescription,
    GroupDescription,
    GroupPosition,
    QueueDescription,
    TopicDescription,
    broker_description,
    group_description,
    queue_description,
    topic_description,
)
from .finding import Finding

DEFAULT_QUEUES = 8
#: How long a change may take to show at the name servers.
VISIBLE_TIMEOUT_MS = 10_000


class AsyncAdmin(DeadLetterAdmin):
    """Administers the cluster behind NAMESERVERS, from coroutines. It belongs to the event loop that uses it."""

    def __init__(
        self,
        nameservers: str = DEFAULT_NAME_SERVERS,
        *,
        request_timeout_ms: int = 5_000,
        clock: Clock | None = None,
        connections: Connections | None = None,
    ) -> None:
        """NAMESERVERS: host:port, separated by commas. CLOCK and CONNECTIONS are for tests."""
        config = ClientConfig(nameservers=nameservers, request_timeout_ms=request_timeout_ms)
        self._session = Session(
            config, connections or GrpcConnections(), clock or SystemClock(), Random()
        )
        super().__init__(Brokers(self._session, request_timeout_ms))
        self._finding = Finding(self._session, self._brokers, request_timeout_ms)

    # ------------------------------------------------------------ topics

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = DEFAULT_QUEUES,
        type: str = "",
        permission: int = PERMISSION_ALL,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicDescription:
        """Create topic NAME with QUEUES queues on each broker, and return it once it can be used.

        TYPE: NORMAL, FIFO, DELAY, TRANSACTION, or "" for none. Raises TopicExists if every broker has it; brokers that
        do not have it yet get it.
        """
        config = pb.TopicConfig(
            name=check_topic(name),
            read_queues=queues,
            write_queues=queues,
            permission=permission,
            type=type,
            order=order,
            attributes=attributes or {},
        )
        request = pb.CreateTopicRequest(topic=config)
        made = await self._brokers.ask_all(
            "CreateTopic", request, pb.TopicReply, passing=TopicExists
        )
        return await self._visible(made)

    async def update_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        type: str | None = None,
        permission: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> TopicDescription:
        """Change what is given of topic NAME, on each broker that has it; return it once the change shows."""
        made: dict[str, pb.TopicReply] = {}
        addresses = await self._brokers.addresses()
        for broker, reply in (await self._described(name)).items():
            config = reply.topic
            changes = {
                "read_queues": queues,
                "write_queues": queues,
                "type": type,
                "permission": permission,
                "order": order,
            }
            for field, value in changes.items():
                if value is not None:
                    setattr(config, field, value)
            config.attributes.update(attributes or {})
            request = pb.CreateTopicRequest(topic=config, update=True)
            made[broker] = await self._brokers.ask(
                addresses[broker], "CreateTopic", request, pb.TopicReply
            )
        return await self._visible(made)

    async def _visible(self, made: dict[str, pb.TopicReply]) -> TopicDescription:
        """Wait until the name servers show the topics MADE on brokers; return the description."""
        wanted = {
            broker: (reply.topic.read_queues, reply.topic.write_queues, reply.topic.permission)
            for broker, reply in made.items()
        }

        def is_right(route: pb.TopicRoute | None) -> bool:
            shown = {
                data.broker_name: (data.read_queues, data.write_queues, data.permission)
                for data in (route.queues if route is not None else ())
            }
            return wanted.items() <= shown.items()

        config = next(iter(made.values())).topic
        await self._brokers.wait_for_route(config.name, is_right, VISIBLE_TIMEOUT_MS)
        return topic_description(config, made, ())

    async def delete_topic(self, name: str) -> None:
        """Delete topic NAME and its messages on every broker; return once no name server shows it."""
        request = pb.DeleteTopicRequest(topic=check_topic(name))
        await self._brokers.ask_all(
            "DeleteTopic", request, pb.DeleteTopicReply, passing=TopicNotFound
        )
        await self._brokers.wait_for_route(
            name, lambda route: route is None or not route.queues, VISIBLE_TIMEOUT_MS
        )

    async def topics(self, *, include_system: bool = False) -> list[TopicDescription]:
        """Return all topics of the cluster by name, without their queues."""
        replies = await self._brokers.ask_all(
            "ListTopics",
            pb.BrokerTopicsRequest(include_system=include_system),
            pb.BrokerTopicsReply,
        )
        holders: dict[str, list[str]] = {}
        configs: dict[str, pb.TopicConfig] = {}
        for broker, reply in replies.items():
            for config in reply.topics:
                holders.setdefault(config.name, []).append(broker)
                configs.setdefault(config.name, config)
        return [topic_description(configs[name], holders[name], ()) for name in sorted(configs)]

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return topic NAME with its queues on all brokers. Raises TopicNotFound."""
        replies = await self._described(name)
        queues = [
            queue_description(broker, offsets)
            for broker, reply in replies.items()
            for offsets in reply.queues
        ]
        return topic_description(next(iter(replies.values())).topic, replies, queues)

    async def _described(self, name: str) -> dict[str, pb.DescribeTopicReply]:
        return await self._brokers.ask_all(
            "DescribeTopic",
            pb.DescribeTopicRequest(topic=check_topic(name)),
            pb.DescribeTopicReply,
            passing=TopicNotFound,
        )

    # ------------------------------------------------------------ groups and offsets

    async def create_group(
        self,
        name: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        retry_intervals_ms: Sequence[int] = (),
        order: bool = False,
        consume_enable: bool = True,
        update: bool = False,
    ) -> GroupDescription:
        """Create group NAME on every broker, or with UPDATE change it. ORDER: first in, first out.

        RETRY_INTERVALS_MS: how long a message waits before its first retry, its second …; the last one repeats. At
        most 64, each 1 s to the broker's delay_max_ms (3 days); none: by delay level, 10 s to 2 h.
        """
        group = pb.GroupConfig(
            name=check_group(name),
            retry_max_times=retry_max_times,
            retry_queues=retry_queues,
            retry_intervals_ms=retry_intervals_ms,
            order=order,
            consume_enable=consume_enable,
        )
        request = pb.CreateGroupRequest(group=group, update=update)
        replies = await self._brokers.ask_all("CreateGroup", request, pb.GroupReply)
        return group_description(next(iter(replies.values())).group)

    async def delete_group(self, name: str) -> None:
        """Delete group NAME and its offsets on every broker."""
        request = pb.DeleteGroupRequest(group=check_group(name))
        await self._brokers.ask_all(
            "DeleteGroup", request, pb.DeleteGroupReply, passing=GroupNotFound
        )

    async def groups(self) -> list[GroupDescription]:
        """Return all groups by name."""
        replies = await self._brokers.ask_all(
            "ListGroups", pb.GroupListRequest(), pb.GroupListReply
        )
        found = {group.name: group for reply in replies.values() for group in reply.groups}
        return [group_description(found[name]) for name in sorted(found)]

    async def queue_offsets(
        self, topic: str, *, time_ms: int | None = None
    ) -> list[QueueDescription]:
        """Return what each queue of TOPIC holds and, with TIME_MS, where that instant lies."""
        found: list[QueueDescription] = []
        addresses = await self._brokers.addresses()
        for broker, described in (await self._described(topic)).items():
            queues = [pb.QueueId(topic=topic, queue=item.queue) for item in described.queues]
            request = pb.QueueOffsetsRequest(queues=queues, time_ms=time_ms)
            reply = await self._brokers.ask(
                addresses[broker], "QueueOffsets", request, pb.QueueOffsetsReply
            )
            found += [queue_description(broker, offsets) for offsets in reply.offsets]
        return found

    async def group_offsets(self, group: str, topic: str | None = None) -> list[GroupPosition]:
        """Return how far GROUP has come: in every queue of TOPIC, or wherever it has ever committed."""
        addresses = await self._brokers.addresses()
        found: list[GroupPosition] = []
        for broker, address in addresses.items():
            queues = [] if topic is None else await self._queue_ids(address, topic)
            if topic is not None and not queues:
                continue
            request = pb.GroupOffsetsRequest(group=check_group(group), queues=queues)
            reply = await self._brokers.ask(address, "GroupOffsets", request, pb.GroupOffsetsReply)
            found += await self._with_bounds(broker, address, reply.offsets)
        return found

    async def set_group_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Have GROUP go on at OFFSETS; a running consumer of the group does not notice, and may overwrite them."""
        addresses = await self._brokers.addresses()
        for broker in sorted({queue.broker for queue in offsets}):
            if broker not in addresses:
                raise RouteNotFound(
                    f"broker {broker!r} is not registered (known: {', '.join(addresses)})",
                    broker=broker,
                )
            own = [(queue, offset) for queue, offset in offsets.items() if queue.broker == broker]
            request = pb.CommitOffsetsRequest(
                group=check_group(group),
                offsets=[
                    pb.GroupOffset(topic=queue.topic, queue=queue.number, offset=offset)
                    for queue, offset in own
                ],
            )
            await self._brokers.ask(
                addresses[broker], "CommitOffsets", request, pb.CommitOffsetsReply
            )

    async def _queue_ids(self, address: str, topic: str) -> list[pb.QueueId]:
        request = pb.DescribeTopicRequest(topic=check_topic(topic))
        try:
            reply = await self._brokers.ask(
                address, "DescribeTopic", request, pb.DescribeTopicReply
            )
        except TopicNotFound:
            return []
        return [pb.QueueId(topic=topic, queue=item.queue) for item in reply.queues]

    async def _with_bounds(
        self, broker: str, address: str, offsets: Iterable[pb.GroupOffset]
    ) -> list[GroupPosition]:
        by_place = {(item.topic, item.queue): item.offset for item in offsets}
        if not by_place:
            return []
        queues = [pb.QueueId(topic=topic, queue=queue) for topic, queue in sorted(by_place)]
        request = pb.QueueOffsetsRequest(queues=queues)
        reply = await self._brokers.ask(address, "QueueOffsets", request, pb.QueueOffsetsReply)
        described = [queue_description(broker, item) for item in reply.offsets]
        return [
            GroupPosition(
                queue=item.queue,
                offset=by_place[item.queue.topic, item.queue.number],
                min_offset=item.min_offset,
                max_offset=item.max_offset,
            )
            for item in described
        ]

    # ------------------------------------------------------------ messages and brokers

    async def lookup(
        self,
        topic: str,
        key: str | None = None,
        *,
        tag: str | None = None,
        begin_ms: int = 0,
        end_ms: int = 0,
        max_messages: int = 64,
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of TOPIC with KEY (one of its keys, or its id) or with TAG, oldest first.

        Tags are found only where the broker's store indexes them. BEGIN_MS and END_MS (0: no end) bound the time when
        they were stored.
        """
        if (key is None) == (tag is None):
            raise InvalidArgument("give either a key or a tag to look for", field="key")
        request = pb.LookupRequest(
            topic=check_topic(topic),
            key=key,
            tag=tag,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_messages=max_messages,
        )
        return await self._finding.lookup(request)

    async def lookup_id(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """Return the message with MESSAGE_ID, the producer's or the offset message id. Raises MessageNotFound.

        Without TOPIC a producer's id is looked for in all topics.
        """
        topics = [topic] if topic is not None else [item.name for item in await self.topics()]
        return await self._finding.by_id(message_id, topics)

    async def lookup_time(
        self, topic: str, begin_ms: int, end_ms: int, *, max_messages: int = 64
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of TOPIC stored from BEGIN_MS up to, and without, END_MS, oldest first."""
        return await self._finding.by_time(topic, begin_ms, end_ms, max_messages)

    async def brokers(self) -> list[BrokerDescription]:
        """Return the state of every broker."""
        request = pb.BrokerStatusRequest()
        replies = await self._brokers.ask_all("Status", request, pb.BrokerStatusReply)
        return [broker_description(reply) for reply in replies.values()]

    async def close(self) -> None:
        """Disconnect."""
        await self._session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
