"""Settings of replicas: what is refused, with its key and what helps."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.broker.replication.config import ReplicationConfig
from pocketmq.proto.errors import ConfigError

GIVEN: dict[str, Any] = {"replica_set": "orders", "replica_id": 1, "zookeeper": ("host:2181",)}


def test_a_replica_is_dialled_where_it_listens_unless_it_says_otherwise() -> None:
    def address(**changes: Any) -> str:
        config = ReplicationConfig(**{**GIVEN, **changes})
        settings = config.settings(
            cluster="c", client_address="127.0.0.1:8081", file_size=1024, flush_sync=False
        )
        assert settings.reached_at == "127.0.0.1:8081"
        return settings.address

    assert address(listen="127.0.0.1:9000") == "127.0.0.1:9000"
    assert address(listen="127.0.0.1:9000", address="tunnel:1") == "tunnel:1"
    assert ReplicationConfig(**GIVEN, listen="[::1]:9000").place == ("::1", 9000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replica_id": 0}, "replication.replica_id is 0: each replica needs its own id"),
        ({"replica_set": "a b"}, "replication.replica_set is not a valid name: the topic's name"),
        ({"zookeeper": ()}, "replication.zookeeper is empty"),
        ({"zookeeper": ("host",)}, "replication.zookeeper is 'host': must be host:port"),
        ({"listen": "here"}, "replication.listen is 'here': must be host:port"),
        ({"listen": "127.0.0.1:0"}, "replication.listen is 127.0.0.1:0: other replicas dial it"),
        ({"listen": "0.0.0.0:8082"}, "which other machines reach"),
        (
            {"tls_cert": "a.pem", "tls_key": "b.pem"},
            "replication.tls_ca is empty: set all of tls_cert",
        ),
        ({"address": "host:0"}, "replication.address is host:0"),
        ({"min_in_sync": 0}, "replication.min_in_sync is 0: must be at least 1"),
        ({"session_ms": 10}, "replication.session_ms is 10: must be at least 500"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        ReplicationConfig(**{**GIVEN, **changes})
