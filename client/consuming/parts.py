"""What the parts of one consumer share: group, settings, metrics, and connections to brokers and name servers.

If no name server answers, the consumer logs it at once, and raises an error after nameserver_timeout_ms. After a name
server has answered once, consumers that know the route do not need it any more (routes.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar

from ...proto import errors
from ...proto.facts import Facts
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..claims import check_bounds
from ..config import ConsumerConfig, ReadingConfig
from ..connections import Connection
from ..exposition import Exposition
from ..follower_choice import FollowerChoices
from ..queue import QUEUES_AT_ONCE, Queue
from ..session import Session

logger = logging.getLogger(__name__)

#: Errors of a broker that does not have the queue any more.
QUEUE_IS_GONE: Final = (errors.TopicNotFound, errors.QueueNotFound)


@dataclass(slots=True)
class ConsumerMetrics:
    """Counters of one consumer, which only grow. The client's event loop writes them; any thread may read them."""

    handed_out: int = 0
    """Messages delivered to the application."""
    filtered: int = 0
    """Messages that the broker filtered out."""
    lost: int = 0
    """Messages that the broker could not deliver: damaged in its store, or deleted with a file."""
    commits: int = 0
    """Offsets of queues that brokers have accepted."""
    commits_failed: int = 0
    """Commits that failed."""
    rebalances: int = 0
    """Generations of the group in which this member was assigned queues."""
    queues_gained: int = 0
    """Queues that were assigned by rebalances."""
    gaining_ms: int = 0
    """Time from the assignment of these queues until the broker gave them to this member."""
    queues_released: int = 0
    """Queues that were revoked by rebalances."""
    releasing_ms: int = 0
    """Time from the last read of these queues until they were released."""
    queues_lost: int = 0
    """Queues whose lease expired while this member read them."""
    repeats: int = 0
    """Messages that were delivered but could not be committed any more: another member gets them too."""

    def text(self, labels: Mapping[str, str] | None = None) -> str:
        """Return the counters in the Prometheus text format, each with LABELS, for example {"client": "billing-1"}."""
        lines = Exposition(CONSUMER_PREFIX, labels)
        lines.add("counter", COUNTERS, self)
        return lines.text


CONSUMER_PREFIX: Final = "pocketmq_consumer_"
#: Field, name of the metric, and its help text.
COUNTERS: Final = (
    ("handed_out", "handed_out_messages_total", "Messages delivered to the application."),
    ("filtered", "filtered_messages_total", "Messages filtered out by the broker."),
    ("lost", "lost_messages_total", "Messages that the broker could not deliver any more."),
    ("commits", "commits_total", "Offsets that brokers have accepted."),
    ("commits_failed", "commits_failed_total", "Offsets that brokers have not accepted."),
    ("rebalances", "rebalances_total", "Generations in which this member was assigned queues."),
    ("queues_gained", "queues_gained_total", "Queues assigned by rebalances."),
    ("gaining_ms", "gaining_seconds_total", "Time from assignment to lease, sum of all queues."),
    ("queues_released", "queues_released_total", "Queues revoked by rebalances."),
    (
        "releasing_ms",
        "releasing_seconds_total",
        "Time from last read to release, sum of all queues.",
    ),
    ("queues_lost", "queues_lost_total", "Queues whose lease expired while they were read."),
    ("repeats", "repeats_total", "Delivered messages that another member gets too."),
)


_Answer: TypeAlias = asyncio.Future[pb.QueueOffsets]
#: The queues of a request that are not answered yet.
_Asked: TypeAlias = list[tuple[Queue, _Answer]]


class BoundsRequests:
    """Requests the offset ranges of queues from brokers: many queues per request, one request at a time per broker.

    A member that is assigned many queues needs the ranges of all of them at once. With one request per queue, its other
    requests to the broker would wait or be refused (ChannelLimits.waiting_max), and among them the renewals of leases.
    So while a request is in flight, further queues wait for the next request. A broker answers for all queues of a
    request or for none, and its error does not name the queue. A retriable error concerns the whole broker. After any
    other error, each half is requested by itself, until the queue that causes the error is found.

    Not thread-safe: its event loop owns it.
    """

    def __init__(self, session: Session, timeout_ms: int) -> None:
        """TIMEOUT_MS: the timeout of each request."""
        self._session = session
        self._timeout_ms = timeout_ms
        #: By broker and time. An entry exists only while a task works on it.
        self._asked: dict[tuple[str, int | None], _Asked] = {}

    async def of(self, queue: Queue, time_ms: int | None = None) -> pb.QueueOffsets:
        """Return the offset range of QUEUE, and the offset of the first message stored at TIME_MS or later.

        TIME_MS is in Unix milliseconds. Raises the broker's error, or ClientClosed if the client is closed meanwhile.
        """
        key = queue.broker, time_ms
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = []
            asking = self._session.tasks.spawn(self._ask_all(key, asked))
            asking.add_done_callback(partial(self._ended, key, asked))
        answer: _Answer = asyncio.get_running_loop().create_future()
        asked.append((queue, answer))
        return await answer

    async def _ask_all(self, key: tuple[str, int | None], asked: _Asked) -> None:
        while asked:
            part = asked[:QUEUES_AT_ONCE]
            await self._ask(*key, part)
            del asked[: len(part)]
        del self._asked[key]

    def _ended(
        self, key: tuple[str, int | None], asked: _Asked, asking: asyncio.Task[object]
    ) -> None:
        """Fail all of ASKED if the client was closed, which cancels ASKING."""
        if self._asked.get(key) is asked:
            del self._asked[key]
        closed = errors.ClientClosed(
            "the client was closed while it waited for the offset range of a queue"
        )
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(closed)

    async def _ask(self, broker: str, time_ms: int | None, asked: _Asked) -> None:
        """Answer all of ASKED, with offset ranges or an error."""
        asked = [(queue, answer) for queue, answer in asked if not answer.done()]
        if not asked:
            return
        ids = [pb.QueueId(topic=queue.topic, queue=queue.number) for queue, _ in asked]
        try:
            reply = await self._session.ask(
                broker,
                "QueueOffsets",
                pb.QueueOffsetsRequest(queues=ids, time_ms=time_ms),
                pb.QueueOffsetsReply,
                self._timeout_ms,
            )
            check_bounds(ids, reply.offsets, f"broker {broker}")
        except errors.PocketMQError as error:
            if error.retriable or len(asked) == 1 or isinstance(error, errors.BadReply):
                _fail(asked, error)
            else:
                half = len(asked) // 2
                await self._ask(broker, time_ms, asked[:half])
                await self._ask(broker, time_ms, asked[half:])
            return
        for (_, answer), bounds in zip(asked, reply.offsets, strict=True):
            if not answer.done():
                answer.set_result(bounds)


def _fail(asked: _Asked, error: errors.PocketMQError) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)


T = TypeVar("T")

_PAUSE_MS: Final = 500
#: Time between two warnings about name servers that cannot be reached.
_WARN_EVERY_MS: Final = 10_000
_ADVICE: Final = "set their addresses with nameservers=… or $POCKETMQ_NAMESERVER"


@dataclass(slots=True)
class ConsumerParts:
    """The group ("": none), settings, connections and counters of one consumer."""

    group: str
    config: ReadingConfig
    session: Session
    counts: ConsumerMetrics = field(default_factory=ConsumerMetrics)
    #: Called when the virtual clock of a broker waits until the messages just fetched are committed.
    on_clock_waits: list[Callable[[], None]] = field(default_factory=list)
    #: Whether consumption is disabled for the group, so that brokers deliver nothing.
    _is_switched_off: bool = field(init=False, default=False)
    #: Requests the offset ranges of queues.
    bounds: BoundsRequests = field(init=False)
    #: With read_from="any": the followers to fetch from instead of the master.
    followers: FollowerChoices | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.config, ConsumerConfig) and self.config.read_from == "any":
            self.followers = FollowerChoices(self.session)
        self.bounds = BoundsRequests(self.session, self.config.request_timeout_ms)

    def note_switch(self, *, off: bool) -> None:
        """Note whether consumption is disabled for the group, and log each change once for all queues."""
        if off == self._is_switched_off:
            return
        self._is_switched_off = off
        facts = Facts(group=self.group)
        if off:
            logger.warning("consumption disabled, waiting %s", facts)
        else:
            logger.info("consumption enabled again %s", facts)

    def need_group(self, what: str) -> None:
        """Raise InvalidArgument if there is no group, because WHAT is impossible then."""
        if not self.group:
            raise errors.InvalidArgument(
                f"a consumer without a group cannot {what}: create a consumer with a group name",
                field="group",
            )

    async def from_follower(
        self,
        queue: Queue,
        request: pb.FetchRequest,
        fetch: Callable[[Connection], Awaitable[T]],
    ) -> T | None:
        """Return the result of FETCH with REQUEST from a follower; None: fetch from the master."""
        if self.followers is None:
            return None
        request.from_any = True
        try:
            return await self.followers.of(queue.broker, queue).ask(fetch)
        finally:
            request.from_any = False


async def reach_name_server(
    parts: ConsumerParts, fail: Callable[[errors.PocketMQError], object]
) -> None:
    """Ask the name servers until one of them returns a broker.

    FAIL is called each time that none has answered for nameserver_timeout_ms. It is called at once after a TLS error,
    because waiting would not help.
    """
    session, timeout_ms = parts.session, parts.config.nameserver_timeout_ms
    clock = session.clock
    began_ms = warn_ms = clock.now_ms()
    while True:
        try:
            if await session.routes.brokers():
                return
            began_ms = clock.now_ms()
            if clock.now_ms() >= warn_ms:
                warn_ms = clock.now_ms() + _WARN_EVERY_MS
                logger.warning(
                    "no broker is registered, retrying %s",
                    Facts(
                        group=parts.group,
                        nameservers=", ".join(session.name_servers.addresses),
                        hint="start a broker with `pocketmq broker` and these name servers",
                    ),
                )
        except errors.TlsFailed as error:
            fail(error)
        except (errors.ConnectionLost, errors.Unsupported) as error:
            silent_ms = clock.now_ms() - began_ms
            if clock.now_ms() >= warn_ms:
                warn_ms = clock.now_ms() + _WARN_EVERY_MS
                facts = Facts(
                    group=parts.group,
                    fails_after_ms=timeout_ms or None,
                    reason=f"{error.message}; {_ADVICE}",
                )
                logger.warning("name servers not reached, retrying %s", facts)
            if timeout_ms and silent_ms >= timeout_ms:
                began_ms = clock.now_ms()
                fail(_unreached(error, silent_ms))
        await clock.sleep_until(clock.now_ms() + _PAUSE_MS)


def _unreached(error: errors.PocketMQError, silent_ms: int) -> errors.PocketMQError:
    return type(error)(
        f"after {silent_ms / 1_000:g} s, {error.message}; {_ADVICE}, or set"
        " nameserver_timeout_ms=0 to wait without a limit",
        **error.details,
    )
