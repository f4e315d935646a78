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
        """Create topic NAME with QUEUES queues on each broker, and return it once it can be used.

        TYPE: NORMAL, FIFO, DELAY, TRANSACTION, or "" for none. Raises TopicExists if every broker has it, or
        one has it with other settings. Brokers that do not have it yet get it.
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
        """Change what is given of topic NAME, on each broker that has it; return it once the change shows.

        QUEUES are those to read and to write, unless READ_QUEUES or WRITE_QUEUES say otherwise: a topic shrinks in two
        steps, fewer to write, then, when the others are read, fewer to read. Raises TopicInUse if queues that could not
        be read any more hold messages that a group which reads the topic has not read, or that no group has read,
        unless it is FORCEd.
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
        """Delete topic NAME and its messages on every broker; return once no name server shows it."""
        return self._run(self._core.delete_topic(name))

    def topics(self, *, include_system: bool = False) -> list[TopicDescription]:
        """Return all topics of the cluster by name, without their queues."""
        return self._run(self._core.topics(include_system=include_system))

    def hidden_topics(self) -> int:
        """Return how many topics you may not list, on the broker that has most of them."""
        return self._run(self._core.hidden_topics())

    def hidden_groups(self) -> int:
        """Return how many groups you may not list, on the broker that has most of them."""
        return self._run(self._core.hidden_groups())

    def describe_topic(self, name: str) -> TopicDescription:
        """Return topic NAME with its queues on all brokers. Raises TopicNotFound."""
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
        """Return the newest MAX_MESSAGES of TOPIC with KEY (one of its keys, or its id) or with TAG, oldest first.

        Of each broker these are 16 MiB at most, and at least one. Tags are found only where the broker's store indexes
        them. BEGIN_MS and END_MS (0: no end) bound the time when they were stored, both included. READ_FROM "any":
        replicas that follow look, and masters where these find nothing.
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
        """Return the message with MESSAGE_ID, the producer's or the offset message id. Raises MessageNotFound.

        Without TOPIC a producer's id is looked for in all topics.
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
        """Return up to MAX_MESSAGES of TOPIC stored from BEGIN_MS up to, and without, END_MS, oldest first."""
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
        """Return up to MAX_MESSAGES of QUEUE of TOPIC from queue offset OFFSET on, which must be there.

        Raises MessageNotFound, OffsetOutOfRange, or QueueNotFound, also for a number that several brokers have.
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
        """Return what each queue of TOPIC holds and, with TIME_MS, where that instant lies."""
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
    ) -> descriptions.GroupDescription:
        """Create group NAME on every broker. ORDER: first in, first out.

        RETRY_INTERVALS_MS: how long a message waits before its first retry, its second …; the last one repeats. At
        most 64, each 1 s to the broker's delay_max_ms (3 days); none: by delay level, 10 s to 2 h.
        SUBSCRIPTION_CHECK, of members that subscribe to different things: "grace" serves all for the broker's
        subscription_grace_ms and then those with the newest subscription, "warn" serves all, "refuse" the first.

        Raises GroupExists if every broker has the group, or one has it with other settings. Brokers that do not have
        it yet get it.
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
        """Change what is given of group NAME; the rest stays. Raises GroupNotFound.

        The arguments are those of `create_group`; an empty list of RETRY_INTERVALS_MS means by delay level. A broker
        that does not have the group yet gets it, as another broker has it.
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
        """Delete group NAME and its offsets on every broker."""
        return self._run(self._core.delete_group(name))

    def groups(self) -> list[descriptions.GroupDescription]:
        """Return all groups by name."""
        return self._run(self._core.groups())

    def group_offsets(
        self, group: str, topic: str | None = None
    ) -> list[descriptions.GroupPosition]:
        """Return how far GROUP has come: in every queue of TOPIC, or wherever it has ever committed."""
        return self._run(self._core.group_offsets(group, topic))

    def set_group_offsets(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Set the offsets of GROUP to OFFSETS. Raises LeaseLost where a member holds one of the queues.

        A consumer that reads without being a member does not notice, and may overwrite them.
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
        """Return who is in GROUP, and its progress in every queue that it reads, or in those of TOPIC.

        GROUP is a name, or a description from `groups()`, so that the brokers need not list all groups again; a group
        that was deleted since then has an empty report. READ_FROM "any": replicas that follow look at the queues, and
        may be a moment behind.

        INTERVAL_MS: look twice, so long apart, to report how fast it is; consumers commit every few seconds, so that a
        short interval tells little. Queues of topics that you may not see are left out, unless TOPIC names the topic.
        Raises GroupNotFound.
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
        """Set the offsets of GROUP to TARGET in QUEUES of TOPIC (numbers are those of every broker; none: all of them).

        Returns what moves, from where to where; with DRY_RUN nothing does. Raises GroupNotFound for a group that never
        was, unless it is to be CREATEd; and GroupInUse while members are on: with FORCE they lose their queues in the
        same step, and continue at the new offsets once they have them again.
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
        """Return the dead letters of GROUP, those that died first in front: at most MAX_LETTERS of each broker.

        BROKER, a name or an address: of this one alone, which FROM_OFFSET, where to begin, needs where there are
        several. Without INCLUDE_RESENT only those that were not sent again. Raises GroupNotFound.
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
        """Send the dead letters of GROUP with these queue OFFSETS again; return what became of each, in their order.

        Each goes to the topic that it came from, or to TOPIC, as a fresh message: all groups of that topic get it.
        `%RETRY%group` reaches GROUP alone. The dead letters stay until they are purged. BROKER is needed where several
        have dead letters of the group.
        """
        return self._run(self._core.resend_dead_letters(group, offsets, topic=topic, broker=broker))

    def purge_dead_letters(
        self, group: str, *, below: int | None = None, broker: str | None = None
    ) -> int:
        """Put away the dead letters of GROUP, all or those with offsets BELOW; return how many.

        They are not listed or sent any more; the broker's retention of its log removes the bytes. BROKER is needed
        for BELOW where several have dead letters of the group.
        """
        return self._run(self._core.purge_dead_letters(group, below=below, broker=broker))
