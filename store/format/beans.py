"""Fields of the JSON objects in RocketMQ's configuration files.

A missing or null field has its default. A field of another kind is a ValueError.
"""

from __future__ import annotations

from typing import Final

from .java_json import Json, parse

Object = dict[str | int, Json]

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


def document_of(text: str) -> Object:
    return bean_of(parse(text), "the file")


def bean_of(value: Json, name: object) -> Object:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {type(value).__name__}, not an object")
    return value


def object_field(bean: Object, name: str) -> Object:
    value = bean.get(name)
    return {} if value is None else bean_of(value, name)


def whole(value: Json, name: object) -> int:
    if isinstance(value, str) and value.removeprefix("-").isdecimal():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, not an integer")
    return value


def int_field(bean: Object, name: str, default: int) -> int:
    """Return field NAME, a 32-bit integer. A value out of range, which RocketMQ never writes, becomes the nearest."""
    value = bean.get(name)
    return default if value is None else min(max(whole(value, name), -INT_MAX - 1), INT_MAX)


def long_field(bean: Object, name: str, default: int) -> int:
    value = bean.get(name)
    return default if value is None else within_long(whole(value, name))


def within_long(value: int) -> int:
    return min(max(value, -LONG_MAX - 1), LONG_MAX)


def bool_field(bean: Object, name: str, default: bool) -> bool:
    value = bean.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, not true or false")
    return value


def str_field(bean: Object, name: str, default: str) -> str:
    value = bean.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, not a string")
    return value


def strings_field(bean: Object, name: str) -> dict[str, str]:
    return {str(key): str(value) for key, value in object_field(bean, name).items()}


def int_map(bean: Object) -> dict[int, int]:
    return {whole(key, "a key"): within_long(whole(value, key)) for key, value in bean.items()}
