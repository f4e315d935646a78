"""Settings of a broker: what is refused, and with which words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.proto.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"port": 65536}, "broker.port is 65536"),
        ({"port": -1}, "broker.port is -1"),
        ({"name": "a b"}, "broker.name"),
        ({"cluster": ""}, "broker.cluster"),
        ({"default_topic_queues": 0}, "broker.default_topic_queues is 0: must be at least 1"),
        ({"fetch_default_bytes": 8 << 20}, "must not exceed fetch_max_bytes"),
        ({"nameservers": ("localhost",)}, "broker.nameservers: 'localhost' is not host:port"),
        ({"nameservers": ("a:1", "b:0")}, "'b:0'"),
        ({"advertised_address": "10.0.0.1"}, "broker.advertised_address"),
        ({"host": "0.0.0.0"}, "set broker.advertised_address"),
        ({"host": "::"}, "set broker.advertised_address"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_by_name(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        BrokerConfig(**settings)  # type: ignore[arg-type]

    assert raised.value.details["field"] in settings or "host" in settings


@pytest.mark.parametrize(
    ("settings", "store_host"),
    [
        ({}, "127.0.0.1"),
        ({"host": "10.0.0.7"}, "10.0.0.7"),
        ({"host": "0.0.0.0", "advertised_address": "10.0.0.8:9000"}, "10.0.0.8"),
        ({"host": "::1"}, "127.0.0.1"),
        ({"host": "10.0.0.7", "advertised_address": "broker.example:9000"}, "127.0.0.1"),
        ({"nameservers": ("[::1]:9876", "ns.example:9876")}, "127.0.0.1"),
    ],
    ids=str,
)
def test_records_carry_the_ipv4_address_that_clients_reach(
    settings: dict[str, object], store_host: str
) -> None:
    assert BrokerConfig(**settings).store_host == store_host  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.processes
def test_a_broker_comes_from_its_package_and_its_settings_come_without_it() -> None:
    code = (
        "import sys; from pocketmq.broker import BrokerConfig;"
        "assert 'pocketmq.broker.broker' not in sys.modules;"
        "from pocketmq.broker import Broker; assert Broker.build"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
