"""Names that changed before the first release. Errors about an old name give the new one."""

from __future__ import annotations

from typing import Final

#: Old and new keys of settings, of servers and of clients. They apply only to sections that have the new key.
SETTINGS: Final = {
    "apache_followers": "java_slaves",
    "apache_host": "java_slaves_host",
    "apache_port": "java_slaves_port",
    "authorities": "tls_ca",
    "body_bytes_max": "body_max_bytes",
    "ca": "tls_ca",
    "cert": "tls_cert",
    "certificate": "tls_cert",
    "delay_pause_ms": "delay_batch_ms",
    "fetch_bytes_default": "fetch_default_bytes",
    "fetch_bytes_max": "fetch_max_bytes",
    "fetch_wait_ms": "fetch_max_wait_ms",
    "held_bytes_max": "pending_max_bytes",
    "invisible_ms_min": "invisible_min_ms",
    "key": "tls_key",
    "peers_ca": "peers_tls_ca",
    "prefetch_bytes_max": "prefetch_max_bytes",
    "produce_runs_in_flight": "produce_batches_in_flight",
    "queue_bytes_max": "queue_max_bytes",
    "queue_choice": "queue_selector",
    "queue_span_max": "offset_span_max",
    "replicas_need": "replica_ack",
    "retries": "enable_retries",
    "run_bytes_max": "batch_max_bytes",
    "tls_certificate": "tls_cert",
    "tls_client_ca": "tls_ca",
    "zookeeper_ca": "zookeeper_tls_ca",
    "zookeeper_certificate": "zookeeper_tls_cert",
    "zookeeper_key": "zookeeper_tls_key",
}

#: Old and new classes of `pocketmq.client`.
CLASSES: Final = {
    "AsyncClocks": "AsyncClockAdmin",
    "CellChanged": "MetadataConflict",
    "Counts": "ConsumerMetrics",
    "Disconnected": "ConnectionLost",
    "Draft": "UnserializedMessage",
    "FilesExhausted": "TooManyOpenFiles",
    "GroupMove": "OffsetReset",
    "GroupReport": "GroupStatus",
    "NotSerializable": "SerializationFailed",
    "NotServed": "Unsupported",
    "OffsetMove": "OffsetChange",
    "OffsetsNotKept": "OffsetStoreFailed",
    "Once": "Deduplicator",
    "ProducerUnknown": "UnknownProducer",
    "Pulled": "PullResult",
    "SentBack": "SendBackResult",
    "SequenceBroken": "OutOfOrderSequence",
    "Skipped": "FilterStats",
    "StoreRefused": "StoreMismatch",
    "TooLate": "AlreadyDelivered",
    "TopicSent": "TopicTraffic",
    "Unreachable": "ConnectFailed",
}

#: Old and new values of settings, by key.
VALUES: Final = {
    "grpc": {"own": "builtin"},
    "replica_ack": {"synced": "disk", "written": "memory"},
}

#: Old and new options of commands. The first one that a command has is meant.
OPTIONS: Final = {
    "--ca": ("--tls-ca",),
    "--count": ("--limit",),
    "--from": ("--since", "--source", "--seed-from"),
    "--out": ("--output",),
    "--set": ("--broker-conf", "--replica-set"),
    "--since": ("--compare",),
    "--times": ("--compare-times", "--iterations"),
    "--to": ("--output", "--to-topic", "--until"),
    "--top": ("--limit",),
    "--torture": ("--faults",),
}

#: Old and new verbs, of the command and of its groups.
VERBS: Final = {
    "advise": ("size",),
    "cluster": ("brokers", "replicas"),
    "elect": ("force-elect",),
    "lookup": ("find",),
    "move": ("transfer",),
    "replicas": ("change",),
    "why": ("trace",),
}

#: Old and new environment variables.
VARIABLES: Final = {
    "POCKETMQ_CA": "POCKETMQ_TLS_CA",
    "POCKETMQ_CERT": "POCKETMQ_TLS_CERT",
    "POCKETMQ_KEY": "POCKETMQ_TLS_KEY",
}
