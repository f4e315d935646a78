"""The options of `format("rocketmq")` for writing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ....client.compression import Compression
from ....client.producing.receipt import Acks
from ....proto.errors import ConfigError, InvalidName
from ....proto.topics import check_group, check_topic
from ..option_reader import OptionReader
from .place import PLACE_OPTIONS, Place, place_of

WRITE_OPTIONS: Final = (
    *PLACE_OPTIONS,
    "topic",
    "producerGroup",
    "acks",
    "sendTimeoutMs",
    "compressOverBytes",
    "compressType",
    "idempotence",
    "jobId",
    "keepQueues",
)
SEND_TIMEOUT_MS: Final = 120_000
COMPRESS_OVER_BYTES: Final = 4_096
_JOB_LENGTH_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where rows go, and how."""

    place: Place
    #: Where all rows go, whatever their own column says; empty: where that says.
    topic: str = ""
    group: str = ""
    acks: Acks | None = None
    send_timeout_ms: int = SEND_TIMEOUT_MS
    compression: Compression | None = "zlib"
    compress_above_bytes: int = COMPRESS_OVER_BYTES
    #: Have brokers drop what a repeated task sends again: asks for rows that come in the same order again.
    idempotence: bool = False
    #: Rows go to the queue that their columns queue and broker say.
    keep_queues: bool = False
    #: Name of the query in the keys of rows; empty: a new one for each write.
    job_id: str = ""


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return what the options GIVEN say. Raises ConfigError, which names the option."""
    reader = OptionReader(given, WRITE_OPTIONS)
    kind = reader.one_of("compressType", ("zlib", "lz4", "zstd", "none"), "zlib")
    acks = reader.one_of("acks", ("memory", "disk", "replicas", "broker"), "broker")
    above = reader.number("compressOverBytes", least=0)
    job_id = reader.text("jobId") or ""
    if len(job_id) > _JOB_LENGTH_MAX:
        raise reader.error("jobId", f"write {_JOB_LENGTH_MAX} characters at most")
    return WriteOptions(
        place=place_of(reader),
        topic=_name(reader, "topic"),
        group=_name(reader, "producerGroup"),
        acks=None if acks == "broker" else acks,  # type: ignore[arg-type]  # one of the choices
        send_timeout_ms=reader.number("sendTimeoutMs") or SEND_TIMEOUT_MS,
        compression=None if kind == "none" else kind,  # type: ignore[arg-type]  # one of the choices
        compress_above_bytes=COMPRESS_OVER_BYTES if above is None else above,
        idempotence=reader.flag("idempotence", False),
        keep_queues=reader.flag("keepQueues", False),
        job_id=job_id,
    )


def _name(reader: OptionReader, option: str) -> str:
    text = reader.text(option)
    if text is None:
        return ""
    try:
        return check_topic(text) if option == "topic" else check_group(text)
    except InvalidName as error:
        raise reader.error(option, error.message) from None


def refuse_overwrite(overwrite: bool) -> None:
    """Raise ConfigError for a save or output mode that would replace what is there."""
    if overwrite:
        raise ConfigError(
            'topics are only appended to: write with mode("append"), a stream with outputMode("append")',
            field="mode",
        )
