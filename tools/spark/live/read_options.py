"""The options of `format("rocketmq")` for reading. Pure.

Names and meaning are those of Spark's Kafka source where it has them; docs/spark-options.md lists them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ....client.config import READ_FROM
from ....client.queue import Queue
from ....client.subscriptions import Filter, Sql, to_wire
from ....proto.errors import ConfigError, InvalidFilter, InvalidName
from ....proto.gen import pocketmq_v1_pb2 as pb
from ....proto.topics import check_group, check_topic
from ..option_reader import OptionReader
from .offsets import EARLIEST, LATEST, parse_assignment, parse_offsets
from .place import PLACE_OPTIONS, Place, place_of

READ_OPTIONS: Final = (
    *PLACE_OPTIONS,
    "subscribe",
    "topic",
    "assign",
    "subscribePattern",
    "subExpression",
    "filterType",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "consumerGroup",
    "group",
    "commitOffsets",
    "pullTimeoutMs",
    "pullBatchSize",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "readFrom",
    "schemaStyle",
    "includeHeaders",
)
STYLES: Final = ("rocketmq", "kafka")
MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000
PULL_TIMEOUT_MS: Final = 10_000
#: Limit of one fetch: the largest that a broker allows.
PULL_BATCH_SIZE: Final = 20_000
RETRIES: Final = 3
RETRY_INTERVAL_MS: Final = 1_000

Kind = Literal["earliest", "latest", "group", "offsets", "time", "times"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which queues are read: all of TOPICS; or of the topics whose whole name matches PATTERN; or just QUEUES."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: tuple[Queue, ...] = ()

    def matches(self, topic: str) -> bool:
        """Does the pattern match TOPIC?"""
        return re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True)
class Point:
    """Where reading begins or ends in each queue.

    offsets: NUMBERS, or EARLIEST or LATEST, by queue.  time: at the first message stored at TIME_MS or later.  times:
    the same, with an instant for each queue in NUMBERS.  LATEST_IF_NONE: at the end where none is so young; else that
    is an error.
    """

    kind: Kind
    numbers: Mapping[Queue, int] = field(default_factory=dict)
    time_ms: int = 0
    latest_if_none: bool = False
    #: The option that says it.
    option: str = ""


@dataclass(frozen=True, slots=True)
class Pulling:
    """How brokers are asked: times to wait, messages of one fetch, tries after the first and the pause between them;
    and which replicas have the messages."""

    timeout_ms: int = PULL_TIMEOUT_MS
    batch_size: int = PULL_BATCH_SIZE
    retries: int = RETRIES
    retry_interval_ms: int = RETRY_INTERVAL_MS
    read_from: str = "master"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is read, from where to where, and how."""

    place: Place
    choice: Choice
    wanted: Filter = None
    starting: Point
    ending: Point
    offsets_max: int | None = None
    offsets_min: int | None = None
    trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    partitions_min: int = 0
    records_max: int | None = None
    fail_on_data_loss: bool = True
    group: str = ""
    commits: bool = False
    pulling: Pulling = Pulling()
    style: str = "rocketmq"
    headers: bool = False

    @property
    def filter(self) -> pb.Filter | None:
        """The filter as it travels; None: every message."""
        wire = to_wire(self.wanted)
        return None if wire.kind == pb.Filter.ALL else wire


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Return what the options GIVEN say. Raises ConfigError, which names the option."""
    reader = OptionReader(given, READ_OPTIONS)
    group = _group(reader)
    options = ReadOptions(
        place=place_of(reader),
        choice=_choice(reader),
        wanted=_filter(reader),
        starting=_starting(reader, group, streaming=streaming),
        ending=_ending(reader, streaming=streaming),
        offsets_max=reader.number("maxOffsetsPerTrigger"),
        offsets_min=reader.number("minOffsetsPerTrigger"),
        trigger_delay_ms=reader.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        partitions_min=reader.number("minPartitions") or 0,
        records_max=reader.number("maxRecordsPerPartition"),
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
        group=group,
        commits=_commits(reader, group, streaming=streaming),
        pulling=_pulling(reader),
        style=reader.one_of("schemaStyle", STYLES, "rocketmq"),
        headers=reader.flag("includeHeaders", False),
    )
    _check_bounds(reader, options)
    return options


def schema_options(given: Mapping[str, str]) -> tuple[str, bool]:
    """Return style and headers of the options GIVEN, whatever else is there. Raises ConfigError for these."""
    names = ("schemaStyle", "includeHeaders")
    own = {
        name: value for name in names for key, value in given.items() if key.lower() == name.lower()
    }
    reader = OptionReader(own, names)
    return reader.one_of("schemaStyle", STYLES, "rocketmq"), reader.flag("includeHeaders", False)


def _check_bounds(reader: OptionReader, options: ReadOptions) -> None:
    least, most = options.offsets_min, options.offsets_max
    if least is not None and most is not None and least > most:
        raise reader.error(
            "minOffsetsPerTrigger", f"it must not be above maxOffsetsPerTrigger, {most}"
        )
    if options.pulling.read_from == "any" and options.place.are_brokers:
        raise reader.error(
            "readFrom", "name servers know the replicas: give nameServer, not endpoints"
        )
    if options.headers and options.style != "kafka":
        raise reader.error(
            "includeHeaders", "only schemaStyle=kafka has headers; properties are always there"
        )


def _choice(reader: OptionReader) -> Choice:
    names = ("subscribe", "topic", "assign", "subscribePattern")
    given = [name for name in names if reader.text(name) is not None]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "none is given"
        raise ConfigError(
            f"options subscribe (or topic), assign, subscribePattern: {what}, write exactly one",
            field="subscribe",
        )
    (name,) = given
    text = reader.text(name) or ""
    if name == "assign":
        return Choice(queues=parse_assignment(text, name))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise reader.error(name, f"it is not a regular expression ({error})") from None
        return Choice(pattern=text)
    try:
        topics = {check_topic(part.strip()) for part in text.split(",")}
    except InvalidName as error:
        raise reader.error(name, error.message) from None
    return Choice(topics=tuple(sorted(topics)))


def _filter(reader: OptionReader) -> Filter:
    kind = reader.one_of("filterType", ("TAG", "SQL92"), "TAG")
    text = reader.text("subExpression")
    if text is None:
        if kind == "SQL92":
            raise reader.error("filterType", "write the expression in subExpression")
        return None
    try:
        wanted: Filter = Sql(text) if kind == "SQL92" else text
        to_wire(wanted)
    except InvalidFilter as error:
        raise reader.error("subExpression", error.message) from None
    return wanted


def _group(reader: OptionReader) -> str:
    names = [name for name in ("consumerGroup", "group") if reader.text(name) is not None]
    if len(names) == 2:
        raise ConfigError(
            "options consumerGroup and group are the same: write one", field="consumerGroup"
        )
    if not names:
        return ""
    try:
        return check_group(reader.text(names[0]) or "")
    except InvalidName as error:
        raise reader.error(names[0], error.message) from None


def _commits(reader: OptionReader, group: str, *, streaming: bool) -> bool:
    commits = reader.flag("commitOffsets", bool(group) and streaming)
    if commits and not group:
        raise reader.error("commitOffsets", "name the group to commit for in consumerGroup")
    if commits and not streaming:
        raise reader.error(
            "commitOffsets", "a batch may run any number of times, and commits nothing"
        )
    return commits


def _pulling(reader: OptionReader) -> Pulling:
    retries = reader.number("fetchOffset.numRetries", least=0)
    return Pulling(
        timeout_ms=reader.number("pullTimeoutMs") or PULL_TIMEOUT_MS,
        batch_size=reader.number("pullBatchSize") or PULL_BATCH_SIZE,
        retries=RETRIES if retries is None else retries,
        retry_interval_ms=reader.duration_ms("fetchOffset.retryIntervalMs", RETRY_INTERVAL_MS),
        read_from=reader.one_of("readFrom", READ_FROM, "master"),
    )


def _starting(reader: OptionReader, group: str, *, streaming: bool) -> Point:
    strategy = reader.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    timed = _timed(
        reader, "startingTimestamp", "startingOffsetsByTimestamp", latest=strategy == "latest"
    )
    if timed is not None:
        return timed
    name = "startingOffsets"
    text = reader.text(name) or ("latest" if streaming else "earliest")
    word = text.lower()
    if word == "group" and not group:
        raise reader.error(name, "name the group whose offsets are meant in consumerGroup")
    if word == "latest" and not streaming:
        raise reader.error(name, "a batch cannot begin where the queues end")
    if word in ("earliest", "latest", "group"):
        return Point(word, option=name)  # type: ignore[arg-type]  # one of the three
    numbers = parse_offsets(text, name, least=EARLIEST)
    if not streaming and LATEST in numbers.values():
        raise reader.error(name, f"{LATEST} (latest): a batch cannot begin where a queue ends")
    return Point("offsets", numbers, option=name)


def _ending(reader: OptionReader, *, streaming: bool) -> Point:
    names = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    if streaming:
        for name in names:
            if reader.text(name) is not None:
                raise reader.error(name, "a stream has no end: leave it out, or read a batch")
    timed = _timed(reader, "endingTimestamp", "endingOffsetsByTimestamp", latest=True)
    if timed is not None:
        return timed
    text = reader.text("endingOffsets") or "latest"
    if text.lower() == "latest":
        return Point("latest", option="endingOffsets")
    if text.lower() == "earliest":
        raise reader.error("endingOffsets", "a batch cannot end where the queues begin")
    numbers = parse_offsets(text, "endingOffsets", least=EARLIEST)
    if EARLIEST in numbers.values():
        raise reader.error(
            "endingOffsets", f"{EARLIEST} (earliest): a batch cannot end where a queue begins"
        )
    return Point("offsets", numbers, option="endingOffsets")


def _timed(reader: OptionReader, for_all: str, by_queue: str, *, latest: bool) -> Point | None:
    """Return the point that one of two options says by time, the one FOR_ALL first; None: neither is given."""
    time_ms = reader.number(for_all, least=0)
    if time_ms is not None:
        return Point("time", time_ms=time_ms, latest_if_none=latest, option=for_all)
    text = reader.text(by_queue)
    if text is None:
        return None
    return Point("times", parse_offsets(text, by_queue), latest_if_none=latest, option=by_queue)
