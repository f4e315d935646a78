"""Every error that PocketMQ raises, and the one table between errors and gRPC statuses.

    PocketMQError
    ├── ConfigError
    ├── InvalidArgument              a request or record that breaks a rule: names field, limit and value
    │   ├── InvalidRecord
    │   ├── InvalidName
    │   ├── InvalidDelay             a time that is past, or too far ahead
    │   ├── InvalidFilter            an expression that does not parse; says where
    │   ├── SerializationFailed      a serializer did not take a key or a value, or a deserializer its bytes
    │   └── MessageTooLarge
    ├── StoreError
    │   ├── StoreLocked              another broker has the store open
    │   ├── StoreMismatch            the files are not what the settings say; nothing was touched
    │   ├── StoreClosed
    │   ├── StoreFull
    │   │   └── TooManyOpenFiles     no descriptor is left: nothing was tried, and the store goes on
    │   ├── DiskFailure              a write or a sync failed; the store takes no more writes
    │   ├── OffsetOutOfRange
    │   ├── CorruptRecord
    │   ├── CorruptIndex
    │   └── CorruptState             a config file and its .bak cannot be read
    ├── BrokerError
    │   ├── TopicNotFound  TopicExists  QueueNotFound  GroupNotFound  GroupExists
    │   ├── UserNotFound  UserExists  PolicyNotFound  PolicyExists
    │   ├── NotReadable  NotWritable
    │   ├── NotAuthenticated         who calls is not known: no signature, or one that is not the user's
    │   ├── NotAuthorized            no policy of the user allows it, or one denies it
    │   ├── Overloaded
    │   ├── MessageNotFound          none here, or not any more
    │   ├── ServiceNotFound          the server has no service of this name
    │   ├── AlreadyDelivered         a delayed message that is due already cannot be recalled
    │   ├── TransactionNotFound      no half message of this transaction
    │   ├── TransactionResolved      it has the other outcome already
    │   ├── FlushTimeout             stored, but not on the device in time
    │   ├── ProducerFenced           a newer epoch of the same producer has sent
    │   ├── MasterFenced             a later epoch of the replica set holds, or this one has another master
    │   ├── OutOfOrderSequence       a run does not follow the last one of its producer: what is between is missing
    │   ├── UnknownProducer          what the producer sent last is not known any more: repeats cannot be told
    │   ├── SubscriptionMismatch     members of one group want different things
    │   ├── MemberFenced             another member took its place, or its session is over: join again
    │   ├── GroupInUse               members are on, and would undo what was asked for
    │   ├── TopicInUse               queues that were to go hold messages
    │   ├── InvalidReceiptHandle     no delivery that lasts: it is over, finished otherwise, or never was
    │   ├── LeaseLost                the queue is not, or not any more, held by this member
    │   ├── NotEnoughReplicas        too few replicas are in sync for acks="replicas": nothing was stored
    │   ├── NotEnoughReplicasAfterAppend  stored, but not acknowledged by enough replicas: in doubt
    │   ├── MetadataConflict         somebody else has changed what the registry says of the replica set
    │   ├── RegistryUnavailable      the registry did not answer: what was asked for may have been done
    │   ├── SessionExpired           the registry has ended the session, and with it the live node
    │   ├── OffsetMoved              the group does not stand where the reading began
    │   ├── Unsupported              this server does not offer what was asked for
    │   └── ShuttingDown
    └── ClientError
        ├── SendFailed
        │   └── DeliveryTimeout      not acknowledged within delivery_timeout_ms
        ├── ConnectionLost
        │   └── ConnectFailed        no connection could be made: nothing was sent
        ├── RouteNotFound  BufferFull  RequestTimeout  ClientClosed  TlsFailed
        ├── BadReply                 what a server answered does not fit the question
        ├── OffsetStoreFailed        the file of a broadcasting consumer's offsets cannot be written

An error is one sentence plus DETAILS: strings by name, which travel with it, so that a client catches the
class that the broker raised, with the same details. On the wire an error is a gRPC status and, in the
trailing metadata `pocketmq-error-bin`, a serialised `pocketmq.v1.Error`; in streams the same message stands
in the reply.
"""

from __future__ import annotations

from typing import ClassVar

from .rpc.errors import RpcError

__all__ = [
    "PocketMQError",
    "ConfigError",
    "InvalidArgument",
    "InvalidRecord",
    "InvalidName",
    "MessageTooLarge",
    "InvalidDelay",
    "InvalidFilter",
    "SerializationFailed",
    "StoreError",
    "StoreLocked",
    "StoreMismatch",
    "StoreClosed",
    "StoreFull",
    "TooManyOpenFiles",
    "DiskFailure",
    "OffsetOutOfRange",
    "CorruptRecord",
    "CorruptIndex",
    "CorruptState",
    "BrokerError",
    "TopicNotFound",
    "TopicExists",
    "QueueNotFound",
    "GroupNotFound",
    "GroupExists",
    "UserNotFound",
    "UserExists",
    "PolicyNotFound",
    "PolicyExists",
    "MessageNotFound",
    "ServiceNotFound",
    "AlreadyDelivered",
    "TransactionNotFound",
    "TransactionResolved",
    "NotReadable",
    "NotWritable",
    "NotAuthenticated",
    "NotAuthorized",
    "Overloaded",
    "FlushTimeout",
    "ProducerFenced",
    "MasterFenced",
    "OutOfOrderSequence",
    "UnknownProducer",
    "SubscriptionMismatch",
    "MemberFenced",
    "LeaseLost",
    "OffsetMoved",
    "InvalidReceiptHandle",
    "GroupInUse",
    "TopicInUse",
    "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend",
    "MetadataConflict",
    "RegistryUnavailable",
    "SessionExpired",
    "Unsupported",
    "ShuttingDown",
    "ClientError",
    "RouteNotFound",
    "SendFailed",
    "DeliveryTimeout",
    "BufferFull",
    "OffsetStoreFailed",
    "RequestTimeout",
    "BadReply",
    "ConnectionLost",
    "TlsFailed",
    "ConnectFailed",
    "ClientClosed",
]


class PocketMQError(RpcError):
    """The root of all errors that PocketMQ raises. Its `status` is the gRPC status code that carries a class."""

    #: Does the same request have a chance if it is sent again?
    retriable: ClassVar[bool] = False


class ConfigError(PocketMQError):
    """A configuration file, key or value is not acceptable."""

    status = "FAILED_PRECONDITION"


class InvalidArgument(PocketMQError):
    """A request breaks a rule; the sentence names field, limit and value."""

    status = "INVALID_ARGUMENT"


class InvalidRecord(InvalidArgument):
    """The bytes are not a whole, well-formed record."""


class InvalidName(InvalidArgument):
    """A topic or group name has a bad character or length, or is reserved."""


class MessageTooLarge(InvalidArgument):
    """A body, the properties or a whole record exceed their limit."""


class InvalidDelay(InvalidArgument):
    """The time at which a message is to be delivered is past, or too far ahead."""


class InvalidFilter(InvalidArgument):
    """A filter expression does not parse; the sentence names the position."""


class SerializationFailed(InvalidArgument):
    """A serializer did not take a key or a value, or a deserializer its bytes."""


class StoreError(PocketMQError):
    """The store cannot do what was asked."""


class StoreLocked(StoreError):
    """Another process has the store open for writing."""

    status = "FAILED_PRECONDITION"


class StoreMismatch(StoreError):
    """The files of the store do not fit its settings or each other; nothing was touched."""

    status = "FAILED_PRECONDITION"


class StoreClosed(StoreError):
    """The store was closed."""

    status = "UNAVAILABLE"
    retriable = True


class StoreFull(StoreError):
    """The disk is too full to take more messages."""

    status = "RESOURCE_EXHAUSTED"
    retriable = True


class TooManyOpenFiles(StoreFull):
    """The process, or the machine, may open no more files: nothing was written or synced, and trying again may do."""


class DiskFailure(StoreError):
    """A write or a sync failed; the store takes no more writes until it is opened again."""

    status = "UNAVAILABLE"


class OffsetOutOfRange(StoreError):
    """The offset lies outside what the store still holds."""

    status = "OUT_OF_RANGE"


class CorruptRecord(StoreError):
    """A record in the log fails its checks."""

    status = "DATA_LOSS"


class CorruptIndex(StoreError):
    """An index file or a consume queue contradicts itself."""

    status = "DATA_LOSS"


class CorruptState(StoreError):
    """A state file and its .bak can both not be read."""

    status = "DATA_LOSS"


class BrokerError(PocketMQError):
    """The broker refuses a request."""


class TopicNotFound(BrokerError):
    """No such topic here."""

    status = "NOT_FOUND"


class TopicExists(BrokerError):
    """A topic of this name exists."""

    status = "ALREADY_EXISTS"


class QueueNotFound(BrokerError):
    """The topic has no queue of this number."""

    status = "NOT_FOUND"


class GroupNotFound(BrokerError):
    """No such consumer group here."""

    status = "NOT_FOUND"


class GroupExists(BrokerError):
    """A consumer group of this name exists."""

    status = "ALREADY_EXISTS"


class UserNotFound(BrokerError):
    """The file of users has no such user."""

    status = "NOT_FOUND"


class UserExists(BrokerError):
    """The file of users has a user of this name."""

    status = "ALREADY_EXISTS"


class PolicyNotFound(BrokerError):
    """The user has no policy for this resource."""

    status = "NOT_FOUND"


class PolicyExists(BrokerError):
    """The user has a policy for this resource."""

    status = "ALREADY_EXISTS"


class MessageNotFound(BrokerError):
    """No message with this id."""

    status = "NOT_FOUND"


class ServiceNotFound(BrokerError):
    """The server has no service of this name."""

    status = "NOT_FOUND"


class AlreadyDelivered(BrokerError):
    """The delayed message is due already: it was, or is about to be, delivered."""

    status = "FAILED_PRECONDITION"


class TransactionNotFound(BrokerError):
    """No half message of this transaction and group is here."""

    status = "NOT_FOUND"


class TransactionResolved(BrokerError):
    """The transaction has another outcome already."""

    status = "FAILED_PRECONDITION"


class NotReadable(BrokerError):
    """The topic's permission does not allow reading."""

    status = "PERMISSION_DENIED"


class NotWritable(BrokerError):
    """The topic's permission, or the broker's state, does not allow writing."""

    status = "PERMISSION_DENIED"


class NotAuthenticated(BrokerError):
    """Who calls is not known: no signature came, one that is not the user's, or the user is disabled."""

    status = "UNAUTHENTICATED"


class NotAuthorized(BrokerError):
    """No policy of the user allows what was asked for, or one denies it."""

    status = "PERMISSION_DENIED"


class Overloaded(BrokerError):
    """A bound of the broker is reached; try again later."""

    status = "RESOURCE_EXHAUSTED"
    retriable = True


class FlushTimeout(BrokerError):
    """The message is stored in memory, but did not reach the device in time."""

    status = "DEADLINE_EXCEEDED"
    retriable = True


class ProducerFenced(BrokerError):
    """A newer epoch of the same producer has sent: this one is not heard any more."""

    status = "FAILED_PRECONDITION"


class MasterFenced(BrokerError):
    """A later epoch of the replica set holds, or this one has another master: who was asked is not the master."""

    status = "FAILED_PRECONDITION"
    retriable = True


class OutOfOrderSequence(BrokerError):
    """A run does not follow the last one of its producer in the queue."""

    status = "FAILED_PRECONDITION"


class UnknownProducer(BrokerError):
    """What the producer sent last is not known any more, so that a repeat cannot be told from a first try."""

    status = "FAILED_PRECONDITION"


class SubscriptionMismatch(BrokerError):
    """A member of a group wants something else than the other members."""

    status = "FAILED_PRECONDITION"


class MemberFenced(BrokerError):
    """Another member has taken the place of this one, or its session is over: it has to join again."""

    status = "FAILED_PRECONDITION"


class LeaseLost(BrokerError):
    """The queue is not, or not any more, held by this member of the group."""

    status = "FAILED_PRECONDITION"


class OffsetMoved(BrokerError):
    """The group stands elsewhere in the queue than where the reading began: somebody else has committed."""

    status = "FAILED_PRECONDITION"


class InvalidReceiptHandle(BrokerError):
    """The handle is not that of a delivery that lasts: its time is over, or it never was."""

    status = "FAILED_PRECONDITION"


class GroupInUse(BrokerError):
    """Members of the group are on: they would undo what was asked for."""

    status = "FAILED_PRECONDITION"


class TopicInUse(BrokerError):
    """Queues of the topic that were to go hold messages: nobody could read them."""

    status = "FAILED_PRECONDITION"


class NotEnoughReplicas(BrokerError):
    """Fewer replicas than `min_in_sync` have all that was acknowledged: nothing was stored."""

    status = "UNAVAILABLE"
    retriable = True


class NotEnoughReplicasAfterAppend(BrokerError):
    """Stored, but too few replicas are in sync by now: in doubt, and the same send may be tried again."""

    status = "UNAVAILABLE"
    retriable = True


class MetadataConflict(BrokerError):
    """What the registry says of the replica set has another version than the one that was read."""

    status = "ABORTED"


class RegistryUnavailable(BrokerError):
    """The registry did not answer: whether it did, or will yet do, what was asked for is unknown."""

    status = "UNAVAILABLE"
    retriable = True


class SessionExpired(BrokerError):
    """The registry has ended the session; the live node of this replica is gone with it."""

    status = "UNAVAILABLE"


class Unsupported(BrokerError):
    """This server does not offer what was asked for."""

    status = "UNIMPLEMENTED"


class ShuttingDown(BrokerError):
    """The broker is about to stop."""

    status = "UNAVAILABLE"
    retriable = True


class ClientError(PocketMQError):
    """The client could not do what was asked."""


class RouteNotFound(ClientError):
    """No name server knows the topic."""

    status = "NOT_FOUND"
    retriable = True


class SendFailed(ClientError):
    """The message was not acknowledged."""


class DeliveryTimeout(SendFailed):
    """The message was not acknowledged within delivery_timeout_ms: it may have been stored."""

    status = "DEADLINE_EXCEEDED"


class BufferFull(ClientError):
    """The producer holds as many unacknowledged bytes as it may."""

    status = "RESOURCE_EXHAUSTED"
    retriable = True


class OffsetStoreFailed(ClientError):
    """The file with the offsets of a consumer that reads everything for itself cannot be written."""


class RequestTimeout(ClientError):
    """No answer came in time."""

    status = "DEADLINE_EXCEEDED"
    retriable = True


class BadReply(ClientError):
    """A reply does not fit the question: the server is broken, or no PocketMQ server. What was sent may be stored."""

    status = "INTERNAL"


class ConnectionLost(ClientError):
    """The connection broke, or could not be made."""

    status = "UNAVAILABLE"
    retriable = True


class TlsFailed(ClientError):
    """The server and the client did not agree on TLS: nothing was sent, and another try would end in the same way."""

    status = "FAILED_PRECONDITION"


class ConnectFailed(ConnectionLost):
    """No connection could be made: nothing of the request was sent."""


class ClientClosed(ClientError):
    """The client was closed."""

    status = "CANCELLED"


def _tree(root: type[PocketMQError]) -> dict[str, type[PocketMQError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


#: Every class by its name, which is what travels.
BY_NAME: dict[str, type[PocketMQError]] = _tree(PocketMQError)


def rebuild(name: str, message: str, details: dict[str, str]) -> PocketMQError:
    """Return the error that the other side raised; an unknown NAME becomes the root class."""
    error = BY_NAME.get(name, PocketMQError)(message)
    error.details = dict(details)
    return error
