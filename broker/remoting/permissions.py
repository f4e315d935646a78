"""Permissions: what each request of a classic client needs. The same as the calls of official clients that do it.

    SEND_MESSAGE, _V2, SEND_BATCH_MESSAGE           Pub on the topic
    RECALL_MESSAGE, END_TRANSACTION                 Pub on the topic of the message
    SEND_REPLY_MESSAGE, _V2                         Pub on the topic of replies, CLUSTER_REPLY_TOPIC, by its own name
    PULL_MESSAGE, LITE_PULL_MESSAGE,                Sub on group and topic
    UPDATE_CONSUMER_OFFSET, CONSUMER_SEND_MSG_BACK
    QUERY_CONSUMER_OFFSET                           Sub or Get on group and topic
    HEART_BEAT, CHECK_CLIENT_CONFIG                 Sub on each group and each topic of its subscriptions
    LOCK_BATCH_MQ, UNLOCK_BATCH_MQ                  Sub on the group and each topic
    UNREGISTER_CLIENT                               Sub on the consumer group, if one is named
    GET_CONSUMER_LIST_BY_GROUP                      Sub or Get on the group
    offsets of queues, QUERY_MESSAGE,               Sub or Get on the topic of the message
    VIEW_MESSAGE_BY_ID

Requests that name a message by its log offset need what the message there needs, whatever topic they name. Their
refusals do not name its topic. Apache RocketMQ trusts the named topic, or asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from ...proto.access.guard import Rule
from ...proto.access.policies import (
    GET,
    PUB,
    SUB,
    Need,
    of_all_messages,
    of_group,
    of_topic,
    to_reply,
)
from ...proto.record import decode_or_none
from ...proto.remoting.codes import RequestCode
from ...proto.remoting.requests import RemotingRequest
from ...store.message_store import MessageStore
from ..messages.lookup import is_in_its_queue
from .heartbeats import groups_in, text
from .locks import asked_queues
from .sending import V2_NAMES
from .transactions import half_topic_at

Needs = Iterable[Need]


def broker_rules(store: MessageStore, cluster: str) -> dict[int, Rule]:
    """Return the rules of a broker in CLUSTER, whose messages are in STORE, by request code."""
    return {
        **_PLAIN,
        RequestCode.SEND_REPLY_MESSAGE: lambda request: (to_reply(cluster),),
        RequestCode.SEND_REPLY_MESSAGE_V2: lambda request: (to_reply(cluster),),
        RequestCode.VIEW_MESSAGE_BY_ID: partial(
            _message_at, partial(_indexed_topic_at, store), cluster, "offset", SUB | GET
        ),
        RequestCode.END_TRANSACTION: partial(
            _message_at, partial(half_topic_at, store), cluster, "commitLogOffset", PUB
        ),
        RequestCode.CONSUMER_SEND_MSG_BACK: partial(_send_back, store, cluster),
    }


def _topic(field: str, actions: int) -> Rule:
    return lambda request: (of_topic(request.text(field), actions),)


def _group(actions: int) -> Rule:
    return lambda request: (of_group(request.text("consumerGroup"), actions),)


def _group_and_topic(actions: int) -> Rule:
    return lambda request: (
        of_group(request.text("consumerGroup"), actions),
        of_topic(request.text("topic"), actions),
    )


def _heartbeat(request: RemotingRequest) -> Needs:
    _, consumes = groups_in(request.json())
    for group, subscriptions in consumes.items():
        yield of_group(group)
        for topic in subscriptions:
            yield of_topic(topic, SUB)


def _filter(request: RemotingRequest) -> Needs:
    said = request.json()
    yield of_group(text(said, "group"))
    subscription = said.get("subscriptionData")
    if isinstance(subscription, dict):
        yield of_topic(text(subscription, "topic"), SUB)


def _unregister(request: RemotingRequest) -> Needs:
    group = request.text("consumerGroup", "")
    if group:
        yield of_group(group)


def _locks(request: RemotingRequest) -> Needs:
    group, _, queues = asked_queues(request.json())
    yield of_group(group)
    for topic in {topic for _, topic, _ in queues}:
        yield of_topic(topic, SUB)


def _message_at(
    topic_at: Callable[[int], str],
    cluster: str,
    field: str,
    actions: int,
    request: RemotingRequest,
) -> Needs:
    """Yield what the message at the log offset in FIELD needs; if none is there, what all messages need."""
    at = request.long(field)
    topic = topic_at(at)
    needs = (of_topic(topic, actions),) if topic else of_all_messages(cluster, actions)
    for need in needs:
        yield need._replace(hidden_as=f"the message at log offset {at}")


def _send_back(store: MessageStore, cluster: str, request: RemotingRequest) -> Needs:
    yield of_group(request.text("group"))
    yield from _message_at(partial(_topic_at, store), cluster, "offset", SUB, request)


def _topic_at(store: MessageStore, at: int) -> str:
    """Return the topic in the record at log offset AT; "": there is none."""
    record = decode_or_none(store.read_at(at))
    return "" if record is None else record.topic


def _indexed_topic_at(store: MessageStore, at: int) -> str:
    """Return the topic of the message at log offset AT; "": there is none, or it is not in its queue."""
    data = store.read_at(at)
    record = decode_or_none(data)
    if data is None or record is None or not is_in_its_queue(store, data, record):
        return ""
    return record.topic


_BOTH = SUB | GET
_PLAIN: Mapping[int, Rule] = {
    RequestCode.SEND_MESSAGE: _topic("topic", PUB),
    RequestCode.SEND_MESSAGE_V2: _topic(V2_NAMES["topic"], PUB),
    RequestCode.SEND_BATCH_MESSAGE: _topic(V2_NAMES["topic"], PUB),
    RequestCode.RECALL_MESSAGE: _topic("topic", PUB),
    RequestCode.PULL_MESSAGE: _group_and_topic(SUB),
    RequestCode.LITE_PULL_MESSAGE: _group_and_topic(SUB),
    RequestCode.QUERY_CONSUMER_OFFSET: _group_and_topic(_BOTH),
    RequestCode.UPDATE_CONSUMER_OFFSET: _group_and_topic(SUB),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic("topic", _BOTH),
    RequestCode.GET_MAX_OFFSET: _topic("topic", _BOTH),
    RequestCode.GET_MIN_OFFSET: _topic("topic", _BOTH),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic("topic", _BOTH),
    RequestCode.QUERY_MESSAGE: _topic("topic", _BOTH),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group(_BOTH),
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.CHECK_CLIENT_CONFIG: _filter,
}
