"""Every setting is read by the code: none is accepted and then has no effect."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from typing import Any

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.replication.config import ReplicationConfig
from pocketmq.client.config import ConsumerConfig, ProducerConfig
from pocketmq.nameserver.config import NameServerConfig
from pocketmq.store.config import StoreConfig

from .structure import sources

CONFIGS: dict[type[Any], str] = {
    BrokerConfig: "broker/config.py",
    ConsumerConfig: "client/config.py",
    NameServerConfig: "nameserver/config.py",
    ProducerConfig: "client/config.py",
    ReplicationConfig: "broker/replication/config.py",
    StoreConfig: "store/config.py",
}

#: Read by a method of the class itself.
READ_BY_THE_CLASS = {"peers_tls", "peers_tls_ca"}


@cache
def attributes_outside(own: str) -> frozenset[str]:
    """Return the attributes that product code names, without the file OWN."""
    texts = (one.path.read_text("utf-8") for one in sources() if not str(one.path).endswith(own))
    return frozenset(name for text in texts for name in re.findall(r"\.([a-z_]\w*)", text))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_setting_is_read(config: type[Any]) -> None:
    used = attributes_outside(CONFIGS[config])

    assert {one.name for one in fields(config)} - used <= READ_BY_THE_CLASS
