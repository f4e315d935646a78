"""Every error that PocketMQ raises, and its gRPC status. docs/errors.md shows the tree of classes.

An error is one sentence plus DETAILS: strings by name, which travel with it, so that a client catches the
class that the broker raised, with the same details. On the wire an error is a gRPC status and, in the
trailing metadata `pocketmq-error-bin`, a serialised `pocketmq.v1.Error`; in streams the same message is in the
reply. The docstring of a class has the meaning, the cause and the remedy.
"""

from __future__ import annotations

from typing import ClassVar

from .doc_urls import page_url
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
    """The root of all errors that PocketMQ raises. Its `status` is the gRPC status code of the class.

    Cause: A newer server raised a class that this client does not know.
    Remedy: Read the message. Catch a subclass where you can act on it.
    """

    #: Does the same request have a chance if it is sent again?
    retriable: ClassVar[bool] = False

    @property
    def doc_url(self) -> str:
        """Where the documentation explains this class: an address, or a path in the sources if no site is known."""
        kind = next(one for one in type(self).__mro__ if one.__name__ in BY_NAME)
        return page_url("errors", kind.__name__.lower())


class ConfigError(PocketMQError):
    """A configuration file, key or value is not acceptable.

    Cause: A typing error, a value outside its limits, a missing extra, or an address in use.
    Remedy: The message names file, line, limit and value: correct the setting.
    """

    status = "FAILED_PRECONDITION"


class InvalidArgument(PocketMQError):
    """A request breaks a rule; the message names field, limit and value.

    Cause: An argument is missing, of the wrong type, or outside its limits.
    Remedy: Correct the argument that the message names.
    """

    status = "INVALID_ARGUMENT"


class InvalidRecord(InvalidArgument):
    """The bytes are not a complete, well-formed record.

    Cause: A program of your own built the batch, or the bytes were changed on the way.
    Remedy: Send with a PocketMQ client.
    """


class InvalidName(InvalidArgument):
    """A topic or group name has a bad character or length, or is reserved.

    Cause: The name has other characters than letters, digits, `%`, `|`, `-` and `_`, or is a system name.
    Remedy: Choose another name.
    """


class MessageTooLarge(InvalidArgument):
    """A body, the properties or the complete record exceed their limit.

    Cause: The message is larger than `store.message_size_max_bytes`, or a body decompresses to more than
    `body_max_bytes`.
    Remedy: Split it, or store the data elsewhere and send its address. 4 MiB is the maximum of
    `store.message_size_max_bytes`; a lower limit can be raised.
    """


class InvalidDelay(InvalidArgument):
    """The delivery time of a message is past, or too far ahead.

    Cause: `deliver_at` is past, or beyond `broker.delay_max_ms`.
    Remedy: Choose an earlier time, or raise `broker.delay_max_ms`.
    """


class InvalidFilter(InvalidArgument):
    """A filter expression does not parse; the message names the position.

    Cause: A syntax error, or SQL that is not supported.
    Remedy: Correct the expression. docs/sql92.md has the syntax of SQL.
    """


class SerializationFailed(InvalidArgument):
    """A serializer refused a key or a value, or a deserializer refused the bytes.

    Cause: The value has another type than the serializer expects, or another program wrote the message.
    Remedy: Use a matching serializer. The original exception is the cause of this one.
    """


class StoreError(PocketMQError):
    """The store cannot do what was asked.

    Cause: See the subclasses.
    Remedy: Read the message, and the log of the broker.
    """


class StoreLocked(StoreError):
    """Another process has the store open for writing.

    Cause: A broker is running on this folder.
    Remedy: Stop it, or use another folder.
    """

    status = "FAILED_PRECONDITION"


class StoreMismatch(StoreError):
    """The files of the store do not fit its settings or each other; nothing was changed.

    Cause: Other file sizes than the store was written with, foreign files in its folders, or no store at the path.
    Remedy: Open the store with its own sizes, or follow the message. `pocketmq doctor` shows more.
    """

    status = "FAILED_PRECONDITION"


class StoreClosed(StoreError):
    """The store was closed, or opened read-only.

    Cause: The broker is stopping.
    Remedy: Try again when the broker runs.
    """

    status = "UNAVAILABLE"
    retriable = True


class StoreFull(StoreError):
    """The disk is too full to take more messages.

    Cause: Disk use is above `store.disk_refuse_percent`.
    Remedy: Free disk space, or lower `store.retention_ms`. Producers retry by themselves.
    """

    status = "RESOURCE_EXHAUSTED"
    retriable = True


class TooManyOpenFiles(StoreFull):
    """The process or the machine may open no more files; nothing was written, and a retry may succeed.

    Cause: The limit of open files is too low for the number of connections and queues.
    Remedy: Raise the limit (`ulimit -n`), or use fewer connections.
    """


class DiskFailure(StoreError):
    """A write or a flush failed; the store takes no more writes until it is opened again.

    Cause: The disk or the file system reported an error.
    Remedy: Check the disk, then restart the broker: it recovers what is on disk.
    """

    status = "UNAVAILABLE"


class OffsetOutOfRange(StoreError):
    """The offset is outside of what the store still has.

    Cause: Retention deleted the messages, or the offset is after the end.
    Remedy: Continue at the oldest offset, for example with `pocketmq group reset-offset`.
    """

    status = "OUT_OF_RANGE"


class CorruptRecord(StoreError):
    """A record in the log fails its checks.

    Cause: The disk returned wrong bytes.
    Remedy: Run `pocketmq doctor STORE`, then `pocketmq repair`.
    """

    status = "DATA_LOSS"


class CorruptIndex(StoreError):
    """An index file or a consume queue contradicts itself.

    Cause: The disk returned wrong bytes, or the store was opened with other sizes.
    Remedy: Delete the file that the message names: the broker builds it again from the log.
    """

    status = "DATA_LOSS"


class CorruptState(StoreError):
    """A state file and its backup can both not be read.

    Cause: The disk returned wrong bytes, or the files were edited.
    Remedy: Repair one of the two files, or move both away to start with an empty one.
    """

    status = "DATA_LOSS"


class BrokerError(PocketMQError):
    """The broker refuses a request.

    Cause: See the subclasses.
    Remedy: Read the message.
    """


class TopicNotFound(BrokerError):
    """The broker has no such topic.

    Cause: A misspelt name, a deleted topic, or `broker.auto_create_topics` is off.
    Remedy: Create it: `pocketmq topic create TOPIC`.
    """

    status = "NOT_FOUND"


class TopicExists(BrokerError):
    """A topic of this name exists.

    Cause: It was created before.
    Remedy: Use it, or change it with `pocketmq topic update`.
    """

    status = "ALREADY_EXISTS"


class QueueNotFound(BrokerError):
    """The topic has no queue of this number.

    Cause: The topic has fewer queues on this broker.
    Remedy: Use a smaller number, or add queues with `pocketmq topic update`.
    """

    status = "NOT_FOUND"


class GroupNotFound(BrokerError):
    """The broker has no such consumer group.

    Cause: A misspelt name, or no consumer has joined yet.
    Remedy: Start a consumer, or create it: `pocketmq group create GROUP`.
    """

    status = "NOT_FOUND"


class GroupExists(BrokerError):
    """A consumer group of this name exists.

    Cause: It was created before, or a consumer has joined.
    Remedy: Change it with `pocketmq group update`.
    """

    status = "ALREADY_EXISTS"


class UserNotFound(BrokerError):
    """The file of users has no such user.

    Cause: A misspelt name.
    Remedy: `pocketmq user list` shows all users.
    """

    status = "NOT_FOUND"


class UserExists(BrokerError):
    """The file of users has a user of this name.

    Cause: It was created before.
    Remedy: Change it with `pocketmq user update`.
    """

    status = "ALREADY_EXISTS"


class PolicyNotFound(BrokerError):
    """The user has no policy for this resource.

    Cause: A misspelt resource, or the policy was deleted.
    Remedy: `pocketmq acl list` shows all policies.
    """

    status = "NOT_FOUND"


class PolicyExists(BrokerError):
    """The user has a policy for this resource.

    Cause: It was created before.
    Remedy: Change it with `pocketmq acl update`.
    """

    status = "ALREADY_EXISTS"


class MessageNotFound(BrokerError):
    """No message with this id.

    Cause: It was never stored, or retention deleted it, or a scheduled message was recalled.
    Remedy: Check the id. `pocketmq find` searches by key or time.
    """

    status = "NOT_FOUND"


class ServiceNotFound(BrokerError):
    """The server has no service of this name.

    Cause: A probe asked gRPC's health protocol for an unknown service.
    Remedy: Use a name that its call List returns, or no name.
    """

    status = "NOT_FOUND"


class AlreadyDelivered(BrokerError):
    """The scheduled message is due: it was delivered, or is about to be.

    Cause: The recall came too late.
    Remedy: Handle the message as delivered.
    """

    status = "FAILED_PRECONDITION"


class TransactionNotFound(BrokerError):
    """The broker has no half message of this transaction and group.

    Cause: It was committed or rolled back long ago, or given up after all checks.
    Remedy: Check the state of your own data; start a new transaction if needed.
    """

    status = "NOT_FOUND"


class TransactionResolved(BrokerError):
    """The transaction was already decided the other way.

    Cause: Two producers of the group disagree, or a check was answered differently.
    Remedy: Find the producer that decided first; the decision stays.
    """

    status = "FAILED_PRECONDITION"


class NotReadable(BrokerError):
    """Reading is not allowed.

    Cause: The topic's permission has no 4, or the group's consumption is switched off.
    Remedy: `pocketmq topic update --permission`, or `pocketmq group update GROUP --consume`.
    """

    status = "PERMISSION_DENIED"


class NotWritable(BrokerError):
    """Writing is not allowed.

    Cause: The topic's permission has no 2, it has no queue to write, or it belongs to the broker.
    Remedy: `pocketmq topic update --permission`, or another topic.
    """

    status = "PERMISSION_DENIED"


class NotAuthenticated(BrokerError):
    """The caller is unknown: no signature, a wrong one, or the user is disabled.

    Cause: No or wrong credentials.
    Remedy: Set POCKETMQ_USER and POCKETMQ_SECRET, or `user=` and `secret=`.
    """

    status = "UNAUTHENTICATED"


class NotAuthorized(BrokerError):
    """No policy of the user allows the action, or one denies it.

    Cause: A missing or denying policy.
    Remedy: `pocketmq acl check` shows the decisive policy; `pocketmq acl create` adds one.
    """

    status = "PERMISSION_DENIED"


class Overloaded(BrokerError):
    """A limit of the broker is reached; try again later.

    Cause: The message names the limit and the setting.
    Remedy: Wait and retry, send less at once, or raise the setting.
    """

    status = "RESOURCE_EXHAUSTED"
    retriable = True


class FlushTimeout(BrokerError):
    """The message is stored in memory, but was not on disk in time.

    Cause: A slow disk.
    Remedy: A retry of an idempotent producer is safe. Check the disk, or raise `store.flush_timeout_ms`.
    """

    status = "DEADLINE_EXCEEDED"
    retriable = True


class ProducerFenced(BrokerError):
    """A newer epoch of the same producer has sent; this one is refused.

    Cause: Two processes use the same producer id, as after a fork.
    Remedy: Close this producer and create a new one.
    """

    status = "FAILED_PRECONDITION"


class MasterFenced(BrokerError):
    """The replica that was asked is not the master of its set.

    Cause: A failover, or a transfer of leadership.
    Remedy: Clients retry at the new master by themselves.
    """

    status = "FAILED_PRECONDITION"
    retriable = True


class OutOfOrderSequence(BrokerError):
    """A batch does not follow the last one of its producer in the queue.

    Cause: An earlier batch of the producer is missing.
    Remedy: A PocketMQ producer starts a new epoch by itself. In your own client, send the missing batch first.
    """

    status = "FAILED_PRECONDITION"


class UnknownProducer(BrokerError):
    """The broker has no sequence of this producer, so that it cannot recognize a duplicate.

    Cause: It was removed: `broker.producers_max` or `broker.producer_expiry_ms`.
    Remedy: A PocketMQ producer starts a new epoch by itself; a retried message may then be stored twice.
    """

    status = "FAILED_PRECONDITION"


class SubscriptionMismatch(BrokerError):
    """A member of a group subscribes to something else than the other members.

    Cause: Different topics or filters in one group, as during a deployment.
    Remedy: Use the same subscription in all members, or another group.
    """

    status = "FAILED_PRECONDITION"


class MemberFenced(BrokerError):
    """Another member has taken the place of this one, or its session is over.

    Cause: Two processes with the same `instance_id`, or a consumer that was silent for `session_timeout_ms`.
    Remedy: Consumers join again by themselves. Give each process its own `instance_id`.
    """

    status = "FAILED_PRECONDITION"


class LeaseLost(BrokerError):
    """The queue is not, or no longer, assigned to this member.

    Cause: A rebalance, or a lease that was not renewed in time.
    Remedy: Consumers continue by themselves; messages in progress are redelivered.
    """

    status = "FAILED_PRECONDITION"


class OffsetMoved(BrokerError):
    """The group's offset in the queue is not where the reading began.

    Cause: Another consumer, or an administrator, has committed meanwhile.
    Remedy: Discard the result and read again from the committed offset.
    """

    status = "FAILED_PRECONDITION"


class InvalidReceiptHandle(BrokerError):
    """The handle is not that of a current delivery.

    Cause: The invisible duration is over, or the message was already acknowledged.
    Remedy: Acknowledge sooner, or ask for a longer invisible duration. The message is redelivered.
    """

    status = "FAILED_PRECONDITION"


class GroupInUse(BrokerError):
    """Members of the group are connected and would undo the change.

    Cause: Consumers run, or a group that pops is to share queues (or the reverse).
    Remedy: Stop the consumers, use `--force` where the command has it, or use another group.
    """

    status = "FAILED_PRECONDITION"


class TopicInUse(BrokerError):
    """Queues that were to be removed have messages, which no consumer could read afterwards.

    Cause: The number of queues was reduced.
    Remedy: Wait until the messages are processed and expired, or use `--force`.
    """

    status = "FAILED_PRECONDITION"


class NotEnoughReplicas(BrokerError):
    """Fewer replicas than `min_in_sync` are in sync; nothing was stored.

    Cause: Followers are stopped or too far behind.
    Remedy: Start or repair the followers. Producers retry by themselves.
    """

    status = "UNAVAILABLE"
    retriable = True


class NotEnoughReplicasAfterAppend(BrokerError):
    """Stored, but not confirmed by enough replicas: the result is in doubt.

    Cause: A follower left the in-sync set during the send.
    Remedy: Retry the same send: an idempotent producer stores it once.
    """

    status = "UNAVAILABLE"
    retriable = True


class MetadataConflict(BrokerError):
    """The metadata of the replica set was changed by another process.

    Cause: Two commands, or a failover at the same time.
    Remedy: Read the state (`pocketmq replicas status`) and try again.
    """

    status = "ABORTED"


class RegistryUnavailable(BrokerError):
    """ZooKeeper did not answer: whether it did what was asked for is unknown.

    Cause: ZooKeeper is down, unreachable, or expects TLS or an account.
    Remedy: Check ZooKeeper and the settings `replication.zookeeper*`.
    """

    status = "UNAVAILABLE"
    retriable = True


class SessionExpired(BrokerError):
    """ZooKeeper has ended the session of this replica.

    Cause: The replica was paused or cut off for `replication.session_ms`.
    Remedy: The replica starts a new session by itself. Check for long pauses.
    """

    status = "UNAVAILABLE"


class Unsupported(BrokerError):
    """This server does not offer what was asked for.

    Cause: A part that does not exist (docs/feature-status.md), or a server of another version or kind.
    Remedy: Use the replacement that the message names.
    """

    status = "UNIMPLEMENTED"


class ShuttingDown(BrokerError):
    """The broker is about to stop.

    Cause: A restart or a stop.
    Remedy: Clients retry by themselves.
    """

    status = "UNAVAILABLE"
    retriable = True


class ClientError(PocketMQError):
    """The client could not do what was asked.

    Cause: See the subclasses.
    Remedy: Read the message.
    """


class RouteNotFound(ClientError):
    """No name server knows the topic.

    Cause: The topic does not exist, its brokers are down, or no name server answers.
    Remedy: Check `--nameserver`, `pocketmq brokers` and `pocketmq topic list`.
    """

    status = "NOT_FOUND"
    retriable = True


class SendFailed(ClientError):
    """The message was not acknowledged.

    Cause: The cause of this error says why.
    Remedy: Look at `error.__cause__`. `error.retriable` says whether a retry may succeed.
    """


class DeliveryTimeout(SendFailed):
    """The message was not acknowledged within `delivery_timeout_ms`; it may have been stored.

    Cause: The broker was unreachable or too slow for all retries.
    Remedy: Check the broker. Send again if your consumers tolerate duplicates.
    """

    status = "DEADLINE_EXCEEDED"


class BufferFull(ClientError):
    """The producer has as many unacknowledged bytes as it may.

    Cause: You send faster than the broker acknowledges, and `max_block_ms` is over.
    Remedy: Send slower, or raise `buffer_memory` or `max_block_ms`.
    """

    status = "RESOURCE_EXHAUSTED"
    retriable = True


class OffsetStoreFailed(ClientError):
    """The file of a broadcasting consumer's offsets cannot be written.

    Cause: No permission, or a full disk.
    Remedy: Check `offsets_folder`.
    """


class RequestTimeout(ClientError):
    """No answer came in time.

    Cause: The server is overloaded or unreachable.
    Remedy: Retry, or raise `request_timeout_ms`.
    """

    status = "DEADLINE_EXCEEDED"
    retriable = True


class BadReply(ClientError):
    """A reply does not fit the request; what was sent may be stored.

    Cause: The server is not a PocketMQ server, or has a bug.
    Remedy: Check the address and the versions.
    """

    status = "INTERNAL"


class ConnectionLost(ClientError):
    """The connection broke, or could not be made.

    Cause: The server stopped, or the network failed.
    Remedy: Clients reconnect by themselves. Check address and server.
    """

    status = "UNAVAILABLE"
    retriable = True


class TlsFailed(ClientError):
    """Server and client did not agree on TLS; nothing was sent.

    Cause: One side expects TLS and the other plaintext, or a certificate is not trusted.
    Remedy: Check `--tls` and `--tls-ca`, or `tls=` and `tls_ca=`.
    """

    status = "FAILED_PRECONDITION"


class ConnectFailed(ConnectionLost):
    """No connection could be made; nothing was sent.

    Cause: No server at this address.
    Remedy: Check address, port and firewall.
    """


class ClientClosed(ClientError):
    """The client was closed.

    Cause: A call after `close`, or outside of the `with` block.
    Remedy: Create a new client.
    """

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
