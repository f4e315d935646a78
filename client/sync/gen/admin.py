"""`Admin`, generated from client/administration/admin.py by `make sync`. Edit that file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ....proto.topics import PERMISSION_ALL
from ...administration import descriptions
from ...administration.admin import DEFAULT_QUEUES
from ...administration.dead_letters import DeadLetter, ResentDeadLetter
from ...administration.descriptions import BrokerDescription, TopicDescription
from ...administration.groups import OffsetChange, OffsetTarget
from ...config import ReadFrom
from ...queue import Queue
from ..thread_admin import ThreadAdmin

if TYPE_CHECKING:
    from ...received_message import ReceivedMessage


class Admin(ThreadAdmin):
    """Administers the cluster of some name servers. Thread-safe."""

    def create_topic(
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
        return self._run(
            self._core.create_topic(
                name,
                queues=queues,
                type=type,
                permission=permission,
                order=order,
                attributes=attributes,
            )
        )

    def update_topic(
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
        return self._run(
            self._core.update_topic(
                name,
                queues=queues,
                read_queues=read_queues,
                write_queues=write_queues,
                type=type,
                permission=permission,
                order=order,
                attributes=attributes,
                force=force,
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages on every broker; return when no name server shows it any more."""
        return self._run(self._core.delete_topic(name))

    def topics(self, *, include_system: bool = False) -> list[TopicDescription]:
        """Return all topics of the cluster, sorted by name, without their queues."""
        return self._run(self._core.topics(include_system=include_system))

    def hidden_topics(self) -> int:
        """Return the number of topics that you are not allowed to list: the maximum of all brokers."""
        return self._run(self._core.hidden_topics())

    def hidden_groups(self) -> int:
        """Return the number of groups that you are not allowed to list: the maximum of all brokers."""
        return self._run(self._core.hidden_groups())

    def describe_topic(self, name: str) -> TopicDescription:
        """Return a topic with its queues on all brokers. Raises TopicNotFound."""
        return self._run(self._core.describe_topic(name))

    def lookup(
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
        return self._run(
            self._core.lookup(
                topic,
                key,
                tag=tag,
                begin_ms=begin_ms,
                end_ms=end_ms,
                max_messages=max_messages,
                read_from=read_from,
            )
        )

    def lookup_id(
        self, message_id: str, topic: str | None = None, *, read_from: ReadFrom = "master"
    ) -> ReceivedMessage:
        """Return the message with MESSAGE_ID: the id that the producer set, or the offset message id.

        Without TOPIC, all topics are searched. Raises MessageNotFound.
        """
        return self._run(self._core.lookup_id(message_id, topic, read_from=read_from))

    def lookup_time(
        self,
        topic: str,
        begin_ms: int,
        end_ms: int,
        *,
        max_messages: int = 64,
        read_from: ReadFrom = "master",
    ) -> list[ReceivedMessage]:
        """Return up to MAX_MESSAGES of TOPIC stored from BEGIN_MS until before END_MS, oldest first."""
        return self._run(
            self._core.lookup_time(
                topic, begin_ms, end_ms, max_messages=max_messages, read_from=read_from
            )
        )

    def lookup_offset(
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
        return self._run(
            self._core.lookup_offset(
                topic, queue, offset, max_messages=max_messages, read_from=read_from
            )
        )

    def brokers(self) -> list[BrokerDescription]:
        """Return the state of every broker."""
        return self._run(self._core.brokers())

    def close(self) -> None:
        """Disconnect."""
        return self._close()

    def queue_offsets(
        self, topic: str, *, time_ms: int | None = None
    ) -> list[descriptions.QueueDescription]:
        """Return the offset range of each queue of TOPIC, and with TIME_MS the offset of this time."""
        return self._run(self._core.queue_offsets(topic, time_ms=time_ms))

    def create_group(
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
        return self._run(
            self._core.create_group(
                name,
                retry_max_times=retry_max_times,
                retry_queues=retry_queues,
                retry_intervals_ms=retry_intervals_ms,
                order=order,
                consume_enable=consume_enable,
                subscription_check=subscription_check,
                lite_topic=lite_topic,
                lite_exclusive=lite_exclusive,
            )
        )

    def update_group(
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
        return self._run(
            self._core.update_group(
                name,
                retry_max_times=retry_max_times,
                retry_queues=retry_queues,
                retry_intervals_ms=retry_intervals_ms,
                order=order,
                consume_enable=consume_enable,
                subscription_check=subscription_check,
            )
        )

    def delete_group(self, name: str) -> None:
        """Delete a group and its offsets on every broker."""
        return self._run(self._core.delete_group(name))

    def groups(self) -> list[descriptions.GroupDescription]:
        """Return all groups, sorted by name."""
        return self._run(self._core.groups())

    def group_offsets(
        self, group: str, topic: str | None = None
    ) -> list[descriptions.GroupPosition]:
        """Return the committed offsets of a group: in all queues of TOPIC, or in all queues that it has committed."""
        return self._run(self._core.group_offsets(group, topic))

    def set_group_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Set committed offsets of a group. Raises LeaseLost if a member holds one of the queues.

        A consumer with assigned queues (`assign`) does not notice the change, and may overwrite it.
        """
        return self._run(self._core.set_group_offsets(group, offsets))

    def describe_group(
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
        return self._run(
            self._core.describe_group(
                group, topic=topic, interval_ms=interval_ms, read_from=read_from
            )
        )

    def reset_offsets(
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
        return self._run(
            self._core.reset_offsets(
                group, topic, target, queues=queues, force=force, dry_run=dry_run, create=create
            )
        )

    def dead_letters(
        self,
        group: str,
        *,
        broker: str | None = None,
        from_offset: int = 0,
        max_letters: int = 1000,
        include_resent: bool = True,
    ) -> list[DeadLetter]:
        """Return the dead letters of a group, the oldest first.

        Args:
            group: The consumer group.
            broker: Name or address of a broker; None: all brokers.
            from_offset: Offset of the first dead letter. Needs `broker` if several brokers have dead letters.
            max_letters: Maximum number per broker.
            include_resent: Whether to include dead letters that were resent.

        Raises:
            GroupNotFound: There is no such group.
        """
        return self._run(
            self._core.dead_letters(
                group,
                broker=broker,
                from_offset=from_offset,
                max_letters=max_letters,
                include_resent=include_resent,
            )
        )

    def resend_dead_letters(
        self,
        group: str,
        offsets: Iterable[int],
        *,
        topic: str | None = None,
        broker: str | None = None,
    ) -> list[ResentDeadLetter]:
        """Send dead letters again as new messages; return the results in the order of OFFSETS.

        All groups of the topic get the new messages. The dead letters stay until they are purged.

        Args:
            group: The consumer group.
            offsets: Offsets of the dead letters.
            topic: Topic to send to; None: the original topic of each. `%RETRY%group` reaches only this group.
            broker: Name of a broker, needed if several brokers have dead letters of the group.
        """
        return self._run(self._core.resend_dead_letters(group, offsets, topic=topic, broker=broker))

    def purge_dead_letters(
        self, group: str, *, below: int | None = None, broker: str | None = None
    ) -> int:
        """Purge the dead-letter queue of a group; return the number of purged dead letters.

        They can no longer be listed or resent. The broker removes their bytes when their files expire.

        Args:
            group: The consumer group.
            below: Purge only offsets below this one; None: purge all.
            broker: Name of a broker. Needed for `below` if several brokers have dead letters of the group.
        """
        return self._run(self._core.purge_dead_letters(group, below=below, broker=broker))
