"""Delivered messages: a sequence that creates a message object on access, and columns with one field of all messages.

    batch = consumer.poll()
    for message in batch: ...                  # objects are created one by one
    batch.bodies[3], list(batch.bodies)        # bytes, copied on access
    batch.columns.queue_offset                 # one numpy array per field
    batch.body_matrix()                        # bodies of the same size: one row per body, without a copy
    batch.to_arrow()                           # a pyarrow.RecordBatch

A batch keeps the records of one fetch in memory. Its slices, columns and messages share them.

The columns of `to_arrow` (needs pyarrow, which is optional):

    queue_offset, log_offset    int64
    born, stored                timestamp in ms, UTC
    reconsume_times             int32
    tag                         string, null if there is no tag
    keys                        list of strings
    body                        binary, as it was sent; copied once

Cost per message: nothing for a slice, 0.1 µs to create the object or to copy the body, 0.2 µs for tag or keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import eq
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ..proto.byte_ranges import windows
from ..proto.errors import ConfigError, InvalidArgument
from ..proto.extras import pip_install
from ..proto.properties import KEY_SEPARATOR, KEYS, TAGS
from ..proto.property_ranges import PropertyRanges
from ..proto.record import SYS_COMPRESSED
from ..proto.record_run import RunColumns, as_bytes
from .received_message import FetchedRun, ReceivedMessage

if TYPE_CHECKING:
    import pyarrow


class MessageBatch(Sequence[ReceivedMessage]):
    """A sequence of messages: those of RUN with index BEGIN up to END (None: all). Equal to a list of the same."""

    __slots__ = ("_begin", "_columns", "_end", "_properties", "_run")

    def __init__(self, run: FetchedRun, begin: int = 0, end: int | None = None) -> None:
        self._run = run
        self._begin = begin
        self._end = len(run) if end is None else end
        self._columns: RunColumns | None = None
        self._properties: PropertyRanges | None = None

    def __len__(self) -> int:
        return max(0, self._end - self._begin)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return map(ReceivedMessage, repeat(self._run), range(self._begin, self._end))

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, index: slice) -> MessageBatch: ...
    def __getitem__(self, index: int | slice) -> ReceivedMessage | MessageBatch:
        """Return a message, or a batch for a slice. Raises InvalidArgument if the step of the slice is not 1."""
        rows = range(self._begin, self._end)[index]
        if isinstance(rows, int):
            return ReceivedMessage(self._run, rows)
        if rows.step != 1:
            raise InvalidArgument(
                f"step of the slice is {rows.step}: a batch supports only step 1. Use list(batch)[…].",
                field="step",
                limit=1,
                value=rows.step,
            )
        return MessageBatch(self._run, rows.start, rows.stop)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        if not self:
            return "<MessageBatch, no messages>"
        return f"<MessageBatch, {len(self)} messages from {self[0]!r} on>"

    @property
    def data(self) -> memoryview:
        """The records of one fetch, one after the other. Positions in the columns refer to it."""
        return memoryview(self._run.data)

    @property
    def broker(self) -> str:
        """The name of the broker of the messages."""
        return self._run.broker

    @property
    def columns(self) -> RunColumns:
        """One numpy array per field: queue_offset, log_offset, born_ms, store_ms, body_start, body_size, …"""
        if self._columns is None:
            columns = self._run.columns
            whole = len(self) == len(columns)
            self._columns = columns if whole else columns.take(slice(self._begin, self._end))
        return self._columns

    @property
    def bodies(self) -> BatchBodies:
        """The bodies as they were sent: a sequence."""
        return BatchBodies(self._run, self._begin, self._end)

    def body_matrix(self) -> NDArray[np.uint8]:
        """Return all bodies as a read-only matrix with one row per body.

        The bodies are copied only if the records differ in size. Raises InvalidArgument if the bodies differ in size,
        or if some are compressed. Use `bodies` then.
        """
        columns = self.columns
        if not len(self):
            return np.zeros((0, 0), np.uint8)
        if (columns.sys_flag & SYS_COMPRESSED).any():
            raise InvalidArgument("some bodies are compressed: use batch.bodies", field="bodies")
        size = int(columns.body_size[0])
        if (columns.body_size != size).any():
            least, most = int(columns.body_size.min()), int(columns.body_size.max())
            raise InvalidArgument(
                f"the bodies have between {least} and {most} bytes, but a matrix needs one size: use batch.bodies",
                field="bodies",
            )
        return _rows(as_bytes(self._run.data), columns.body_start, size)

    @property
    def tags(self) -> list[str | None]:
        """The tag of each message."""
        return self.property_values(TAGS)

    @property
    def keys(self) -> list[tuple[str, ...]]:
        """The keys of each message."""
        known: dict[str | None, tuple[str, ...]] = {None: ()}
        texts = self.property_values(KEYS)
        for text in set(texts) - {None}:
            assert text is not None
            known[text] = tuple(word for word in text.split(KEY_SEPARATOR) if word)
        return [known[text] for text in texts]

    def property_values(self, name: str) -> list[str | None]:
        """Return the property NAME of each message; None for messages without it."""
        if self._properties is None:
            self._properties = PropertyRanges(self._run.data, self.columns)
        return self._properties.texts(name)

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return the messages as a pyarrow.RecordBatch. The module docstring lists its columns.

        Raises ConfigError if pyarrow is not installed, and errors of decompression.
        """
        return _record_batch(self)


class BatchBodies(Sequence[bytes]):
    """The bodies of the messages of RUN with index BEGIN up to END, copied on access."""

    __slots__ = ("_begin", "_end", "_run")

    def __init__(self, run: FetchedRun, begin: int, end: int) -> None:
        self._run = run
        self._begin = begin
        self._end = end

    def __len__(self) -> int:
        return max(0, self._end - self._begin)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """Return a body. Raises CorruptRecord, Unsupported or MessageTooLarge if it cannot be decompressed."""
        rows = range(self._begin, self._end)[index]
        if isinstance(rows, int):
            return self._run.body(rows)
        return [self._run.body(row) for row in rows]

    def __iter__(self) -> Iterator[bytes]:
        run = self._run
        if run.any_compressed:
            return map(run.body, range(self._begin, self._end))
        rows = slice(self._begin, self._end)
        starts = run.columns.body_start[rows]
        ends = starts + run.columns.body_size[rows]
        return map(run.data.__getitem__, map(slice, starts.tolist(), ends.tolist()))


def _rows(data: NDArray[np.uint8], starts: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Return the SIZE bytes at each of STARTS, one row per start."""
    strides = np.diff(starts)
    if len(strides) and (strides != strides[0]).any():
        copied = windows(data, starts, size)
        copied.setflags(write=False)
        return copied
    stride = int(strides[0]) if len(strides) else size
    return np.ndarray((len(starts), size), np.uint8, data, int(starts[0]), (stride, 1))


#: The result of a poll without messages.
NO_MESSAGES = MessageBatch(FetchedRun("", b""))


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            f"to_arrow needs pyarrow, which is not installed: {pip_install('arrow')}",
            field="pyarrow",
        ) from error
    return pyarrow


def _record_batch(batch: MessageBatch) -> pyarrow.RecordBatch:
    """Return the messages of BATCH, one row per message. Raises ConfigError, and errors of decompression."""
    arrow = _pyarrow()
    columns = batch.columns
    instant = arrow.timestamp("ms", "UTC")
    fields = {
        "queue_offset": arrow.array(columns.queue_offset),
        "log_offset": arrow.array(columns.log_offset),
        "born": arrow.array(columns.born_ms).cast(instant),
        "stored": arrow.array(columns.store_ms).cast(instant),
        "reconsume_times": arrow.array(columns.reconsume_times),
        "tag": arrow.array(batch.tags, arrow.string()),
        "keys": arrow.array(batch.keys, arrow.list_(arrow.string())),
        "body": _bodies(arrow, batch),
    }
    return arrow.RecordBatch.from_pydict(fields)


def _bodies(arrow: Any, batch: MessageBatch) -> Any:
    """Copy the bodies into one buffer; return an Arrow array over it."""
    try:
        matrix = batch.body_matrix()
    except InvalidArgument:
        bodies = list(batch.bodies)
        data = b"".join(bodies)
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    else:
        data = matrix.tobytes()
        sizes = np.full(len(matrix), matrix.shape[1], np.int64)
    return arrow.Array.from_buffers(
        arrow.binary(), len(sizes), [None, arrow.py_buffer(_ends(sizes)), arrow.py_buffer(data)]
    )


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return where each value begins and where the last one ends. 32 bits are enough for one fetch."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))).astype(np.int32)
