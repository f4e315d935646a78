"""Settings of producers, consumers and admins: the section `client:` of the configuration file, or keyword arguments.

Each dataclass has a TypedDict of the same fields, so that type checkers check `Producer(linger_ms=5)`. A test compares
the two. Sizes are bytes, times milliseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, TypedDict, TypeVar

from ..proto.configuration import nearest
from ..proto.errors import ConfigError, InvalidName
from ..proto.record import BODY_BYTES_MAX
from ..proto.time_text import check_unix_ms
from ..proto.tls import Trust
from ..proto.topics import check_group
from .allocation import Strategy
from .allocation_strategies import strategy_named
from .compression import Compression, check_compression
from .name_server_addresses import DEFAULT_NAME_SERVERS, named_or_default, parse_addresses
from .producing.interceptors import check_interceptors
from .producing.queue_selector import QueueSelector, QueueSelectorName, check_queue_selector
from .producing.receipt import Acks, check_acks
from .serialization import (
    KeySerializer,
    ValueDeserializer,
    ValueSerializer,
    key_encoder,
    value_decoder,
    value_encoder,
)

#: Where a consumer starts reading a queue; `committed` falls back to `earliest` for a group that never committed.
Start = Literal["committed", "committed-or-latest", "earliest", "latest"] | datetime | int
#: So many retries that the timeout always comes first.
RETRIES_MAX: Final = 2**31 - 1
STARTS: Final = ("committed", "committed-or-latest", "earliest", "latest")
#: The delivery guarantee of a pull consumer: see ConsumerConfig.
PullDelivery = Literal["at_most_once", "at_least_once"]
PULL_DELIVERIES: Final = ("at_most_once", "at_least_once")
#: Which replicas a pull consumer reads from: see ConsumerConfig.
ReadFrom = Literal["master", "any"]
READ_FROM: Final = ("master", "any")

#: Whether one member or each client computes the assignment: see ReadingConfig.
Rebalance = Literal["group", "client"]


def reads_any(read_from: str) -> bool:
    """Return whether followers may be read from. Raises ConfigError for an unknown value."""
    if read_from not in READ_FROM:
        raise ConfigError(
            f"read_from is {read_from!r}, but must be one of {', '.join(READ_FROM)}",
            field="read_from",
            value=read_from,
        )
    return read_from == "any"


Config = TypeVar("Config", bound="ClientConfig")

#: Types of settings that are checked by their declaration. Other settings have their own checks.
_KINDS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "int": ((int,), "a whole number"),
    "int | None": ((int, type(None)), "a whole number or None"),
    "bool": ((bool,), "True or False"),
    "bool | None": ((bool, type(None)), "True, False or None"),
    "str": ((str,), "text"),
}


def settled(cls: type[Config], nameservers: str | None, settings: Mapping[str, Any]) -> Config:
    """Return the configuration CLS with SETTINGS, the keyword arguments of a client.

    NAMESERVERS: None: those of the environment. Raises ConfigError for wrong values and for unknown settings.
    """
    known = {field.name for field in fields(cls)}
    for name in settings.keys() - known:
        raise ConfigError(f"no setting {name!r}{nearest(name, known)}", field=name)
    return cls(**{**settings, "nameservers": named_or_default(nameservers)})


def _check_kinds(config: ClientConfig) -> None:
    """Raise ConfigError for a value of another type than declared."""
    for field in fields(config):
        value = getattr(config, field.name)
        kinds, wanted = _KINDS.get(str(field.type), ((object,), ""))
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            if object in kinds:
                continue
            hint = ""
            if field.name == "nameservers":
                hint = ', as in "10.0.0.1:9876,10.0.0.2:9876"'
            raise ConfigError(
                f"{field.name} is {value!r:.80}, but must be {wanted}{hint}",
                field=field.name,
                value=value,
            )


def _require_positive(config: Any, *may_be_zero: str) -> None:
    """Raise ConfigError for a number below 1, or below 0 if its name is in MAY_BE_ZERO."""
    for field in fields(config):
        value = getattr(config, field.name)
        least = 0 if field.name in may_be_zero else 1
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise ConfigError(
                f"{field.name} is {value}, but must be at least {least}",
                field=field.name,
                limit=least,
                value=value,
            )


def _check_group(group: str) -> None:
    """Raise ConfigError for an invalid name of a producer group. Empty: no group."""
    if group:
        try:
            check_group(group)
        except InvalidName as error:
            raise ConfigError(error.message, field="group", value=group) from error


class ClientSettings(TypedDict, total=False):
    """The keyword arguments of every client: see ClientConfig."""

    request_timeout_ms: int
    tls: bool | None
    tls_ca: str
    tls_cert: str
    tls_key: str
    user: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Settings of every kind of client."""

    nameservers: str = DEFAULT_NAME_SERVERS
    """Name servers, host:port, separated by commas. The client works while one of them answers."""
    request_timeout_ms: int = 5_000
    """Timeout of one request to a name server or a broker."""
    tls: bool | None = None
    """TLS to name servers and brokers. None: on if `tls_ca` or `tls_cert` is given; else as $POCKETMQ_TLS
    is set; else on if $POCKETMQ_TLS_CA or $POCKETMQ_TLS_CERT is set.
    """
    tls_ca: str = ""
    """PEM file of the trusted certificate authorities. Empty: $POCKETMQ_TLS_CA, else those of the
    system.
    """
    tls_cert: str = ""
    """PEM file of the client's certificate. Empty: $POCKETMQ_TLS_CERT, else no certificate."""
    tls_key: str = ""
    """PEM file of the certificate's key. Empty: $POCKETMQ_TLS_KEY."""
    user: str = ""
    """User that signs the calls, if the servers have users. Empty: $POCKETMQ_USER, else calls are
    not signed.
    """
    secret: str = dataclasses.field(default="", repr=False)
    """Secret of the user. Empty: $POCKETMQ_SECRET, or the first line of the file
    $POCKETMQ_SECRET_FILE.
    """

    def __post_init__(self) -> None:
        _check_kinds(self)
        parse_addresses(self.nameservers)
        self.trust.context()  # Raises here, where the files are named, if they cannot be used.
        _require_positive(self)

    @property
    def trust(self) -> Trust:
        """The TLS and user settings, completed from the environment. Raises ConfigError."""
        return Trust(
            tls=self.tls,
            ca=self.tls_ca,
            cert=self.tls_cert,
            key=self.tls_key,
            user=self.user,
            secret=self.secret,
        ).or_environment()


class ProducerSettings(ClientSettings, total=False):
    """The keyword arguments of a producer: see ProducerConfig."""

    acks: Acks | None
    idempotence: bool | None
    ordered: bool
    linger_ms: int
    batch_size: int
    batch_messages_max: int
    max_request_size: int
    buffer_memory: int
    max_block_ms: int
    max_in_flight: int
    delivery_timeout_ms: int
    route_timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    group: str
    queue_selector: QueueSelectorName | QueueSelector
    interceptors: Sequence[object]
    key_serializer: KeySerializer
    value_serializer: ValueSerializer
    compression: Compression | None
    compress_above_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer."""

    request_timeout_ms: int = 10_000
    """Timeout of one request with a batch. Longer than a broker waits for its disk (5 s), so that
    the producer gets the answer and does not send the batch twice.
    """
    acks: Acks | None = None
    """What an acknowledged message survives: "memory": kill -9; "disk": a power cut; "replicas" (in a replica set): the
    loss of a machine, if min_in_sync is at least 2. "none": no acknowledgements. None: the setting of the broker.
    """
    idempotence: bool | None = None
    """Number the batches of each queue, so that the broker drops duplicates. None: on, unless
    acks="none" or ordered=False.
    """
    ordered: bool = True
    """Send one batch per queue at a time, so that messages keep their order over retries."""
    linger_ms: int = 0
    """How long a batch for an idle queue waits for more messages. 0: it is sent immediately, and
    messages gather while other batches are in flight.
    """
    batch_size: int = 1024 * 1024
    """Maximum size of a batch in bytes. A larger message is sent alone."""
    batch_messages_max: int = 4_000
    """Maximum number of messages per batch."""
    max_request_size: int = 8 * 1024 * 1024
    """Maximum size of a request in bytes: a larger message is refused. A broker accepts 16 MiB
    (`broker.batch_max_bytes`).
    """
    buffer_memory: int = 32 * 1024 * 1024
    """Memory for unacknowledged messages in bytes. When it is full, senders wait up to
    `max_block_ms`.
    """
    max_block_ms: int = 60_000
    """How long a sender waits for free buffer memory before it gets `BufferFull`."""
    max_in_flight: int = 16
    """Maximum number of batches in flight per broker; one per queue, unless ordered=False."""
    delivery_timeout_ms: int = 30_000
    """Time from the call of `send` to the last try."""
    route_timeout_ms: int = 3_000
    """How long the producer looks for the route of a topic; never longer than `max_block_ms`."""
    retries: int = RETRIES_MAX
    """Maximum number of retries. By default `delivery_timeout_ms` ends them."""
    retry_backoff_ms: int = 50
    """Pause before the second try. It doubles with each try; a random part of up to half of it is
    left out.
    """
    retry_backoff_max_ms: int = 1_000
    """Longest pause between two tries."""
    group: str = ""
    """Name of the producers that share the state of transactions: a broker may ask any of them.
    Needed for transactions.
    """
    queue_selector: QueueSelectorName | QueueSelector = "round-robin"
    """How a queue is chosen for a message that does not name one: "round-robin", "sticky",
    "least-latency", "key-hash", "java-hash", or an object with `choose(message, queues)` and
    `for_a_run`.
    """
    interceptors: Sequence[object] = ()
    """Objects that are called before a message is sent and after it is acknowledged."""
    key_serializer: KeySerializer = "str"
    """How `send(topic, value, key=…)` converts keys to text."""
    value_serializer: ValueSerializer = "bytes"
    """How `send(topic, value)` converts values to bytes."""
    compression: Compression | None = "zlib"
    """How larger bodies are compressed: "zlib"; "lz4" and "zstd" with the extra `compression`;
    None: not.
    """
    compress_above_bytes: int = 4_096
    """Bodies of more bytes than this are compressed."""

    def __post_init__(self) -> None:
        _check_kinds(self)
        parse_addresses(self.nameservers)
        self.trust.context()
        check_acks(self.acks)
        _require_positive(
            self,
            "linger_ms",
            "max_block_ms",
            "retries",
            "retry_backoff_ms",
            "compress_above_bytes",
        )
        _check_group(self.group)
        check_queue_selector(self.queue_selector)
        check_interceptors(self.interceptors)
        check_compression(self.compression)
        key_encoder(self.key_serializer)
        value_encoder(self.value_serializer)
        self._check_idempotence()
        if self.linger_ms >= self.delivery_timeout_ms:
            raise ConfigError(
                f"linger_ms is {self.linger_ms}: it must be less than delivery_timeout_ms ({self.delivery_timeout_ms}),"
                " or messages expire before they are sent",
                field="linger_ms",
                limit=self.delivery_timeout_ms - 1,
                value=self.linger_ms,
            )

    def _check_idempotence(self) -> None:
        """Raise ConfigError if idempotence=True contradicts other settings."""
        if not self.idempotence:
            return
        if self.acks == "none":
            raise ConfigError(
                'idempotence=True needs acknowledgements, but acks is "none": change acks, or omit idempotence',
                field="idempotence",
            )
        if not self.ordered:
            raise ConfigError(
                "idempotence=True needs ordered=True: omit one of idempotence=True and ordered=False",
                field="idempotence",
            )

    @property
    def idempotent(self) -> bool:
        """Whether batches have sequence numbers, so that brokers drop duplicates."""
        if self.idempotence is not None:
            return self.idempotence
        return self.ordered and self.acks != "none"

    @property
    def batch_max_bytes(self) -> int:
        """Maximum size of a batch of several messages in bytes."""
        return min(self.batch_size, self.max_request_size)


class ReadingSettings(ClientSettings, total=False):
    """The keyword arguments of every consumer: see ReadingConfig."""

    start: Start
    enable_retries: bool
    fetch_max_bytes: int
    fetch_messages_max: int
    fetch_max_wait_ms: int
    check_crcs: bool
    body_max_bytes: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    auto_commit_interval_ms: int
    value_deserializer: ValueDeserializer
    broadcasting: bool
    strategy: str | type[Strategy] | Strategy
    rebalance: Rebalance
    instance_id: str
    room: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    nameserver_timeout_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingConfig(ClientConfig):
    """Settings of every consumer: where it starts, what it fetches, how it shares queues with its group."""

    MAY_BE_ZERO: ClassVar[tuple[str, ...]] = (
        "fetch_max_wait_ms",
        "retry_backoff_ms",
        "lease_ms",
        "nameserver_timeout_ms",
    )

    start: Start = "committed"
    """Where to start: at the committed offset, else at the oldest message or ("committed-or-latest") at the end;
    "earliest"; "latest"; or, in queues without a committed offset, at a time (Unix milliseconds).

    "earliest" and "latest" ignore committed offsets only if this consumer is the first of its group. A consumer that
    joins others continues where they are.
    """
    enable_retries: bool = True
    """Read the group's retry topic as well, which has the messages to be retried. If False, no
    message is retried.
    """
    fetch_max_bytes: int = 1024 * 1024
    """Maximum size of one fetch in bytes. One message is always returned, even if it is larger."""
    fetch_messages_max: int = 8_192
    """Maximum number of messages per fetch."""
    fetch_max_wait_ms: int = 20_000
    """How long a broker may wait for messages before it answers that there are none."""
    check_crcs: bool = True
    """Check the CRC of every body before the message is delivered, about 0.3 µs per message.
    Kafka's check.crcs.
    """
    body_max_bytes: int = BODY_BYTES_MAX
    """Maximum size of a decompressed body. A larger one raises `MessageTooLarge` when you read it.
    A compressed body can be a thousandth of that size.
    """
    retry_backoff_ms: int = 50
    """Pause after an error. It doubles with each error."""
    retry_backoff_max_ms: int = 1_000
    """Longest pause after an error."""
    auto_commit_interval_ms: int = 5_000
    """How often the offsets of processed messages are committed."""
    value_deserializer: ValueDeserializer = "bytes"
    """What `message.value` is: the body as bytes, text or JSON, or the result of your own function
    or object.
    """
    broadcasting: bool = False
    """Every member reads all queues, with its own offsets in a local file. Nothing is retried."""
    strategy: str | type[Strategy] | Strategy = "average"
    """How queues are assigned to members: a name, a class or an object. All members use the same."""
    rebalance: Rebalance = "group"
    """How queues are assigned. "group": one member for all; "client": each member computes its own
    share, as Apache RocketMQ clients do.
    """
    instance_id: str = ""
    """Static membership: a member that returns with the same id within the session keeps its
    queues. Empty: none.
    """
    room: str = ""
    """Data center or rack of the consumer, for strategies that use it."""
    session_timeout_ms: int = 60_000
    """Without a heartbeat for this time, a member is removed from the group. It sends three in this time."""
    rebalance_timeout_ms: int = 60_000
    """How long a member may take to finish the messages of a queue that is revoked."""
    nameserver_timeout_ms: int = 30_000
    """A consumer fails if no name server has ever answered within this time. 0: it waits without a limit."""
    lease_ms: int = 0
    """How long a broker assigns a queue to a member. Fetches renew it; a fetch that waits longer
    than 3/8 of it costs extra requests. 0: as the broker is set.
    """

    def __post_init__(self) -> None:
        _check_kinds(self)
        parse_addresses(self.nameservers)
        self.trust.context()
        _require_positive(self, *self.MAY_BE_ZERO)
        if isinstance(self.start, str) and self.start not in STARTS:
            raise ConfigError(
                f"start is {self.start!r}, but must be one of {', '.join(STARTS)}, a datetime or Unix milliseconds",
                field="start",
                value=self.start,
            )
        if isinstance(self.start, int):
            check_unix_ms(self.start, "start")
        strategy_named(self.strategy)
        value_decoder(self.value_deserializer)
        if self.rebalance not in ("group", "client"):
            raise ConfigError(
                f'rebalance is {self.rebalance!r}, but must be "group" or "client"',
                field="rebalance",
                value=self.rebalance,
            )


class ConsumerSettings(ReadingSettings, total=False):
    """The keyword arguments of a pull consumer: see ConsumerConfig."""

    delivery: PullDelivery
    auto_commit: bool
    read_from: ReadFrom
    max_poll_records: int | None
    max_poll_interval_ms: int
    prefetch_max_bytes: int
    offsets_folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ReadingConfig):
    """Settings of a pull consumer."""

    delivery: PullDelivery = "at_least_once"
    """What happens to messages in progress if the application dies. "at_least_once": they are
    redelivered. "at_most_once": they are committed before delivery, so that none is delivered
    twice.
    """
    auto_commit: bool = True
    """Commit the offsets of processed messages every `auto_commit_interval_ms`, and at the end."""
    read_from: ReadFrom = "master"
    """"any": messages come from a follower, if the broker has one. It has confirmed messages only:
    they are as safe, and a little later. Offsets, leases and filter statistics always come from the
    master.
    """
    max_poll_records: int | None = None
    """Maximum number of messages per poll. None: all that one fetch returned."""
    max_poll_interval_ms: int = 300_000
    """An application that does not poll for so long leaves the group until it polls again. Its
    messages may be redelivered to another member.
    """
    prefetch_max_bytes: int = 16 * 1024 * 1024
    """Maximum size of the messages that are fetched in advance."""
    offsets_folder: str = ""
    """Folder of the offsets of a broadcasting consumer. Empty: `.rocketmq_offsets` in the user's
    home.
    """

    def __post_init__(self) -> None:
        # Not `super()`: slots=True creates a new class, which `super()` does not know.
        ReadingConfig.__post_init__(self)
        if self.delivery not in PULL_DELIVERIES:
            raise ConfigError(
                f"delivery is {self.delivery!r}, but must be one of {', '.join(PULL_DELIVERIES)}",
                field="delivery",
                value=self.delivery,
            )
        reads_any(self.read_from)
        if self.delivery == "at_most_once" and not self.auto_commit:
            raise ConfigError(
                'delivery="at_most_once" commits before delivery, so auto_commit cannot be False: omit it',
                field="auto_commit",
                value=self.auto_commit,
            )
