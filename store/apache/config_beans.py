"""The JSON objects in RocketMQ's smaller configuration files, as RocketMQ reads and writes them. No input or output.

Unknown fields are dropped, missing ones get their defaults, and fields without a value (None) are not written. A value
of the wrong type is a ValueError.
"""

from __future__ import annotations

from typing import Any, Final

Bean = dict[Any, Any]

_MAPPING: Final[Bean] = {
    "bname": None,
    "currIdMap": {},
    "dirty": False,
    "epoch": 0,
    "hostedQueues": {},
    "scope": "__global__",
    "topic": None,
    "totalQueues": 0,
}
_MAPPING_ITEM: Final = {
    "bname": None,
    "endOffset": -1,
    "gen": 0,
    "logicOffset": 0,
    "queueId": 0,
    "startOffset": 0,
    "timeOfEnd": -1,
    "timeOfStart": -1,
}
_FILTER: Final = {
    "bloomFilterData": None,
    "bornTime": 0,
    "clientVersion": 0,
    "consumerGroup": None,
    "deadTime": 0,
    "expression": None,
    "expressionType": None,
    "topic": None,
}
_BLOOM: Final = {"bitNum": 0, "bitPos": None}
_ORDER: Final = {
    "a": None,
    "cm": 0,
    "i": None,
    "l": 0,
    "o": None,
    "oc": None,
    "ot": None,
    "popTime": 0,
}
_REQUEST_MODE: Final = {
    "consumerGroup": None,
    "mode": "PULL",
    "popShareQueueNum": 0,
    "topic": None,
}


def child(bean: Bean, name: str) -> Bean:
    """Return the object NAME of BEAN; an empty one if it is missing."""
    value = _of_kind(bean, dict).get(name)
    return {} if value is None else _of_kind(value, dict)


def _of_kind(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    return value


def _shaped(bean: Any, fields: Bean) -> Bean:
    """Return BEAN with FIELDS and nothing else."""
    found = _of_kind(bean, dict)
    values = {name: found.get(name, default) for name, default in fields.items()}
    for name, default in fields.items():
        if isinstance(default, int) and not isinstance(values[name], int | str):
            raise ValueError(f"{name} is {values[name]!r}")
    return {name: value for name, value in values.items() if value is not None}


def queue_mappings(document: Bean) -> Bean:
    """Return the static topics of topicQueueMapping.json."""
    found = {}
    for topic, bean in child(document, "topicQueueMappingInfoMap").items():
        mapping = _shaped(bean, _MAPPING)
        mapping["hostedQueues"] = {
            queue: [_shaped(item, _MAPPING_ITEM) for item in _of_kind(items, list)]
            for queue, items in child(mapping, "hostedQueues").items()
        }
        found[topic] = mapping
    return found


def filters(document: Bean, dead_since_ms: int) -> Bean:
    """Return the filters of consumerFilter.json. Live consumers are treated as dead since DEAD_SINCE_MS."""
    found = {}
    for topic, bean in child(document, "filterDataByTopic").items():
        groups = {
            group: _filter(one, dead_since_ms)
            for group, one in child(bean, "groupFilterData").items()
        }
        found[topic] = _shaped(bean, {"topic": None}) | {"groupFilterData": groups}
    return found


def _filter(bean: Bean, dead_since_ms: int) -> Bean:
    shaped = _shaped(bean, _FILTER)
    if "bloomFilterData" in shaped:
        shaped["bloomFilterData"] = _shaped(shaped["bloomFilterData"], _BLOOM)
    born_ms, dead_ms = int(shaped["bornTime"]), int(shaped["deadTime"])
    if dead_ms == 0:
        shaped["deadTime"] = dead_ms = max(dead_since_ms, born_ms)
    return shaped | {"dead": dead_ms >= born_ms}


def orders(document: Bean) -> Bean:
    """Return the state of orderly consumption from consumerOrderInfo.json."""
    return {
        key: {queue: _shaped(one, _ORDER) for queue, one in _of_kind(queues, dict).items()}
        for key, queues in child(document, "table").items()
    }


def request_modes(document: Bean) -> Bean:
    """Return the modes of messageRequestMode.json."""
    return {
        topic: {group: _shaped(one, _REQUEST_MODE) for group, one in _of_kind(groups, dict).items()}
        for topic, groups in child(document, "messageRequestModeMap").items()
    }


def counts(document: Bean) -> dict[str, int]:
    """Return the number of pending timers of each topic, from timermetrics."""
    found = child(document, "timingCount").items()
    return {str(topic): int(_shaped(one, {"count": 0})["count"]) for topic, one in found}
