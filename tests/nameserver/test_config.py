"""Settings of a name server that make no sense are refused by name."""

from __future__ import annotations

import pytest

from pocketmq.nameserver import NameServerConfig
from pocketmq.proto.errors import ConfigError


def test_the_defaults_are_those_of_rocketmq_on_loopback() -> None:
    config = NameServerConfig()

    assert (config.host, config.port, config.broker_expiry_ms) == ("127.0.0.1", 9876, 120_000)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", ""),
        ("port", -1),
        ("port", 65_536),
        ("broker_expiry_ms", 0),
        ("scan_interval_ms", 0),
        ("brokers_max", 0),
        ("topics_per_broker_max", 0),
        ("topics_per_route_max", 0),
        ("request_size_max_bytes", 1023),
    ],
)
def test_nonsense_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"nameserver\.{key} is "):
        NameServerConfig(**{key: value})  # type: ignore[arg-type]
