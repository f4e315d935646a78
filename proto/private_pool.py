"""The descriptor pool of protocols that are not ours: `apache.rocketmq.v2`, OpenTelemetry's, OpenCensus's and gRPC's.

Descriptors of one name may be in a pool but once. Apache's own Python client, the libraries of OpenTelemetry, and
grpcio-health-checking put theirs into the default pool; ours have a pool of their own, so that all can be imported in
one process. `make proto` has the generated modules use it.
"""

from __future__ import annotations

from typing import Final

from google.protobuf import descriptor_pool, duration_pb2, timestamp_pb2

POOL: Final = descriptor_pool.DescriptorPool()
for _known in (duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_known.DESCRIPTOR.serialized_pb)
