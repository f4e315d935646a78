"""The descriptor pool of foreign protocols: `apache.rocketmq.v2`, OpenTelemetry's, OpenCensus's and gRPC's.

A pool can hold only one descriptor of a name. Apache RocketMQ's Python client, the libraries of OpenTelemetry, and
grpcio-health-checking put theirs into the default pool. PocketMQ uses a separate pool, so that all of them can be
imported in one process. `make proto` makes the generated modules use it.
"""

from __future__ import annotations

from typing import Final

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2

POOL: Final = descriptor_pool.DescriptorPool()
for _known in (duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
