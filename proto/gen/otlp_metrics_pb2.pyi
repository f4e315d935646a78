from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AggregationTemporality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGGREGATION_TEMPORALITY_UNSPECIFIED: _ClassVar[AggregationTemporality]
    AGGREGATION_TEMPORALITY_DELTA: _ClassVar[AggregationTemporality]
    AGGREGATION_TEMPORALITY_CUMULATIVE: _ClassVar[AggregationTemporality]
AGGREGATION_TEMPORALITY_UNSPECIFIED: AggregationTemporality
AGGREGATION_TEMPORALITY_DELTA: AggregationTemporality
AGGREGATION_TEMPORALITY_CUMULATIVE: AggregationTemporality

class AnyValue(_message.Message):
    __slots__ = ("string_value", "bool_value", "int_value", "double_value")
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    bool_value: bool
    int_value: int
    double_value: float
    def __init__(self, string_value: _Optional[str] = ..., bool_value: _Optional[bool] = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ...) -> None: ...

class KeyValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: AnyValue
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AnyValue, _Mapping]] = ...) -> None: ...

class Resource(_message.Message):
    __slots__ = ("attributes",)
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, attributes: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...

class HistogramDataPoint(_message.Message):
    __slots__ = ("attributes", "start_time_unix_nano", "time_unix_nano", "count", "sum", "bucket_counts", "explicit_bounds", "min", "max")
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    BUCKET_COUNTS_FIELD_NUMBER: _ClassVar[int]
    EXPLICIT_BOUNDS_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.RepeatedCompositeFieldContainer[KeyValue]
    start_time_unix_nano: int
    time_unix_nano: int
    count: int
    sum: float
    bucket_counts: _containers.RepeatedScalarFieldContainer[int]
    explicit_bounds: _containers.RepeatedScalarFieldContainer[float]
    min: float
    max: float
    def __init__(self, attributes: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., start_time_unix_nano: _Optional[int] = ..., time_unix_nano: _Optional[int] = ..., count: _Optional[int] = ..., sum: _Optional[float] = ..., bucket_counts: _Optional[_Iterable[int]] = ..., explicit_bounds: _Optional[_Iterable[float]] = ..., min: _Optional[float] = ..., max: _Optional[float] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("data_points", "aggregation_temporality")
    DATA_POINTS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_TEMPORALITY_FIELD_NUMBER: _ClassVar[int]
    data_points: _containers.RepeatedCompositeFieldContainer[HistogramDataPoint]
    aggregation_temporality: AggregationTemporality
    def __init__(self, data_points: _Optional[_Iterable[_Union[HistogramDataPoint, _Mapping]]] = ..., aggregation_temporality: _Optional[_Union[AggregationTemporality, str]] = ...) -> None: ...

class NumberDataPoint(_message.Message):
    __slots__ = ("attributes", "start_time_unix_nano", "time_unix_nano", "as_double", "as_int")
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    START_TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    TIME_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    AS_DOUBLE_FIELD_NUMBER: _ClassVar[int]
    AS_INT_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.RepeatedCompositeFieldContainer[KeyValue]
    start_time_unix_nano: int
    time_unix_nano: int
    as_double: float
    as_int: int
    def __init__(self, attributes: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., start_time_unix_nano: _Optional[int] = ..., time_unix_nano: _Optional[int] = ..., as_double: _Optional[float] = ..., as_int: _Optional[int] = ...) -> None: ...

class Gauge(_message.Message):
    __slots__ = ("data_points",)
    DATA_POINTS_FIELD_NUMBER: _ClassVar[int]
    data_points: _containers.RepeatedCompositeFieldContainer[NumberDataPoint]
    def __init__(self, data_points: _Optional[_Iterable[_Union[NumberDataPoint, _Mapping]]] = ...) -> None: ...

class Sum(_message.Message):
    __slots__ = ("data_points", "aggregation_temporality", "is_monotonic")
    DATA_POINTS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_TEMPORALITY_FIELD_NUMBER: _ClassVar[int]
    IS_MONOTONIC_FIELD_NUMBER: _ClassVar[int]
    data_points: _containers.RepeatedCompositeFieldContainer[NumberDataPoint]
    aggregation_temporality: AggregationTemporality
    is_monotonic: bool
    def __init__(self, data_points: _Optional[_Iterable[_Union[NumberDataPoint, _Mapping]]] = ..., aggregation_temporality: _Optional[_Union[AggregationTemporality, str]] = ..., is_monotonic: _Optional[bool] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("name", "description", "unit", "gauge", "sum", "histogram")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    GAUGE_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    unit: str
    gauge: Gauge
    sum: Sum
    histogram: Histogram
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., unit: _Optional[str] = ..., gauge: _Optional[_Union[Gauge, _Mapping]] = ..., sum: _Optional[_Union[Sum, _Mapping]] = ..., histogram: _Optional[_Union[Histogram, _Mapping]] = ...) -> None: ...

class ScopeMetrics(_message.Message):
    __slots__ = ("metrics",)
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    def __init__(self, metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ...) -> None: ...

class ResourceMetrics(_message.Message):
    __slots__ = ("resource", "scope_metrics")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    SCOPE_METRICS_FIELD_NUMBER: _ClassVar[int]
    resource: Resource
    scope_metrics: _containers.RepeatedCompositeFieldContainer[ScopeMetrics]
    def __init__(self, resource: _Optional[_Union[Resource, _Mapping]] = ..., scope_metrics: _Optional[_Iterable[_Union[ScopeMetrics, _Mapping]]] = ...) -> None: ...

class ExportMetricsServiceRequest(_message.Message):
    __slots__ = ("resource_metrics",)
    RESOURCE_METRICS_FIELD_NUMBER: _ClassVar[int]
    resource_metrics: _containers.RepeatedCompositeFieldContainer[ResourceMetrics]
    def __init__(self, resource_metrics: _Optional[_Iterable[_Union[ResourceMetrics, _Mapping]]] = ...) -> None: ...

class ExportMetricsPartialSuccess(_message.Message):
    __slots__ = ("rejected_data_points", "error_message")
    REJECTED_DATA_POINTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    rejected_data_points: int
    error_message: str
    def __init__(self, rejected_data_points: _Optional[int] = ..., error_message: _Optional[str] = ...) -> None: ...

class ExportMetricsServiceResponse(_message.Message):
    __slots__ = ("partial_success",)
    PARTIAL_SUCCESS_FIELD_NUMBER: _ClassVar[int]
    partial_success: ExportMetricsPartialSuccess
    def __init__(self, partial_success: _Optional[_Union[ExportMetricsPartialSuccess, _Mapping]] = ...) -> None: ...
