"""The bodies of `send_many`, and cutting messages into batches by record size.

`Bodies` creates a Message only on access. A list of 100,000 bodies is sent in slices, which are encoded column by
column (proto/body_run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Final, overload

from ...proto.body_run import BodyOrigin, encode_bodies
from ...proto.errors import InvalidArgument, MessageTooLarge
from ...proto.message_id import UniqueIdRow
from ...proto.properties import KEY_SEPARATOR, NAME_END, PAIR_END
from ...proto.record import Host
from ...proto.topics import MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX
from ..compression import Compressor
from ..config import ProducerConfig
from ..message import OWN_PROPERTIES_SIZE, RECORD_OVERHEAD, Message, record_size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Messages for which this is equal may be sent in one batch.
PLACE: Final = attrgetter("topic", "queue", "sharding_key", "priority")
#: Size of the property KEYS without the key.
_KEYS_SIZE: Final = len("KEYS") + 2
_SEPARATORS: Final = (KEY_SEPARATOR, NAME_END, PAIR_END)


class Bodies(Sequence[Message]):
    """Messages that differ only in their body and key. All else is that of `pattern`, a message without a key."""

    __slots__ = ("_flags", "_keys", "bodies", "pattern")

    def __init__(
        self,
        pattern: Message,
        bodies: list[bytes],
        keys: list[bytes] | None = None,
        flags: list[int] | None = None,
    ) -> None:
        """KEYS: one key per body, or None. FLAGS: how each body is compressed; None: no body is compressed.

        Checks nothing: `checked_bodies` does.
        """
        self.pattern = pattern
        self.bodies = bodies
        self._keys = keys
        self._flags = flags

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Bodies: ...
    def __getitem__(self, index: int | slice) -> Message | Bodies:
        if isinstance(index, slice):
            keys, flags = self._keys, self._flags
            return Bodies(
                self.pattern,
                self.bodies[index],
                None if keys is None else keys[index],
                None if flags is None else flags[index],
            )
        key = None if self._keys is None else self._keys[index]
        return self._message(self.bodies[index], key, self._flags[index] if self._flags else 0)

    def __iter__(self) -> Iterator[Message]:
        return map(
            self._message,
            self.bodies,
            repeat(None) if self._keys is None else self._keys,
            repeat(0) if self._flags is None else self._flags,
        )

    def _message(self, body: bytes, key: bytes | None, flag: int) -> Message:
        pattern = self.pattern
        if key is None:
            return pattern._replace(body=body, sys_flag=flag)
        string = pattern.property_string + b"KEYS\x01%s\x02" % key
        return pattern._replace(
            body=body, keys=(key.decode(),), property_string=string, sys_flag=flag
        )

    def select(self, indexes: Sequence[int]) -> Bodies:
        """Return the bodies with INDEXES."""
        keys, flags = self._keys, self._flags
        return Bodies(
            self.pattern,
            [self.bodies[index] for index in indexes],
            None if keys is None else [keys[index] for index in indexes],
            None if flags is None else [flags[index] for index in indexes],
        )

    def compressed(self, compressor: Compressor) -> Bodies:
        """Return these bodies, the large ones compressed."""
        if max(map(len, self.bodies), default=0) <= compressor.above_bytes:
            return self
        packed = [compressor.packed(body) for body in self.bodies]
        return Bodies(
            self.pattern, [body for body, _ in packed], self._keys, [flags for _, flags in packed]
        )

    def cut(self, bytes_max: int, count_max: int) -> Iterator[tuple[Bodies, int]]:
        """Yield slices of these bodies, each with the size of its records in bytes.

        A slice has up to COUNT_MAX bodies, and its size is less than BYTES_MAX, except for a slice of one body.
        """
        sizes = self._sizes()
        ends = sizes.cumsum()
        begin = before = 0
        while begin < len(sizes):
            fit = int(ends.searchsorted(before + bytes_max, "left"))
            end = max(begin + 1, min(fit, begin + count_max))
            until = int(ends[end - 1])
            yield self[begin:end], until - before
            begin, before = end, until

    def size_bytes(self) -> int:
        """Return the size of all records."""
        return int(self._sizes().sum())

    def _sizes(self) -> NDArray[np.int64]:
        """Return the size of each record."""
        import numpy as np  # Here, because programs that send few messages do not need it.

        sizes = np.fromiter(map(len, self.bodies), np.int64, len(self.bodies))
        pattern = self.pattern
        sizes += RECORD_OVERHEAD + len(pattern.topic) + len(pattern.property_string)
        if self._keys is not None:
            sizes += _KEYS_SIZE + np.fromiter(map(len, self._keys), np.int64, len(sizes))
        return sizes

    def encode(
        self, queue: int, born: tuple[int, Host], ids: UniqueIdRow, first_extra: bytes
    ) -> tuple[bytes, list[int]]:
        """Return the records for QUEUE, one after the other, and their sizes. BORN: birth time in ms, and host."""
        origin = BodyOrigin(self.pattern.topic, queue, *born, self.pattern.property_string)
        return encode_bodies(
            origin,
            self.bodies,
            ids,
            keys=self._keys,
            first_extra=first_extra,
            sys_flags=self._flags,
        )


def checked_bodies(
    pattern: Message, bodies: list[bytes], keys: Sequence[str] | None = None
) -> Bodies:
    """Return BODIES with KEYS, all else from PATTERN. Raises the errors that `Message` raises for such a message."""
    sizes = list(map(len, bodies))
    if bodies and not 0 < min(sizes) <= max(sizes) <= MESSAGE_SIZE_MAX:
        index = next(i for i, size in enumerate(sizes) if not 0 < size <= MESSAGE_SIZE_MAX)
        _refuse_body(index, sizes[index])
    if keys is None:
        return Bodies(pattern, bodies)
    check_count(bodies, keys)
    return Bodies(pattern, bodies, _encoded_keys(pattern, keys))


def check_count(bodies: Sequence[object], keys: Sequence[object]) -> None:
    """Raise InvalidArgument unless there is a key for each of BODIES."""
    if len(keys) != len(bodies):
        raise InvalidArgument(
            f"{len(bodies)} bodies but {len(keys)} keys: pass one key per body",
            field="keys",
        )


def _refuse_body(index: int, size: int) -> None:
    if size == 0:
        raise InvalidArgument(
            f"body {index} is empty: RocketMQ stores no empty messages. Send at least one byte.",
            field="bodies",
            index=index,
        )
    raise MessageTooLarge(
        f"body {index} has {size} bytes: the limit is {MESSAGE_SIZE_MAX}. Split it, or store it elsewhere and send"
        " its address.",
        field="bodies",
        index=index,
        limit=MESSAGE_SIZE_MAX,
        value=size,
    )


def _encoded_keys(pattern: Message, keys: Sequence[str]) -> list[bytes]:
    together = "".join(keys)
    if not all(keys) or any(separator in together for separator in _SEPARATORS):
        index, word = next(
            (i, key) for i, key in enumerate(keys) if not key or any(s in key for s in _SEPARATORS)
        )
        raise InvalidArgument(
            f"key {index} is {word!r}: a key must be one word. Spaces separate keys, so replace them.",
            field="keys",
            index=index,
            value=word,
        )
    encoded = list(map(str.encode, keys))
    limit = PROPERTIES_SIZE_MAX - OWN_PROPERTIES_SIZE - _KEYS_SIZE - len(pattern.property_string)
    longest = max(map(len, encoded), default=0)
    if longest > limit:
        raise MessageTooLarge(
            f"a key has {longest} bytes: the limit is {limit}, because keys, tag and properties share one limit. Move"
            " data into the body.",
            field="keys",
            limit=limit,
            value=longest,
        )
    return encoded


def records_size(messages: Sequence[Message]) -> int:
    """Return the size of the records of MESSAGES in bytes."""
    if isinstance(messages, Bodies):
        return messages.size_bytes()
    return sum(map(record_size, messages))


def parts_of(
    messages: Sequence[Message], config: ProducerConfig, size_of: Callable[[Message], int]
) -> Iterator[tuple[Sequence[Message], int]]:
    """Cut MESSAGES into parts that each fit into one batch; yield them with their sizes.

    SIZE_OF returns the size of one message. It raises MessageTooLarge for a message that fits into no batch.
    """
    limit, count_max = config.batch_max_bytes, config.batch_messages_max
    if isinstance(messages, Bodies):
        for bodies, size_bytes in messages.cut(limit, count_max):
            yield bodies, size_of(bodies[0]) if len(bodies) == 1 else size_bytes
        return
    for _, group in groupby(messages, PLACE):
        count = count_max
        while part := list(islice(group, count)):
            size_bytes = records_size(part)
            yield from _sized(part, size_bytes, limit, size_of)
            # Estimate how many messages the next part can have, from the mean size of these.
            count = max(1, min(count_max, limit * len(part) // size_bytes - 1))


def _sized(
    messages: list[Message], size_bytes: int, limit: int, size_of: Callable[[Message], int]
) -> Iterator[tuple[list[Message], int]]:
    """Halve MESSAGES, whose total size is SIZE_BYTES, until each part is smaller than LIMIT."""
    if len(messages) == 1:
        yield messages, size_of(messages[0])
        return
    if size_bytes < limit:
        yield messages, size_bytes
        return
    middle = len(messages) // 2
    first_bytes = records_size(messages[:middle])
    yield from _sized(messages[:middle], first_bytes, limit, size_of)
    yield from _sized(messages[middle:], size_bytes - first_bytes, limit, size_of)
