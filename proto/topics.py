"""Names of topics and groups: the rules, the system topics, retry and dead-letter topics.

There are two rules. A *new* name has the characters that RocketMQ's TopicValidator allows. An *existing* name may be
any that a store can contain: RocketMQ's broker creates a topic with the name of its host, and older versions did not
check names. Calls that create something apply the first rule, all others the second one.

Source: TopicValidator and TopicConfigManager of RocketMQ 5.5.0; store-format.md §1, §6.3.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import InvalidName

TOPIC_LENGTH_MAX: Final = 127
#: `%RETRY%…` and `%DLQ%…` may be longer: they contain the name of a group, and for pop also of a topic.
DERIVED_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

MESSAGE_SIZE_MAX: Final = 4 * 1024 * 1024  # bytes of a body
RECORD_SIZE_MAX: Final = MESSAGE_SIZE_MAX + 64 * 1024  # bytes of an encoded record
PROPERTIES_SIZE_MAX: Final = 32767  # bytes; the length is a signed 16-bit field

PERMISSION_INHERIT: Final = 1
PERMISSION_WRITE: Final = 2
PERMISSION_READ: Final = 4
PERMISSION_ALL: Final = PERMISSION_READ | PERMISSION_WRITE

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
#: A topic of PocketMQ with a name like RocketMQ's system topics.
COMMIT_TOPIC: Final = f"{SYSTEM_PREFIX}ATOMIC_COMMITS"

#: The broker stores some positions as committed offsets of groups that have no consumers: the first dead letter that
#: was not purged, and the commit records whose offsets and messages are processed.
DEAD_LETTERS_GROUP: Final = "CID_RMQ_SYS_DEAD_LETTERS"
COMMIT_OFFSETS_GROUP: Final = "CID_RMQ_SYS_ATOMIC_OFFSETS"
COMMIT_COPIES_GROUP: Final = "CID_RMQ_SYS_ATOMIC_COPIES"
MARK_GROUPS: Final = frozenset({DEAD_LETTERS_GROUP, COMMIT_OFFSETS_GROUP, COMMIT_COPIES_GROUP})

_ROCKSDB_HALF = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
_ROCKSDB_OP_HALF = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        OP_HALF_TOPIC,
        _ROCKSDB_HALF,
        _ROCKSDB_OP_HALF,
        TRACE_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)

#: System topics that only the broker writes.
NOT_SENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        _ROCKSDB_HALF,
        _ROCKSDB_OP_HALF,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        "OFFSET_MOVED_EVENT",
        TIMER_TOPIC,
        COMMIT_TOPIC,
    }
)

_NEW_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_ALPHABET: Final = "letters, digits and _ - % |"
#: A topic is a folder of the store, so its name must not lead out of the parent folder. Tables of offsets have "@"
#: between topic and group, so a group may contain one: RocketMQ's proxy commits for `group@broadcast`.
_UNSAFE: Final = {
    "topic": re.compile(r"[/@\x00-\x1f\x7f-\x9f\ud800-\udfff]"),
    "group": re.compile(r"[/\x00-\x1f\x7f-\x9f\ud800-\udfff]"),
}
#: Bytes of an existing name: the limit of a folder's name.
NAME_SIZE_MAX: Final = 255


def check_topic(name: str) -> str:
    """Return NAME if a store can contain a topic of this name; raise InvalidName otherwise."""
    return _check_existing(name, "topic")


def check_group(name: str) -> str:
    """Return NAME if a store can contain a group of this name; raise InvalidName otherwise."""
    return _check_existing(name, "group")


def check_new_topic(name: str) -> str:
    """Return NAME if a topic of this name may be created; raise InvalidName otherwise."""
    derived = isinstance(name, str) and name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    return _check_new(name, "topic", DERIVED_TOPIC_LENGTH_MAX if derived else TOPIC_LENGTH_MAX)


def check_new_group(name: str) -> str:
    """Return NAME if a group of this name may be created; raise InvalidName otherwise."""
    return _check_new(name, "group", GROUP_LENGTH_MAX)


def _check_existing(name: str, what: str) -> str:
    if not isinstance(name, str):
        raise InvalidName(
            f"the {what}'s name is {name!r:.80} ({type(name).__name__}), but must be text",
            field=what,
        )
    if not name:
        raise InvalidName(f"the {what}'s name is empty", field=what)
    unsafe = _UNSAFE[what].search(name)
    if unsafe or name in (".", ".."):
        raise InvalidName(
            f"the {what}'s name {name[:80]!r} contains {unsafe[0] if unsafe else name!r}: a store cannot have it",
            field=what,
            value=name[:80],
        )
    size = len(name) if name.isascii() else len(name.encode())
    if size > NAME_SIZE_MAX:
        raise InvalidName(
            f"the {what}'s name has {size} bytes, the limit is {NAME_SIZE_MAX}: {name[:40]}…",
            field=what,
            limit=NAME_SIZE_MAX,
            value=size,
        )
    return name


def _check_new(name: str, what: str, length_max: int) -> str:
    _check_existing(name, what)
    if len(name) > length_max:
        raise InvalidName(
            f"the {what}'s name has {len(name)} characters, the limit is {length_max}: {name[:40]}…",
            field=what,
            limit=length_max,
            value=len(name),
        )
    if not _NEW_NAME.fullmatch(name):
        bad = next(character for character in name if not _NEW_NAME.match(character))
        raise InvalidName(
            f"the {what}'s name {name!r} contains {bad!r}: only {_ALPHABET} are allowed",
            field=what,
            value=name,
        )
    return name


def is_system_topic(name: str) -> bool:
    """Is NAME one of the topics that a broker creates for itself, whatever its cluster and name?"""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def retry_topic(group: str) -> str:
    """Return the topic in which failed messages of GROUP wait."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the dead-letter topic of GROUP."""
    return DEAD_LETTER_PREFIX + group


def system_topic_queues(cluster: str, broker: str) -> list[tuple[str, int, int]]:
    """Return (name, number of queues, permission) of each topic that a broker of 5.5.0 creates at its start."""
    inherit_all = PERMISSION_ALL | PERMISSION_INHERIT
    return [
        (SELF_TEST_TOPIC, 1, PERMISSION_ALL),
        (AUTO_CREATE_TOPIC, 8, inherit_all),
        ("BenchmarkTest", 1024, PERMISSION_ALL),
        (cluster, 16, inherit_all),
        (broker, 1, inherit_all),
        ("OFFSET_MOVED_EVENT", 1, PERMISSION_ALL),
        (SCHEDULE_TOPIC, 18, PERMISSION_ALL),
        (f"{cluster}_REPLY_TOPIC", 1, PERMISSION_ALL),
        (f"{SYSTEM_PREFIX}REVIVE_LOG_{cluster}", 8, PERMISSION_ALL),
        (f"{SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, PERMISSION_INHERIT),
        (HALF_TOPIC, 1, PERMISSION_ALL),
        (OP_HALF_TOPIC, 1, PERMISSION_ALL),
        (_ROCKSDB_HALF, 1, PERMISSION_ALL),
        (_ROCKSDB_OP_HALF, 1, PERMISSION_ALL),
        (TIMER_TOPIC, 1, PERMISSION_ALL),
    ]
