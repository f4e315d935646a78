"""Administration: topics, groups, offsets, brokers, single messages, dead letters.

Topics and groups are created on every broker of the cluster. After `create_…`, `update_…` and `delete_…` return, the
next call of any client that uses the same name servers sees the change. `make sync` generates the class for threads:

    with Admin() as admin:
        admin.create_topic("orders", queues=8)
        print(admin.describe_topic("orders").queues)
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from contextlib import suppress
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Final, Unpack

from ...proto.clock import Clock, SystemClock
from ...proto.errors import InvalidArgument, NotAuthorized, TopicExists, TopicNotFound
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.time_text import check_unix_ms
from ...proto.topics import PERMISSION_ALL, check_topic
from ..config import ClientConfig, ClientSettings, ReadFrom, reads_any, settled
from ..connections import Connections
from ..lifecycle import AsyncClient
from ..queue import Queue
from ..session import Session
from .brokers import Brokers, request_of
from .descriptions import (
    BrokerDescription,
    TopicDescription,
    broker_description,
    queue_description,
    topic_description,
)
from .groups import GroupAdmin
from .removed_queues import check_removed_are_read

if TYPE_CHECKING:
    from ..received_message import ReceivedMessage
    from .finding import Finder


DEFAULT_QUEUES = 8
_TYPE_ATTRIBUTE: Final = "message.type"
#: Maximum time until the name servers show a change.
VISIBLE_TIMEOUT_MS = 10_000


class AsyncAdmin(GroupAdmin, AsyncClient):
    """Administers the cluster of some name servers, from coroutines. It belongs to the event loop that uses it."""

    def __init__(
        self,
        nameservers: str | None = None,
        *,
        clock: Clock | None = None,
        connections: Connections | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """Create an admin. Close it, or use it in an `async with` block.

        Args:
            nameservers: host:port, separated by commas; None: $POCKETMQ_NAMESERVER, or 127.0.0.1:9876.
            clock: For tests.
            connections: For tests.
            settings: Fields of ClientConfig.
        """
        config = settled(ClientConfig, nameservers, settings)
        self._session = Session(config, connections, clock or SystemClock(), Random())
        super().__init__(Brokers(self._session, config.request_timeout_ms), self._session.clock)
        self._request_timeout_ms = config.request_timeout_ms

    @cached_property
    def _finding(self) -> Finder:
        from .finding import Finder  # Here, because it imports numpy.

        return Finder(self._session, self._brokers, self._request_timeout_ms)

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
        """Create a topic on each broker that does not have it; return it when it can be used.

        Args:
            name: Name of the topic.
            queues: Number of queues on each broker.
            type: NORMAL, FIFO, DELAY, TRANSACTION, or "" for unspecified.
            permission: Sum of read 4, write 2, inherit 1.
            order: Messages are ordered by message group.
            attributes: Attributes by name.

        Raises:
            TopicExists: Every broker has the topic, or one has it with other settings.
        """
        config = request_of(
            pb.TopicConfig,
            {"read_queues": "queues"},
            name=check_topic(name),
            read_queues=queues,
            write_queues=queues,
            permission=permission,
            type=type,
            order=order,
            attributes=attributes or {},
        )
        before = await self._check_same(config)

        async def earlier(broker: str) -> pb.TopicReply | None:
            if broker in before:
                return None
            described = await self._brokers.ask(
                broker, "DescribeTopic", pb.DescribeTopicRequest(topic=name), pb.DescribeTopicReply
            )
            is_same = _without_type(described.topic) == config
            return pb.TopicReply(topic=described.topic) if is_same else None

        request = pb.CreateTopicRequest(topic=config)
        made = await self._brokers.change_all(
            "CreateTopic", request, pb.TopicReply, TopicExists, earlier
        )
        return await self._visible(made)

    async def update_topic(  # noqa: PLR0913  a topic has these settings; all are named
        self,
        name: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        type: str | None = None,
        permission: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> TopicDescription:
        """Change settings of a topic on each broker that has it; return it when the name servers show the change.

        To remove queues, first reduce `write_queues`. When consumers have read the other queues, reduce `read_queues`.

        Args:
            name: Name of the topic.
            queues: Number of queues on each broker, to read and to write.
            read_queues: Number of queues that consumers read, if it differs.
            write_queues: Number of queues that producers write, if it differs.
            type: NORMAL, FIFO, DELAY, TRANSACTION, or "" for unspecified.
            permission: Sum of read 4, write 2, inherit 1.
            order: Messages are ordered by message group.
            attributes: Attributes by name.
            force: Remove queues even if they have unread messages.

        Raises:
            TopicInUse: Queues to remove have messages that some group of the topic, or every group, has not read.
        """
        made: dict[str, pb.TopicReply] = {}
        readable = queues if read_queues is None else read_queues
        changes = {
            "read_queues": readable,
            "write_queues": queues if write_queues is None else write_queues,
            "type": type,
            "permission": permission,
            "order": order,
        }
        given = {"read_queues": read_queues, "write_queues": write_queues}
        both = {field: "queues" for field, value in given.items() if value is None}
        config = request_of(pb.TopicConfig, both, name=name, **changes, attributes=attributes)
        fields = [field for field, value in changes.items() if value is not None]
        fields += ["attributes"] if attributes else []
        if not fields:
            raise InvalidArgument(
                f"topic {name!r}: there is nothing to change. Pass one of queues, {', '.join(changes)}, attributes.",
                field="topic",
            )
        request = pb.CreateTopicRequest(topic=config, update=True, fields=fields)
        described = await self._described(name)
        if readable is not None and not force:
            await check_removed_are_read(self._brokers, name, readable, described)
        for broker in described:
            made[broker] = await self._brokers.ask(broker, "CreateTopic", request, pb.TopicReply)
        return await self._visible(made)

    async def _check_same(self, config: pb.TopicConfig) -> Container[str]:
        """Return the brokers that have the topic of CONFIG; raise TopicExists if one has it with other settings."""
        try:
            described = await self._described(config.name)
        except TopicNotFound:
            return ()
        for broker, reply in described.items():
            if _without_type(reply.topic) != config:
                raise TopicExists(
                    f"topic {config.name!r} exists on {broker} with other settings"
                    f" ({_differences(_without_type(reply.topic), config)}): update it, or use another name",
                    topic=config.name,
                )
        return described

    async def _visible(self, made: dict[str, pb.TopicReply]) -> TopicDescription:
        """Wait until the name servers show the topic as in MADE, by broker; return its description."""
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
        """Delete a topic and its messages on every broker; return when no name server shows it any more."""
        request = pb.DeleteTopicRequest(topic=check_topic(name))
        before: Container[str] = ()
        with suppress(NotAuthorized):  # The user may have the permission to delete it.
            before = await self._described(name)

        async def earlier(broker: str) -> pb.DeleteTopicReply | None:
            return pb.DeleteTopicReply() if broker in before else None

        await self._brokers.change_all(
            "DeleteTopic", request, pb.DeleteTopicReply, TopicNotFound, earlier
        )
        await self._brokers.wait_for_route(
            name, lambda route: route is None or not route.queues, VISIBLE_TIMEOUT_MS
        )

    async def topics(self, *, include_system: bool = False) -> list[TopicDescription]:
        """Return all topics of the cluster, sorted by name, without their queues."""
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

    async def hidden_topics(self) -> int:
        """Return the number of topics that you are not allowed to list: the maximum of all brokers."""
        replies = await self._brokers.ask_all(
            "ListTopics", pb.BrokerTopicsRequest(max_topics=1), pb.BrokerTopicsReply
        )
        return max((one.hidden for one in replies.values()), default=0)

    async def hidden_groups(self) -> int:
        """Return the number of groups that you are not allowed to list: the maximum of all brokers."""
        replies = await self._brokers.ask_all(
            "ListGroups", pb.GroupListRequest(), pb.GroupListReply
        )
        return max((one.hidden for one in replies.values()), default=0)

    async def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with its queues on all brokers. Raises TopicNotFound."""
        replies = await self._described(name)
        queues = [
            queue_description(broker, offsets)
            for broker, reply in replies.items()
            for offsets in reply.queues
        ]
        sent = [reply.sent for reply in replies.values()]
        return topic_description(next(iter(replies.values())).topic, replies, queues, sent)

    async def lookup(
        self,
        topic: str,
        key: str | None = None,
        *,
        tag: str | None = None,
        begin_ms: int = 0,
        end_ms: int = 0,
        max_messages: int = 64,
        read_from: ReadFrom = "master",
    ) -> list[ReceivedMessage]:
        """Look up messages of a topic by key or tag; return the newest ones, oldest first.

        Each broker returns up to 16 MiB, and at least one message.

        Args:
            topic: Topic of the messages.
            key: A key of the message, or its id.
            tag: Tag of the message. Only brokers that index tags find it.
            begin_ms: Start of the store time, included, in Unix milliseconds.
            end_ms: End of the store time, included, in Unix milliseconds; 0: no end.
            max_messages: Maximum number of messages.
            read_from: "any": followers search first, and masters if followers find nothing.
        """
        if (key is None) == (tag is None):
            raise InvalidArgument("pass either key=… or tag=…", field="key")
        request = request_of(
            pb.LookupRequest,
            topic=check_topic(topic),
            key=key,
            tag=tag,
            begin_ms=begin_ms,
            end_ms=end_ms,
            max_messages=max_messages,
            from_any=reads_any(read_from),
        )
        check_unix_ms(begin_ms, "begin_ms")
        check_unix_ms(end_ms, "end_ms")
        return await self._finding.lookup(request)

    async def lookup_id(
        self, message_id: str, topic: str | None = None, *, read_from: ReadFrom = "master"
    ) -> ReceivedMessage:
        """Return the message with MESSAGE_ID: the id that the producer set, or the offset message id.

        Without TOPIC, all topics are searched. Raises MessageNotFound.
        """
        topics = [topic] if topic is not None else [item.name for item in await self.topics()]
        return await self._finding.by_id(
            message_id, topics, reads_any(read_from), anywhere=topic is None
        )

    async def lookup_time(
        self,
        topic: str,
        begin_ms: int,
        end_ms: int,
        *,
        max_messages: int = 64,
        read_from: ReadFrom = "master",
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of TOPIC stored from BEGIN_MS until before END_MS, oldest first."""
        return await self._finding.by_time(
            topic, begin_ms, end_ms, max_messages, reads_any(read_from)
        )

    async def lookup_offset(
        self,
        topic: str,
        queue: Queue | int,
        offset: int,
        *,
        max_messages: int = 1,
        read_from: ReadFrom = "master",
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of QUEUE of TOPIC, from the message at OFFSET on.

        Raises:
            MessageNotFound: There is no message at OFFSET.
            QueueNotFound: There is no such queue, or QUEUE is a number that several brokers have.
        """
        return await self._finding.by_offset(
            topic, queue, offset, max_messages, reads_any(read_from)
        )

    async def brokers(self) -> list[BrokerDescription]:
        """Return the state of every broker."""
        request = pb.BrokerStatusRequest()
        replies = await self._brokers.ask_all("Status", request, pb.BrokerStatusReply)
        return [broker_description(reply) for reply in replies.values()]

    async def close(self) -> None:
        """Disconnect."""
        await self._session.close()


def _differences(present: pb.TopicConfig, wanted: pb.TopicConfig) -> str:
    """Return what WANTED changes in PRESENT: "read_queues is 4, not 8"."""
    names = [field.name for field in present.DESCRIPTOR.fields]
    pairs = [(name, getattr(present, name), getattr(wanted, name)) for name in names]
    return ", ".join(f"{name} is {was}, not {now}" for name, was, now in pairs if was != now)


def _without_type(topic: pb.TopicConfig) -> pb.TopicConfig:
    """Return TOPIC without the attribute with the same value as its field `type`."""
    copy = pb.TopicConfig()
    copy.CopyFrom(topic)
    copy.attributes.pop(_TYPE_ATTRIBUTE, None)
    return copy
