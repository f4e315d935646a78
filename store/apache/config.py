"""The configuration files of a store as a RocketMQ broker has them in memory after loading.

A file that does not parse is deleted and its `.bak` is read; if that fails as well, the broker does not start. If both
are missing, defaults apply. Values are plain JSON with strings as keys, as `java-store dump` prints them.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ...proto.topics import system_topic_queues
from ..disk import Disk
from ..format import state_tables
from ..format.java_json import parse_object
from ..offsets_file import offsets_file
from .config_beans import counts, filters, orders, queue_mappings, request_modes
from .files import StartRefused
from .settings import ApacheSettings

T = TypeVar("T")

#: Groups that each broker has.
BUILT_IN_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
_DEAD_AFTER_LOAD_MS: Final = 30_000


@dataclass(slots=True)
class JavaConfig:
    """The tables, named as in the `config` key of the dump."""

    topics: dict[str, state_tables.TopicConfig] = field(default_factory=dict)
    topics_version: state_tables.DataVersion = field(default_factory=state_tables.DataVersion)
    groups: dict[str, state_tables.GroupConfig] = field(default_factory=dict)
    groups_version: state_tables.DataVersion = field(default_factory=state_tables.DataVersion)
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)
    consumer_offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    consumer_offsets_version: state_tables.DataVersion = field(
        default_factory=state_tables.DataVersion
    )
    delay_offsets: dict[int, int] = field(default_factory=dict)
    order: dict[str, Any] = field(default_factory=dict)
    filters: dict[str, Any] = field(default_factory=dict)
    request_modes: dict[str, Any] = field(default_factory=dict)
    queue_mappings: dict[str, Any] = field(default_factory=dict)
    queue_mappings_version: state_tables.DataVersion = field(
        default_factory=state_tables.DataVersion
    )
    timers_pending: dict[str, int] = field(default_factory=dict)

    def topic_attributes(self, topic: str) -> dict[str, str]:
        """Return the attributes of TOPIC, none for an unknown one."""
        config = self.topics.get(topic)
        return {} if config is None else config.attributes

    def to_json(self) -> dict[str, Any]:
        """Return the dump's `config` value."""
        return {
            "topics": {name: topic.to_json() for name, topic in self.topics.items()},
            "topicsDataVersion": self.topics_version.to_json(),
            "subscriptionGroups": {name: group.to_json() for name, group in self.groups.items()},
            "forbidden": self.forbidden,
            "consumerOffsets": _string_keys(self.consumer_offsets),
            "consumerOffsetsDataVersion": self.consumer_offsets_version.to_json(),
            "pullOffsets": {},  # RocketMQ writes them and never reads them back.
            "delayOffsets": _string_keys(self.delay_offsets),
            "consumerOrder": {
                "orderInfoCount": len(self.order),
                "orderedConsumptionLevel": "QUEUE",
                "table": _string_keys(self.order),
            },
            "consumerFilter": {"filterDataByTopic": _string_keys(self.filters)},
            "messageRequestMode": _string_keys(self.request_modes),
            "topicQueueMapping": {
                "dataVersion": self.queue_mappings_version.to_json(),
                "topicQueueMappingInfoMap": _string_keys(self.queue_mappings),
            },
        }


def _string_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _string_keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_string_keys(item) for item in value]
    return value


class ConfigLoader:
    """Loads the files in the order of RocketMQ's broker: first `metadata`; the rest after the message store.

    ASIDE is a folder for files that do not parse; without it they are deleted, as in RocketMQ.
    WARNINGS: with this list, readable entries are used although RocketMQ would drop the complete file, and the list
    names the entries that are left out. Without it the tables are exactly those of RocketMQ's broker.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        settings: ApacheSettings,
        now_ms: int,
        *,
        aside: str | None = None,
        warnings: list[str] | None = None,
    ) -> None:
        self._disk = disk
        self._aside = aside
        self._warnings = warnings
        self._root = root
        self._folder = posixpath.join(root, "config")
        self._settings = settings
        self._now_ms = now_ms

    def metadata(self) -> JavaConfig:
        """Return the tables that the broker loads before the message store; `StartRefused` if one cannot be read."""
        fresh = state_tables.DataVersion(0, 0, self._now_ms)
        config = JavaConfig(
            topics=system_topics(self._settings),
            topics_version=fresh,
            groups=_built_in_groups(),
            consumer_offsets_version=fresh,
            queue_mappings_version=fresh,
        )
        topics = self._load("topics.json", state_tables.parse_topics)
        if topics is not None:
            config.topics |= topics.topics
            config.topics_version = topics.version
        mappings = self._load("topicQueueMapping.json", _queue_mappings)
        if mappings is not None:
            config.queue_mappings, config.queue_mappings_version = mappings
        offsets = self._load(
            offsets_file(self._disk, self._root), state_tables.parse_consumer_offsets
        )
        if offsets is not None:
            config.consumer_offsets = offsets.offsets
            config.consumer_offsets_version = offsets.version
        groups = self._load("subscriptionGroup.json", state_tables.parse_groups)
        if groups is not None:
            config.groups |= groups.groups
            config.groups_version = groups.version
            config.forbidden = groups.forbidden
        self._load_consumers(config)
        return config

    def _load_consumers(self, config: JavaConfig) -> None:
        dead_since_ms = self._now_ms - _DEAD_AFTER_LOAD_MS
        config.filters = (
            self._load(
                "consumerFilter.json", lambda text: filters(parse_object(text), dead_since_ms)
            )
            or {}
        )
        found = self._load("consumerOrderInfo.json", lambda text: orders(parse_object(text)))
        config.order = _known_orders(found or {}, config)

    def timers(self, config: JavaConfig) -> bool:
        """Load the numbers of pending timers; return False where RocketMQ's load does."""
        try:
            found = self._load("timermetrics", lambda text: counts(parse_object(text)))
        except StartRefused:
            return False
        config.timers_pending = found or {}
        return True

    def delays(self, config: JavaConfig) -> None:
        """Load the delivery progress of the delay levels."""
        table = self._load("delayOffset.json", state_tables.parse_delay_offsets)
        config.delay_offsets = {} if table is None else table.offsets

    def request_modes(self, config: JavaConfig) -> None:
        """Load request modes and open transactions; the broker starts even if one of these files is broken."""
        with contextlib.suppress(StartRefused):
            self._load("transactionMetrics", parse_object)
        with contextlib.suppress(StartRefused):
            modes = self._load(
                "messageRequestMode.json", lambda text: request_modes(parse_object(text))
            )
            config.request_modes = modes or {}

    def _load(self, name: str, parse_text: Callable[[str], T]) -> T | None:
        path = posixpath.join(self._folder, name)
        data = b""
        if self._disk.exists(path):
            data = self._disk.read(path)
            if data:
                with contextlib.suppress(ValueError):  # RocketMQ continues with the backup.
                    return self._parsed(path, data, parse_text)
            self._remove(path)
        backup = path + ".bak"
        copy = self._disk.read(backup) if self._disk.exists(backup) else b""
        if copy:
            with contextlib.suppress(ValueError):
                return self._parsed(path, copy, parse_text)
        if self._warnings is not None:
            for one in filter(None, (data, copy)):
                with contextlib.suppress(ValueError):
                    return self._readable(path, one, parse_text)
        if copy:
            reason = f"{path} and its .bak cannot be read: repair one of them"
            raise StartRefused(reason=reason)
        if data and self._warnings is not None:
            self._warnings.append(f"{path} cannot be read and has no .bak: it is treated as empty")
        return None

    def _readable(self, path: str, data: bytes, parse_text: Callable[[str], T]) -> T | None:
        """Return the content of DATA without the unreadable entries, which the warnings name."""
        found = _parsed(data, parse_text)
        dropped = (
            "; Apache RocketMQ's broker drops the complete file" if self._aside is None else ""
        )
        if self._warnings is not None:
            self._warnings += (
                f"{path}: the entry {name[:200]!r} is left out: {one.reason}{dropped}"
                for name, one in getattr(found, "unread", {}).items()
            )
        return found

    def _parsed(self, path: str, data: bytes, parse_text: Callable[[str], T]) -> T | None:
        """Return the content of DATA. For RocketMQ's broker, one unreadable entry makes the complete file invalid."""
        if self._aside is not None:
            return self._readable(path, data, parse_text)
        found = _parsed(data, parse_text)
        if getattr(found, "unread", None):
            raise ValueError("an entry cannot be read")
        return found

    def _remove(self, path: str) -> None:
        if self._aside is None or not self._disk.size(path):
            self._disk.delete(path)
            return
        self._disk.make_folders(self._aside)
        name = f"{posixpath.basename(path)}.1"
        self._disk.rename(path, posixpath.join(self._aside, name))


def _parsed(data: bytes, parse_text: Callable[[str], T]) -> T | None:
    """Return the content of DATA; fastjson treats zero bytes around it as spaces, and `null` as nothing."""
    text = data.decode("utf-8", "replace").strip("\0")
    return None if text.strip() == "null" else parse_text(text)


def _queue_mappings(text: str) -> tuple[dict[str, Any], state_tables.DataVersion]:
    document = parse_object(text)
    return queue_mappings(document), state_tables.DataVersion.of(document)


def _known_orders(table: dict[str, Any], config: JavaConfig) -> dict[str, Any]:
    """Return the state of orderly consumption for existing topics, queues and groups."""
    kept: dict[str, Any] = {}
    for key, queues in table.items():
        topic, at, group = str(key).partition("@")
        if not at or "@" in group:
            kept[key] = queues
            continue
        known = config.topics.get(topic)
        if known is None or group not in config.groups or not queues:
            continue
        kept[key] = {q: info for q, info in queues.items() if int(q) < known.read_queues}
    return kept


def system_topics(settings: ApacheSettings) -> dict[str, state_tables.TopicConfig]:
    """Return the topics that a broker creates before it reads topics.json."""
    found: dict[str, state_tables.TopicConfig] = {}
    for name, queues, permission in system_topic_queues(settings.cluster, settings.broker):
        found[name] = state_tables.TopicConfig(
            name=name, read_queues=queues, write_queues=queues, permission=permission
        )
    _adjust(found, settings)
    return found


def _adjust(topics: dict[str, state_tables.TopicConfig], settings: ApacheSettings) -> None:
    """Apply the settings that switch system topics or change their queues."""

    def put(name: str, queues: int, permission: int) -> None:
        topics[name] = state_tables.TopicConfig(
            name=name, read_queues=queues, write_queues=queues, permission=permission
        )

    put("TBW102", settings.topic_queues, 7)
    put(f"rmq_sys_REVIVE_LOG_{settings.cluster}", settings.revive_queues, 6)
    if not settings.auto_create_topic:
        del topics["TBW102"]
    if not settings.cluster_topic:
        put(settings.cluster, 16, 1)
    if not settings.broker_topic:
        put(settings.broker, 1, 1)
    if settings.trace_topic:
        put(settings.trace_topic_name, 1, 6)
    if not settings.timer_wheel:
        topics.pop("rmq_sys_wheel_timer", None)


def _built_in_groups() -> dict[str, state_tables.GroupConfig]:
    return {
        name: state_tables.GroupConfig(name=name, consume_broadcast_enable=True)
        for name in BUILT_IN_GROUPS
    }
