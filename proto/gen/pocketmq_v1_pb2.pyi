from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REPLICA_ROLE_UNSPECIFIED: _ClassVar[ReplicaRole]
    MASTER: _ClassVar[ReplicaRole]
    FOLLOWER: _ClassVar[ReplicaRole]

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    MEMORY: _ClassVar[Durability]
    DISK: _ClassVar[Durability]
    REPLICAS: _ClassVar[Durability]

class Resolution(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESOLUTION_UNSPECIFIED: _ClassVar[Resolution]
    COMMIT: _ClassVar[Resolution]
    ROLLBACK: _ClassVar[Resolution]
REPLICA_ROLE_UNSPECIFIED: ReplicaRole
MASTER: ReplicaRole
FOLLOWER: ReplicaRole
DURABILITY_UNSPECIFIED: Durability
MEMORY: Durability
DISK: Durability
REPLICAS: Durability
RESOLUTION_UNSPECIFIED: Resolution
COMMIT: Resolution
ROLLBACK: Resolution

class QueueData(_message.Message):
    __slots__ = ("broker_name", "read_queues", "write_queues", "permission", "type")
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    broker_name: str
    read_queues: int
    write_queues: int
    permission: int
    type: str
    def __init__(self, broker_name: _Optional[str] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., permission: _Optional[int] = ..., type: _Optional[str] = ...) -> None: ...

class BrokerData(_message.Message):
    __slots__ = ("cluster", "broker_name", "addresses", "replicas")
    class AddressesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    addresses: _containers.ScalarMap[int, str]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., addresses: _Optional[_Mapping[int, str]] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("replica_id", "address", "role", "epoch")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    replica_id: int
    address: str
    role: ReplicaRole
    epoch: int
    def __init__(self, replica_id: _Optional[int] = ..., address: _Optional[str] = ..., role: _Optional[_Union[ReplicaRole, str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class TopicRoute(_message.Message):
    __slots__ = ("topic", "queues", "brokers")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueData]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerData]
    def __init__(self, topic: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueData, _Mapping]]] = ..., brokers: _Optional[_Iterable[_Union[BrokerData, _Mapping]]] = ...) -> None: ...

class TopicConfig(_message.Message):
    __slots__ = ("name", "read_queues", "write_queues", "permission", "type", "attributes", "order")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    READ_QUEUES_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUEUES_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    name: str
    read_queues: int
    write_queues: int
    permission: int
    type: str
    attributes: _containers.ScalarMap[str, str]
    order: bool
    def __init__(self, name: _Optional[str] = ..., read_queues: _Optional[int] = ..., write_queues: _Optional[int] = ..., permission: _Optional[int] = ..., type: _Optional[str] = ..., attributes: _Optional[_Mapping[str, str]] = ..., order: _Optional[bool] = ...) -> None: ...

class BrokerRegistration(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "address", "data_version", "topics", "unchanged", "more", "changed_since", "gone", "role", "epoch")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_SINCE_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    address: str
    data_version: int
    topics: _containers.RepeatedCompositeFieldContainer[TopicConfig]
    unchanged: bool
    more: bool
    changed_since: int
    gone: _containers.RepeatedScalarFieldContainer[str]
    role: ReplicaRole
    epoch: int
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., address: _Optional[str] = ..., data_version: _Optional[int] = ..., topics: _Optional[_Iterable[_Union[TopicConfig, _Mapping]]] = ..., unchanged: _Optional[bool] = ..., more: _Optional[bool] = ..., changed_since: _Optional[int] = ..., gone: _Optional[_Iterable[str]] = ..., role: _Optional[_Union[ReplicaRole, str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class RegistrationReply(_message.Message):
    __slots__ = ("send_topics", "takes_changes")
    SEND_TOPICS_FIELD_NUMBER: _ClassVar[int]
    TAKES_CHANGES_FIELD_NUMBER: _ClassVar[int]
    send_topics: bool
    takes_changes: bool
    def __init__(self, send_topics: _Optional[bool] = ..., takes_changes: _Optional[bool] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class RouteReply(_message.Message):
    __slots__ = ("routes",)
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    routes: _containers.RepeatedCompositeFieldContainer[TopicRoute]
    def __init__(self, routes: _Optional[_Iterable[_Union[TopicRoute, _Mapping]]] = ...) -> None: ...

class ClusterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClusterReply(_message.Message):
    __slots__ = ("brokers",)
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerData]
    def __init__(self, brokers: _Optional[_Iterable[_Union[BrokerData, _Mapping]]] = ...) -> None: ...

class TopicListRequest(_message.Message):
    __slots__ = ("include_system",)
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    include_system: bool
    def __init__(self, include_system: _Optional[bool] = ...) -> None: ...

class TopicListReply(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class QueueId(_message.Message):
    __slots__ = ("topic", "queue")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ...) -> None: ...

class ProduceRun(_message.Message):
    __slots__ = ("run_id", "topic", "queue", "records", "sizes", "durability", "no_reply", "producer_id", "producer_epoch", "first_sequence")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    NO_REPLY_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    topic: str
    queue: int
    records: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    durability: Durability
    no_reply: bool
    producer_id: int
    producer_epoch: int
    first_sequence: int
    def __init__(self, run_id: _Optional[int] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., records: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ..., durability: _Optional[_Union[Durability, str]] = ..., no_reply: _Optional[bool] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., first_sequence: _Optional[int] = ...) -> None: ...

class ProduceReply(_message.Message):
    __slots__ = ("run_id", "first_queue_offset", "first_log_offset", "log_offsets", "durability", "store_timestamp_ms", "error", "store_host", "queue_offsets", "due_ms", "repeated_count", "replicas")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    first_queue_offset: int
    first_log_offset: int
    log_offsets: _containers.RepeatedScalarFieldContainer[int]
    durability: Durability
    store_timestamp_ms: int
    error: Error
    store_host: str
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    due_ms: _containers.RepeatedScalarFieldContainer[int]
    repeated_count: int
    replicas: int
    def __init__(self, run_id: _Optional[int] = ..., first_queue_offset: _Optional[int] = ..., first_log_offset: _Optional[int] = ..., log_offsets: _Optional[_Iterable[int]] = ..., durability: _Optional[_Union[Durability, str]] = ..., store_timestamp_ms: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., store_host: _Optional[str] = ..., queue_offsets: _Optional[_Iterable[int]] = ..., due_ms: _Optional[_Iterable[int]] = ..., repeated_count: _Optional[int] = ..., replicas: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("name", "message", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    name: str
    message: str
    details: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., message: _Optional[str] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("fetch_id", "topic", "queue", "offset", "max_messages", "max_bytes", "min_bytes", "max_wait_ms", "group", "filter", "lease", "from_any", "looked_at", "check_crcs")
    FETCH_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    FROM_ANY_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    CHECK_CRCS_FIELD_NUMBER: _ClassVar[int]
    fetch_id: int
    topic: str
    queue: int
    offset: int
    max_messages: int
    max_bytes: int
    min_bytes: int
    max_wait_ms: int
    group: str
    filter: Filter
    lease: int
    from_any: bool
    looked_at: LookedAt
    check_crcs: bool
    def __init__(self, fetch_id: _Optional[int] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., min_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., group: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ..., lease: _Optional[int] = ..., from_any: _Optional[bool] = ..., looked_at: _Optional[_Union[LookedAt, _Mapping]] = ..., check_crcs: _Optional[bool] = ...) -> None: ...

class LookedAt(_message.Message):
    __slots__ = ("next_offset", "steps", "filtered_count")
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    FILTERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    next_offset: int
    steps: _containers.RepeatedScalarFieldContainer[int]
    filtered_count: int
    def __init__(self, next_offset: _Optional[int] = ..., steps: _Optional[_Iterable[int]] = ..., filtered_count: _Optional[int] = ...) -> None: ...

class Filter(_message.Message):
    __slots__ = ("kind", "expression")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ALL: _ClassVar[Filter.Kind]
        TAG: _ClassVar[Filter.Kind]
        SQL: _ClassVar[Filter.Kind]
    ALL: Filter.Kind
    TAG: Filter.Kind
    SQL: Filter.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    kind: Filter.Kind
    expression: str
    def __init__(self, kind: _Optional[_Union[Filter.Kind, str]] = ..., expression: _Optional[str] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("fetch_id", "records", "next_offset", "min_offset", "max_offset", "error", "filtered_count", "lost_count", "clock_waits")
    FETCH_ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FILTERED_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_WAITS_FIELD_NUMBER: _ClassVar[int]
    fetch_id: int
    records: bytes
    next_offset: int
    min_offset: int
    max_offset: int
    error: Error
    filtered_count: int
    lost_count: int
    clock_waits: bool
    def __init__(self, fetch_id: _Optional[int] = ..., records: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., filtered_count: _Optional[int] = ..., lost_count: _Optional[int] = ..., clock_waits: _Optional[bool] = ...) -> None: ...

class GroupOffset(_message.Message):
    __slots__ = ("topic", "queue", "offset", "lease", "unread_store_time_ms", "unread_bytes", "lent_count", "read_to", "metadata", "purged_below")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    UNREAD_STORE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    UNREAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    LENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_TO_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PURGED_BELOW_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    lease: int
    unread_store_time_ms: int
    unread_bytes: int
    lent_count: int
    read_to: int
    metadata: str
    purged_below: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ..., lease: _Optional[int] = ..., unread_store_time_ms: _Optional[int] = ..., unread_bytes: _Optional[int] = ..., lent_count: _Optional[int] = ..., read_to: _Optional[int] = ..., metadata: _Optional[str] = ..., purged_below: _Optional[int] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("group", "offsets", "force", "moved_by")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    MOVED_BY_FIELD_NUMBER: _ClassVar[int]
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[GroupOffset]
    force: bool
    moved_by: str
    def __init__(self, group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[GroupOffset, _Mapping]]] = ..., force: _Optional[bool] = ..., moved_by: _Optional[str] = ...) -> None: ...

class CommitOffsetsReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupOffsetsRequest(_message.Message):
    __slots__ = ("group", "queues", "with_times", "with_lent", "from_any")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WITH_TIMES_FIELD_NUMBER: _ClassVar[int]
    WITH_LENT_FIELD_NUMBER: _ClassVar[int]
    FROM_ANY_FIELD_NUMBER: _ClassVar[int]
    group: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueId]
    with_times: bool
    with_lent: bool
    from_any: bool
    def __init__(self, group: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueId, _Mapping]]] = ..., with_times: _Optional[bool] = ..., with_lent: _Optional[bool] = ..., from_any: _Optional[bool] = ...) -> None: ...

class GroupOffsetsReply(_message.Message):
    __slots__ = ("offsets", "follows", "bounds", "hidden_topics")
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FOLLOWS_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_TOPICS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[GroupOffset]
    follows: bool
    bounds: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    hidden_topics: int
    def __init__(self, offsets: _Optional[_Iterable[_Union[GroupOffset, _Mapping]]] = ..., follows: _Optional[bool] = ..., bounds: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ..., hidden_topics: _Optional[int] = ...) -> None: ...

class QueueOffsetsRequest(_message.Message):
    __slots__ = ("queues", "time_ms")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueId]
    time_ms: int
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueId, _Mapping]]] = ..., time_ms: _Optional[int] = ...) -> None: ...

class QueueOffsets(_message.Message):
    __slots__ = ("topic", "queue", "min_offset", "max_offset", "offset_at_time", "min_store_time_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_AT_TIME_FIELD_NUMBER: _ClassVar[int]
    MIN_STORE_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    min_offset: int
    max_offset: int
    offset_at_time: int
    min_store_time_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., offset_at_time: _Optional[int] = ..., min_store_time_ms: _Optional[int] = ...) -> None: ...

class QueueOffsetsReply(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    def __init__(self, offsets: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "update", "fields")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    topic: TopicConfig
    update: bool
    fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[_Union[TopicConfig, _Mapping]] = ..., update: _Optional[bool] = ..., fields: _Optional[_Iterable[str]] = ...) -> None: ...

class TopicReply(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: TopicConfig
    def __init__(self, topic: _Optional[_Union[TopicConfig, _Mapping]] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DescribeTopicReply(_message.Message):
    __slots__ = ("topic", "queues", "sent")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    topic: TopicConfig
    queues: _containers.RepeatedCompositeFieldContainer[QueueOffsets]
    sent: TopicSent
    def __init__(self, topic: _Optional[_Union[TopicConfig, _Mapping]] = ..., queues: _Optional[_Iterable[_Union[QueueOffsets, _Mapping]]] = ..., sent: _Optional[_Union[TopicSent, _Mapping]] = ...) -> None: ...

class TopicSent(_message.Message):
    __slots__ = ("messages", "bytes", "runs", "failed_runs", "last_ms")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    FAILED_RUNS_FIELD_NUMBER: _ClassVar[int]
    LAST_MS_FIELD_NUMBER: _ClassVar[int]
    messages: int
    bytes: int
    runs: int
    failed_runs: int
    last_ms: int
    def __init__(self, messages: _Optional[int] = ..., bytes: _Optional[int] = ..., runs: _Optional[int] = ..., failed_runs: _Optional[int] = ..., last_ms: _Optional[int] = ...) -> None: ...

class BrokerTopicsRequest(_message.Message):
    __slots__ = ("include_system", "containing", "skip", "max_topics")
    INCLUDE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    CONTAINING_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    MAX_TOPICS_FIELD_NUMBER: _ClassVar[int]
    include_system: bool
    containing: str
    skip: int
    max_topics: int
    def __init__(self, include_system: _Optional[bool] = ..., containing: _Optional[str] = ..., skip: _Optional[int] = ..., max_topics: _Optional[int] = ...) -> None: ...

class BrokerTopicsReply(_message.Message):
    __slots__ = ("topics", "total", "hidden")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicConfig]
    total: int
    hidden: int
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicConfig, _Mapping]]] = ..., total: _Optional[int] = ..., hidden: _Optional[int] = ...) -> None: ...

class GroupConfig(_message.Message):
    __slots__ = ("name", "retry_max_times", "retry_queues", "order", "consume_enable", "retry_intervals_ms", "subscription_check", "lite_topic", "lite_exclusive")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_TIMES_FIELD_NUMBER: _ClassVar[int]
    RETRY_QUEUES_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    CONSUME_ENABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_INTERVALS_MS_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_CHECK_FIELD_NUMBER: _ClassVar[int]
    LITE_TOPIC_FIELD_NUMBER: _ClassVar[int]
    LITE_EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    retry_max_times: int
    retry_queues: int
    order: bool
    consume_enable: bool
    retry_intervals_ms: _containers.RepeatedScalarFieldContainer[int]
    subscription_check: str
    lite_topic: str
    lite_exclusive: bool
    def __init__(self, name: _Optional[str] = ..., retry_max_times: _Optional[int] = ..., retry_queues: _Optional[int] = ..., order: _Optional[bool] = ..., consume_enable: _Optional[bool] = ..., retry_intervals_ms: _Optional[_Iterable[int]] = ..., subscription_check: _Optional[str] = ..., lite_topic: _Optional[str] = ..., lite_exclusive: _Optional[bool] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("group", "update", "fields")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    group: GroupConfig
    update: bool
    fields: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[_Union[GroupConfig, _Mapping]] = ..., update: _Optional[bool] = ..., fields: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupReply(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: GroupConfig
    def __init__(self, group: _Optional[_Union[GroupConfig, _Mapping]] = ...) -> None: ...

class GroupListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupListReply(_message.Message):
    __slots__ = ("groups", "hidden")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupConfig]
    hidden: int
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupConfig, _Mapping]]] = ..., hidden: _Optional[int] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class DeleteGroupReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("topic", "key", "message_id", "tag", "begin_ms", "end_ms", "max_messages", "from_any")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    BEGIN_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FROM_ANY_FIELD_NUMBER: _ClassVar[int]
    topic: str
    key: str
    message_id: str
    tag: str
    begin_ms: int
    end_ms: int
    max_messages: int
    from_any: bool
    def __init__(self, topic: _Optional[str] = ..., key: _Optional[str] = ..., message_id: _Optional[str] = ..., tag: _Optional[str] = ..., begin_ms: _Optional[int] = ..., end_ms: _Optional[int] = ..., max_messages: _Optional[int] = ..., from_any: _Optional[bool] = ...) -> None: ...

class LookupReply(_message.Message):
    __slots__ = ("records", "more")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    records: bytes
    more: bool
    def __init__(self, records: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class BrokerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerStatusReply(_message.Message):
    __slots__ = ("cluster", "broker_name", "broker_id", "address", "version", "started_ms", "min_log_offset", "max_log_offset", "flushed_offset", "dispatched_offset", "disk_used_ratio", "store_path", "recovery", "rss_bytes", "cpu_seconds", "writable", "not_writable_because", "delayed_waiting", "transactions_open", "now_ms", "virtual_clock", "epoch", "in_sync", "confirm_offset", "code")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DISK_USED_RATIO_FIELD_NUMBER: _ClassVar[int]
    STORE_PATH_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    NOT_WRITABLE_BECAUSE_FIELD_NUMBER: _ClassVar[int]
    DELAYED_WAITING_FIELD_NUMBER: _ClassVar[int]
    TRANSACTIONS_OPEN_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_CLOCK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str
    started_ms: int
    min_log_offset: int
    max_log_offset: int
    flushed_offset: int
    dispatched_offset: int
    disk_used_ratio: float
    store_path: str
    recovery: str
    rss_bytes: int
    cpu_seconds: float
    writable: bool
    not_writable_because: str
    delayed_waiting: int
    transactions_open: int
    now_ms: int
    virtual_clock: bool
    epoch: int
    in_sync: int
    confirm_offset: int
    code: str
    def __init__(self, cluster: _Optional[str] = ..., broker_name: _Optional[str] = ..., broker_id: _Optional[int] = ..., address: _Optional[str] = ..., version: _Optional[str] = ..., started_ms: _Optional[int] = ..., min_log_offset: _Optional[int] = ..., max_log_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., dispatched_offset: _Optional[int] = ..., disk_used_ratio: _Optional[float] = ..., store_path: _Optional[str] = ..., recovery: _Optional[str] = ..., rss_bytes: _Optional[int] = ..., cpu_seconds: _Optional[float] = ..., writable: _Optional[bool] = ..., not_writable_because: _Optional[str] = ..., delayed_waiting: _Optional[int] = ..., transactions_open: _Optional[int] = ..., now_ms: _Optional[int] = ..., virtual_clock: _Optional[bool] = ..., epoch: _Optional[int] = ..., in_sync: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., code: _Optional[str] = ...) -> None: ...

class RecallRequest(_message.Message):
    __slots__ = ("topic", "handle")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    handle: str
    def __init__(self, topic: _Optional[str] = ..., handle: _Optional[str] = ...) -> None: ...

class RecallReply(_message.Message):
    __slots__ = ("message_id",)
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    def __init__(self, message_id: _Optional[str] = ...) -> None: ...

class SendBackRequest(_message.Message):
    __slots__ = ("group", "topic", "queue", "queue_offset", "log_offset", "delay_level", "retry_max_times", "reason")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELAY_LEVEL_FIELD_NUMBER: _ClassVar[int]
    RETRY_MAX_TIMES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    delay_level: int
    retry_max_times: int
    reason: str
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., delay_level: _Optional[int] = ..., retry_max_times: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class SendBackReply(_message.Message):
    __slots__ = ("dead", "topic", "due_ms", "reconsume_times", "log_offset")
    DEAD_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    dead: bool
    topic: str
    due_ms: int
    reconsume_times: int
    log_offset: int
    def __init__(self, dead: _Optional[bool] = ..., topic: _Optional[str] = ..., due_ms: _Optional[int] = ..., reconsume_times: _Optional[int] = ..., log_offset: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("queue_offset", "log_offset", "message_id", "origin_topic", "origin_message_id", "reason", "reconsume_times", "died_ms", "record", "resent")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_TOPIC_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECONSUME_TIMES_FIELD_NUMBER: _ClassVar[int]
    DIED_MS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    RESENT_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    log_offset: int
    message_id: str
    origin_topic: str
    origin_message_id: str
    reason: str
    reconsume_times: int
    died_ms: int
    record: bytes
    resent: bool
    def __init__(self, queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., message_id: _Optional[str] = ..., origin_topic: _Optional[str] = ..., origin_message_id: _Optional[str] = ..., reason: _Optional[str] = ..., reconsume_times: _Optional[int] = ..., died_ms: _Optional[int] = ..., record: _Optional[bytes] = ..., resent: _Optional[bool] = ...) -> None: ...

class DeadLettersRequest(_message.Message):
    __slots__ = ("group", "from_offset", "max_letters")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_LETTERS_FIELD_NUMBER: _ClassVar[int]
    group: str
    from_offset: int
    max_letters: int
    def __init__(self, group: _Optional[str] = ..., from_offset: _Optional[int] = ..., max_letters: _Optional[int] = ...) -> None: ...

class DeadLettersReply(_message.Message):
    __slots__ = ("letters", "next_offset", "min_offset", "max_offset", "resent_count")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RESENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next_offset: int
    min_offset: int
    max_offset: int
    resent_count: int
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next_offset: _Optional[int] = ..., min_offset: _Optional[int] = ..., max_offset: _Optional[int] = ..., resent_count: _Optional[int] = ...) -> None: ...

class ResendDeadLettersRequest(_message.Message):
    __slots__ = ("group", "queue_offsets", "topic")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    topic: str
    def __init__(self, group: _Optional[str] = ..., queue_offsets: _Optional[_Iterable[int]] = ..., topic: _Optional[str] = ...) -> None: ...

class ResentDeadLetter(_message.Message):
    __slots__ = ("queue_offset", "topic", "queue", "new_queue_offset", "log_offset", "error")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NEW_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    topic: str
    queue: int
    new_queue_offset: int
    log_offset: int
    error: Error
    def __init__(self, queue_offset: _Optional[int] = ..., topic: _Optional[str] = ..., queue: _Optional[int] = ..., new_queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class ResendDeadLettersReply(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[ResentDeadLetter]
    def __init__(self, letters: _Optional[_Iterable[_Union[ResentDeadLetter, _Mapping]]] = ...) -> None: ...

class PurgeDeadLettersRequest(_message.Message):
    __slots__ = ("group", "below_offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BELOW_OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    below_offset: int
    def __init__(self, group: _Optional[str] = ..., below_offset: _Optional[int] = ...) -> None: ...

class PurgeDeadLettersReply(_message.Message):
    __slots__ = ("purged", "min_offset")
    PURGED_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    purged: int
    min_offset: int
    def __init__(self, purged: _Optional[int] = ..., min_offset: _Optional[int] = ...) -> None: ...

class EndTransactionRequest(_message.Message):
    __slots__ = ("group", "topic", "transaction_id", "resolution", "from_check", "half_log_offset")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    FROM_CHECK_FIELD_NUMBER: _ClassVar[int]
    HALF_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    transaction_id: str
    resolution: Resolution
    from_check: bool
    half_log_offset: int
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., transaction_id: _Optional[str] = ..., resolution: _Optional[_Union[Resolution, str]] = ..., from_check: _Optional[bool] = ..., half_log_offset: _Optional[int] = ...) -> None: ...

class EndTransactionReply(_message.Message):
    __slots__ = ("topic", "queue", "queue_offset", "log_offset", "store_timestamp_ms", "repeated")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    store_timestamp_ms: int
    repeated: bool
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., store_timestamp_ms: _Optional[int] = ..., repeated: _Optional[bool] = ...) -> None: ...

class AtomicOffset(_message.Message):
    __slots__ = ("topic", "queue", "begin", "end", "lease")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    begin: int
    end: int
    lease: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., lease: _Optional[int] = ...) -> None: ...

class AtomicRun(_message.Message):
    __slots__ = ("topic", "queue", "records", "sizes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    records: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., records: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class AtomicCommitRequest(_message.Message):
    __slots__ = ("commit_id", "group", "offsets", "runs")
    COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    commit_id: str
    group: str
    offsets: _containers.RepeatedCompositeFieldContainer[AtomicOffset]
    runs: _containers.RepeatedCompositeFieldContainer[AtomicRun]
    def __init__(self, commit_id: _Optional[str] = ..., group: _Optional[str] = ..., offsets: _Optional[_Iterable[_Union[AtomicOffset, _Mapping]]] = ..., runs: _Optional[_Iterable[_Union[AtomicRun, _Mapping]]] = ...) -> None: ...

class AtomicPlace(_message.Message):
    __slots__ = ("queue_offsets", "log_offsets")
    QUEUE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    queue_offsets: _containers.RepeatedScalarFieldContainer[int]
    log_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue_offsets: _Optional[_Iterable[int]] = ..., log_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class AtomicCommitReply(_message.Message):
    __slots__ = ("places", "store_timestamp_ms", "store_host", "repeated")
    PLACES_FIELD_NUMBER: _ClassVar[int]
    STORE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    places: _containers.RepeatedCompositeFieldContainer[AtomicPlace]
    store_timestamp_ms: int
    store_host: str
    repeated: bool
    def __init__(self, places: _Optional[_Iterable[_Union[AtomicPlace, _Mapping]]] = ..., store_timestamp_ms: _Optional[int] = ..., store_host: _Optional[str] = ..., repeated: _Optional[bool] = ...) -> None: ...

class TransactionListener(_message.Message):
    __slots__ = ("group", "client_id", "topics")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group: str
    client_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., client_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class TransactionCheck(_message.Message):
    __slots__ = ("group", "topic", "transaction_id", "times", "half_log_offset", "record")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    HALF_LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    group: str
    topic: str
    transaction_id: str
    times: int
    half_log_offset: int
    record: bytes
    def __init__(self, group: _Optional[str] = ..., topic: _Optional[str] = ..., transaction_id: _Optional[str] = ..., times: _Optional[int] = ..., half_log_offset: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class MemberRequest(_message.Message):
    __slots__ = ("join", "heartbeat", "plan", "replan", "leave")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REPLAN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    join: Join
    heartbeat: Heartbeat
    plan: Plan
    replan: Replan
    leave: Leave
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., replan: _Optional[_Union[Replan, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("topic", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    filter: Filter
    def __init__(self, topic: _Optional[str] = ..., filter: _Optional[_Union[Filter, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("group", "member_id", "instance_id", "subscriptions", "strategy", "each_for_itself", "session_timeout_ms", "held", "room", "kind", "generation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    EACH_FOR_ITSELF_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    instance_id: str
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    strategy: str
    each_for_itself: bool
    session_timeout_ms: int
    held: _containers.RepeatedCompositeFieldContainer[HeldQueue]
    room: str
    kind: str
    generation: int
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., strategy: _Optional[str] = ..., each_for_itself: _Optional[bool] = ..., session_timeout_ms: _Optional[int] = ..., held: _Optional[_Iterable[_Union[HeldQueue, _Mapping]]] = ..., room: _Optional[str] = ..., kind: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("held", "held_changed")
    HELD_FIELD_NUMBER: _ClassVar[int]
    HELD_CHANGED_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[HeldQueue]
    held_changed: bool
    def __init__(self, held: _Optional[_Iterable[_Union[HeldQueue, _Mapping]]] = ..., held_changed: _Optional[bool] = ...) -> None: ...

class HeldQueue(_message.Message):
    __slots__ = ("topic", "broker_name", "queue")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    BROKER_NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    broker_name: str
    queue: int
    def __init__(self, topic: _Optional[str] = ..., broker_name: _Optional[str] = ..., queue: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("member_id", "instance_id", "subscriptions", "held", "room", "kind", "peer", "joined_ms", "last_heard_ms")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    JOINED_MS_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_MS_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    instance_id: str
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    held: _containers.RepeatedCompositeFieldContainer[HeldQueue]
    room: str
    kind: str
    peer: str
    joined_ms: int
    last_heard_ms: int
    def __init__(self, member_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., held: _Optional[_Iterable[_Union[HeldQueue, _Mapping]]] = ..., room: _Optional[str] = ..., kind: _Optional[str] = ..., peer: _Optional[str] = ..., joined_ms: _Optional[int] = ..., last_heard_ms: _Optional[int] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("member_id", "queues")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    queues: _containers.RepeatedCompositeFieldContainer[HeldQueue]
    def __init__(self, member_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[HeldQueue, _Mapping]]] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("generation", "shares")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    def __init__(self, generation: _Optional[int] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ...) -> None: ...

class Replan(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemberEvent(_message.Message):
    __slots__ = ("members", "assigned", "warning")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    members: Members
    assigned: Assigned
    warning: Error
    def __init__(self, members: _Optional[_Union[Members, _Mapping]] = ..., assigned: _Optional[_Union[Assigned, _Mapping]] = ..., warning: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class Members(_message.Message):
    __slots__ = ("generation", "leader", "members", "strategy", "each_for_itself")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    EACH_FOR_ITSELF_FIELD_NUMBER: _ClassVar[int]
    generation: int
    leader: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    strategy: str
    each_for_itself: bool
    def __init__(self, generation: _Optional[int] = ..., leader: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., strategy: _Optional[str] = ..., each_for_itself: _Optional[bool] = ...) -> None: ...

class Assigned(_message.Message):
    __slots__ = ("generation", "queues")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    queues: _containers.RepeatedCompositeFieldContainer[HeldQueue]
    def __init__(self, generation: _Optional[int] = ..., queues: _Optional[_Iterable[_Union[HeldQueue, _Mapping]]] = ...) -> None: ...

class QueueLease(_message.Message):
    __slots__ = ("topic", "queue", "token", "holder", "committed")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    token: int
    holder: str
    committed: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., token: _Optional[int] = ..., holder: _Optional[str] = ..., committed: _Optional[int] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("group", "member_id", "queues", "lease_ms", "wait_ms", "generation", "instance_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueLease]
    lease_ms: int
    wait_ms: int
    generation: int
    instance_id: str
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueLease, _Mapping]]] = ..., lease_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., generation: _Optional[int] = ..., instance_id: _Optional[str] = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("queues", "lease_ms")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueLease]
    lease_ms: int
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueLease, _Mapping]]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("group", "member_id", "queues")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    group: str
    member_id: str
    queues: _containers.RepeatedCompositeFieldContainer[QueueLease]
    def __init__(self, group: _Optional[str] = ..., member_id: _Optional[str] = ..., queues: _Optional[_Iterable[_Union[QueueLease, _Mapping]]] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupStateRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: str
    def __init__(self, group: _Optional[str] = ...) -> None: ...

class HeldLease(_message.Message):
    __slots__ = ("topic", "queue", "member_id", "token", "expires_ms")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    member_id: str
    token: int
    expires_ms: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., member_id: _Optional[str] = ..., token: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class FilteredCount(_message.Message):
    __slots__ = ("topic", "queue", "group", "count", "lost_count", "skipped", "moves")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    group: str
    count: int
    lost_count: int
    skipped: _containers.RepeatedCompositeFieldContainer[SkippedBy]
    moves: _containers.RepeatedCompositeFieldContainer[MovedBy]
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., group: _Optional[str] = ..., count: _Optional[int] = ..., lost_count: _Optional[int] = ..., skipped: _Optional[_Iterable[_Union[SkippedBy, _Mapping]]] = ..., moves: _Optional[_Iterable[_Union[MovedBy, _Mapping]]] = ...) -> None: ...

class SkippedBy(_message.Message):
    __slots__ = ("kind", "expression", "count", "first", "last", "members", "at_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXPRESSION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    expression: str
    count: int
    first: int
    last: int
    members: _containers.RepeatedScalarFieldContainer[str]
    at_ms: int
    def __init__(self, kind: _Optional[str] = ..., expression: _Optional[str] = ..., count: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., at_ms: _Optional[int] = ...) -> None: ...

class MovedBy(_message.Message):
    __slots__ = ("at_ms", "who", "before", "after")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    who: str
    before: int
    after: int
    def __init__(self, at_ms: _Optional[int] = ..., who: _Optional[str] = ..., before: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class GroupStateReply(_message.Message):
    __slots__ = ("generation", "leader", "strategy", "each_for_itself", "members", "shares", "leases", "filtered", "rebalance_count", "official", "grace_left_ms", "hidden_topics")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    EACH_FOR_ITSELF_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    REBALANCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFICIAL_FIELD_NUMBER: _ClassVar[int]
    GRACE_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_TOPICS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    leader: str
    strategy: str
    each_for_itself: bool
    members: _containers.RepeatedCompositeFieldContainer[Member]
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    leases: _containers.RepeatedCompositeFieldContainer[HeldLease]
    filtered: _containers.RepeatedCompositeFieldContainer[FilteredCount]
    rebalance_count: int
    official: _containers.RepeatedCompositeFieldContainer[Member]
    grace_left_ms: int
    hidden_topics: int
    def __init__(self, generation: _Optional[int] = ..., leader: _Optional[str] = ..., strategy: _Optional[str] = ..., each_for_itself: _Optional[bool] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[HeldLease, _Mapping]]] = ..., filtered: _Optional[_Iterable[_Union[FilteredCount, _Mapping]]] = ..., rebalance_count: _Optional[int] = ..., official: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., grace_left_ms: _Optional[int] = ..., hidden_topics: _Optional[int] = ...) -> None: ...

class ClientListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OfficialClient(_message.Message):
    __slots__ = ("client_id", "language", "version", "type", "group", "topics", "streams", "heard_ms", "hidden_topics", "hidden_group")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    HEARD_MS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_TOPICS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_GROUP_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    language: str
    version: str
    type: str
    group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    streams: int
    heard_ms: int
    hidden_topics: int
    hidden_group: bool
    def __init__(self, client_id: _Optional[str] = ..., language: _Optional[str] = ..., version: _Optional[str] = ..., type: _Optional[str] = ..., group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., streams: _Optional[int] = ..., heard_ms: _Optional[int] = ..., hidden_topics: _Optional[int] = ..., hidden_group: _Optional[bool] = ...) -> None: ...

class ClientListReply(_message.Message):
    __slots__ = ("clients",)
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[OfficialClient]
    def __init__(self, clients: _Optional[_Iterable[_Union[OfficialClient, _Mapping]]] = ...) -> None: ...

class ThreadStacks(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Reconnect(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TryMessage(_message.Message):
    __slots__ = ("topic", "queue", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    queue: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., queue: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class AskClientRequest(_message.Message):
    __slots__ = ("client_id", "thread_stacks", "try_message", "reconnect", "timeout_ms")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    THREAD_STACKS_FIELD_NUMBER: _ClassVar[int]
    TRY_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RECONNECT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    thread_stacks: ThreadStacks
    try_message: TryMessage
    reconnect: Reconnect
    timeout_ms: int
    def __init__(self, client_id: _Optional[str] = ..., thread_stacks: _Optional[_Union[ThreadStacks, _Mapping]] = ..., try_message: _Optional[_Union[TryMessage, _Mapping]] = ..., reconnect: _Optional[_Union[Reconnect, _Mapping]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class AskClientReply(_message.Message):
    __slots__ = ("code", "message", "text")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    text: str
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ClockRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AdvanceClockRequest(_message.Message):
    __slots__ = ("by_ms",)
    BY_MS_FIELD_NUMBER: _ClassVar[int]
    by_ms: int
    def __init__(self, by_ms: _Optional[int] = ...) -> None: ...

class ClockReply(_message.Message):
    __slots__ = ("now_ms", "virtual")
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    VIRTUAL_FIELD_NUMBER: _ClassVar[int]
    now_ms: int
    virtual: bool
    def __init__(self, now_ms: _Optional[int] = ..., virtual: _Optional[bool] = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "start")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start: int
    def __init__(self, epoch: _Optional[int] = ..., start: _Optional[int] = ...) -> None: ...

class FollowHello(_message.Message):
    __slots__ = ("cluster", "set", "replica_id", "epoch_seen", "epochs", "end", "synced", "file_size", "state_versions")
    class StateVersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_SEEN_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    FILE_SIZE_FIELD_NUMBER: _ClassVar[int]
    STATE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    set: str
    replica_id: int
    epoch_seen: int
    epochs: _containers.RepeatedCompositeFieldContainer[EpochStart]
    end: int
    synced: int
    file_size: int
    state_versions: _containers.ScalarMap[str, int]
    def __init__(self, cluster: _Optional[str] = ..., set: _Optional[str] = ..., replica_id: _Optional[int] = ..., epoch_seen: _Optional[int] = ..., epochs: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ..., end: _Optional[int] = ..., synced: _Optional[int] = ..., file_size: _Optional[int] = ..., state_versions: _Optional[_Mapping[str, int]] = ...) -> None: ...

class FollowBegin(_message.Message):
    __slots__ = ("epoch", "epochs", "end", "min_offset", "truncate_to")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_TO_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    epochs: _containers.RepeatedCompositeFieldContainer[EpochStart]
    end: int
    min_offset: int
    truncate_to: int
    def __init__(self, epoch: _Optional[int] = ..., epochs: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ..., end: _Optional[int] = ..., min_offset: _Optional[int] = ..., truncate_to: _Optional[int] = ...) -> None: ...

class FollowCut(_message.Message):
    __slots__ = ("end", "synced")
    END_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    end: int
    synced: int
    def __init__(self, end: _Optional[int] = ..., synced: _Optional[int] = ...) -> None: ...

class FollowBytes(_message.Message):
    __slots__ = ("epoch", "offset", "data", "crc32", "confirm", "min_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    MIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    offset: int
    data: bytes
    crc32: int
    confirm: int
    min_offset: int
    def __init__(self, epoch: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., crc32: _Optional[int] = ..., confirm: _Optional[int] = ..., min_offset: _Optional[int] = ...) -> None: ...

class FollowAck(_message.Message):
    __slots__ = ("epoch", "written", "synced")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    written: int
    synced: int
    def __init__(self, epoch: _Optional[int] = ..., written: _Optional[int] = ..., synced: _Optional[int] = ...) -> None: ...

class FollowState(_message.Message):
    __slots__ = ("epoch", "log_offset", "file", "version", "whole", "diff", "base")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    log_offset: int
    file: str
    version: int
    whole: bytes
    diff: bytes
    base: int
    def __init__(self, epoch: _Optional[int] = ..., log_offset: _Optional[int] = ..., file: _Optional[str] = ..., version: _Optional[int] = ..., whole: _Optional[bytes] = ..., diff: _Optional[bytes] = ..., base: _Optional[int] = ...) -> None: ...

class FollowStateAck(_message.Message):
    __slots__ = ("file", "version")
    FILE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    file: str
    version: int
    def __init__(self, file: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class FollowSave(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("hello", "cut", "ack", "state_ack")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    STATE_ACK_FIELD_NUMBER: _ClassVar[int]
    hello: FollowHello
    cut: FollowCut
    ack: FollowAck
    state_ack: FollowStateAck
    def __init__(self, hello: _Optional[_Union[FollowHello, _Mapping]] = ..., cut: _Optional[_Union[FollowCut, _Mapping]] = ..., ack: _Optional[_Union[FollowAck, _Mapping]] = ..., state_ack: _Optional[_Union[FollowStateAck, _Mapping]] = ...) -> None: ...

class FollowReply(_message.Message):
    __slots__ = ("begin", "bytes", "state", "save")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    begin: FollowBegin
    bytes: FollowBytes
    state: FollowState
    save: FollowSave
    def __init__(self, begin: _Optional[_Union[FollowBegin, _Mapping]] = ..., bytes: _Optional[_Union[FollowBytes, _Mapping]] = ..., state: _Optional[_Union[FollowState, _Mapping]] = ..., save: _Optional[_Union[FollowSave, _Mapping]] = ...) -> None: ...

class ReplicaStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReplicaStatusReply(_message.Message):
    __slots__ = ("cluster", "set", "replica_id", "role", "epoch", "master", "end", "synced", "confirm", "unclean", "has_session", "in_sync", "followers", "damaged", "healed", "unclean_reason", "refuses")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_FIELD_NUMBER: _ClassVar[int]
    HAS_SESSION_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    HEALED_FIELD_NUMBER: _ClassVar[int]
    UNCLEAN_REASON_FIELD_NUMBER: _ClassVar[int]
    REFUSES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    set: str
    replica_id: int
    role: ReplicaRole
    epoch: int
    master: int
    end: int
    synced: int
    confirm: int
    unclean: bool
    has_session: bool
    in_sync: _containers.RepeatedScalarFieldContainer[int]
    followers: _containers.RepeatedCompositeFieldContainer[FollowerStatus]
    damaged: int
    healed: int
    unclean_reason: str
    refuses: str
    def __init__(self, cluster: _Optional[str] = ..., set: _Optional[str] = ..., replica_id: _Optional[int] = ..., role: _Optional[_Union[ReplicaRole, str]] = ..., epoch: _Optional[int] = ..., master: _Optional[int] = ..., end: _Optional[int] = ..., synced: _Optional[int] = ..., confirm: _Optional[int] = ..., unclean: _Optional[bool] = ..., has_session: _Optional[bool] = ..., in_sync: _Optional[_Iterable[int]] = ..., followers: _Optional[_Iterable[_Union[FollowerStatus, _Mapping]]] = ..., damaged: _Optional[int] = ..., healed: _Optional[int] = ..., unclean_reason: _Optional[str] = ..., refuses: _Optional[str] = ...) -> None: ...

class FollowerStatus(_message.Message):
    __slots__ = ("replica_id", "written", "synced")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SYNCED_FIELD_NUMBER: _ClassVar[int]
    replica_id: int
    written: int
    synced: int
    def __init__(self, replica_id: _Optional[int] = ..., written: _Optional[int] = ..., synced: _Optional[int] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("cluster", "set", "offset", "size_max", "epoch", "replica_id")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    set: str
    offset: int
    size_max: int
    epoch: EpochStart
    replica_id: int
    def __init__(self, cluster: _Optional[str] = ..., set: _Optional[str] = ..., offset: _Optional[int] = ..., size_max: _Optional[int] = ..., epoch: _Optional[_Union[EpochStart, _Mapping]] = ..., replica_id: _Optional[int] = ...) -> None: ...

class ReadLogReply(_message.Message):
    __slots__ = ("data", "damaged")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    damaged: bool
    def __init__(self, data: _Optional[bytes] = ..., damaged: _Optional[bool] = ...) -> None: ...

class MoveMasterRequest(_message.Message):
    __slots__ = ("set", "to", "timeout_ms")
    SET_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    set: str
    to: int
    timeout_ms: int
    def __init__(self, set: _Optional[str] = ..., to: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class MoveMasterReply(_message.Message):
    __slots__ = ("epoch", "refused_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REFUSED_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    refused_ms: int
    def __init__(self, epoch: _Optional[int] = ..., refused_ms: _Optional[int] = ...) -> None: ...

class AcceptLossRequest(_message.Message):
    __slots__ = ("set", "replica_id")
    SET_FIELD_NUMBER: _ClassVar[int]
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    set: str
    replica_id: int
    def __init__(self, set: _Optional[str] = ..., replica_id: _Optional[int] = ...) -> None: ...

class AcceptLossReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConnectionListRequest(_message.Message):
    __slots__ = ("first_id", "max_connections")
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    first_id: int
    max_connections: int
    def __init__(self, first_id: _Optional[int] = ..., max_connections: _Optional[int] = ...) -> None: ...

class ConnectionFigures(_message.Message):
    __slots__ = ("id", "peer", "secure", "age_ms", "streams_open", "calls_begun", "calls_succeeded", "calls_failed", "bytes_read", "bytes_written", "bytes_queued", "user_agent", "last_path", "last_call_age_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    SECURE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_OPEN_FIELD_NUMBER: _ClassVar[int]
    CALLS_BEGUN_FIELD_NUMBER: _ClassVar[int]
    CALLS_SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    CALLS_FAILED_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    BYTES_QUEUED_FIELD_NUMBER: _ClassVar[int]
    USER_AGENT_FIELD_NUMBER: _ClassVar[int]
    LAST_PATH_FIELD_NUMBER: _ClassVar[int]
    LAST_CALL_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    id: int
    peer: str
    secure: bool
    age_ms: int
    streams_open: int
    calls_begun: int
    calls_succeeded: int
    calls_failed: int
    bytes_read: int
    bytes_written: int
    bytes_queued: int
    user_agent: str
    last_path: str
    last_call_age_ms: int
    def __init__(self, id: _Optional[int] = ..., peer: _Optional[str] = ..., secure: _Optional[bool] = ..., age_ms: _Optional[int] = ..., streams_open: _Optional[int] = ..., calls_begun: _Optional[int] = ..., calls_succeeded: _Optional[int] = ..., calls_failed: _Optional[int] = ..., bytes_read: _Optional[int] = ..., bytes_written: _Optional[int] = ..., bytes_queued: _Optional[int] = ..., user_agent: _Optional[str] = ..., last_path: _Optional[str] = ..., last_call_age_ms: _Optional[int] = ...) -> None: ...

class ConnectionTotals(_message.Message):
    __slots__ = ("open", "accepted", "refused", "closed", "requests_held_bytes", "answers_held_bytes")
    class ClosedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    open: int
    accepted: int
    refused: int
    closed: _containers.ScalarMap[str, int]
    requests_held_bytes: int
    answers_held_bytes: int
    def __init__(self, open: _Optional[int] = ..., accepted: _Optional[int] = ..., refused: _Optional[int] = ..., closed: _Optional[_Mapping[str, int]] = ..., requests_held_bytes: _Optional[int] = ..., answers_held_bytes: _Optional[int] = ...) -> None: ...

class ConnectionListReply(_message.Message):
    __slots__ = ("connections", "next_id", "totals")
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ID_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    connections: _containers.RepeatedCompositeFieldContainer[ConnectionFigures]
    next_id: int
    totals: ConnectionTotals
    def __init__(self, connections: _Optional[_Iterable[_Union[ConnectionFigures, _Mapping]]] = ..., next_id: _Optional[int] = ..., totals: _Optional[_Union[ConnectionTotals, _Mapping]] = ...) -> None: ...

class Setting(_message.Message):
    __slots__ = ("key", "value", "default_value", "origin", "live")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    default_value: str
    origin: str
    live: bool
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ..., default_value: _Optional[str] = ..., origin: _Optional[str] = ..., live: _Optional[bool] = ...) -> None: ...

class SettingListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SettingListReply(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.RepeatedCompositeFieldContainer[Setting]
    def __init__(self, settings: _Optional[_Iterable[_Union[Setting, _Mapping]]] = ...) -> None: ...

class SetSettingRequest(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class SetSettingReply(_message.Message):
    __slots__ = ("before", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: Setting
    after: Setting
    def __init__(self, before: _Optional[_Union[Setting, _Mapping]] = ..., after: _Optional[_Union[Setting, _Mapping]] = ...) -> None: ...
