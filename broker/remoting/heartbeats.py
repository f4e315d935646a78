"""Heartbeats, and what depends on them: HEART_BEAT, UNREGISTER_CLIENT, GET_CONSUMER_LIST_BY_GROUP.

The first heartbeat of a consumer creates its group and the group's retry topic, as in Apache RocketMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...proto.errors import InvalidArgument
from ...proto.remoting.codes import RequestCode, ResponseCode
from ...proto.remoting.fastjson import dumps
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from ...proto.topics import check_group, check_topic, retry_topic
from ..consumer_groups import Groups, check_own_choice
from ..topics import Topics
from .members import Members, Subscription, Subscriptions, check_counts

_CLIENT_ID_MAX: Final = 512
_SHOWN: Final = 64


class RemotingHeartbeats:
    """Applies heartbeats to MEMBERS. GROUPS and TOPICS are those of the broker."""

    def __init__(self, members: Members, groups: Groups, topics: Topics) -> None:
        self._members = members
        self._groups = groups
        self._topics = topics

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.HEART_BEAT: self.beat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.list_members,
        }

    def beat(self, request: RemotingRequest) -> None:
        """Apply a heartbeat, and answer whether the client must send its subscriptions next time."""
        said = request.json()
        client_id = text(said, "clientID", most=_CLIENT_ID_MAX)
        fingerprint = _number(said, "heartbeatFingerprint")
        if said.get("withoutSub") is True:
            known = self._members.beat_again(request.connection, client_id, fingerprint)
            request.answer(fields=_support(changed=not known))
            return
        produces, consumes = groups_in(said)
        for group in consumes:
            check_own_choice(group)
            self._members.check_allowed(group)
        self._members.beat(request, client_id, produces, consumes, fingerprint)
        for group in consumes:
            created = self._groups.ensure(group)
            self._topics.for_group(retry_topic(group), max(1, created.retry_queues))
        request.answer(fields=_support(changed=True))

    def unregister(self, request: RemotingRequest) -> None:
        """Forget a group of a client."""
        self._members.leave(
            request.connection,
            request.text("clientID"),
            produces=request.text("producerGroup", ""),
            consumes=request.text("consumerGroup", ""),
        )
        request.answer()

    def list_members(self, request: RemotingRequest) -> None:
        """Answer the ids of the members of a consumer group."""
        group = request.text("consumerGroup")
        self._members.check_allowed(group)
        ids = sorted(one.client_id for one in self._members.of_group(group))
        if not ids:
            request.answer(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"no consumer for this group, {group[:_SHOWN]}",
            )
            return
        request.answer(dumps({"consumerIdList": ids}))


def _support(*, changed: bool) -> dict[str, str]:
    return {
        "IS_SUPPORT_HEART_BEAT_V2": "true",
        "IS_SUB_CHANGE": "true" if changed else "false",
    }


def groups_in(said: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, Subscriptions]]:
    """Return the producer groups in SAID, a heartbeat, and the subscriptions of its consumer groups.

    Raises InvalidArgument, also if there are more than a client may have.
    """
    produces = [check_group(text(one, "groupName")) for one in _objects(said, "producerDataSet")]
    consumes = {
        text(one, "groupName"): _subscriptions(one) for one in _objects(said, "consumerDataSet")
    }
    check_counts(found := frozenset(produces), consumes)
    return found, consumes


def _subscriptions(said: Mapping[str, Any]) -> Subscriptions:
    """Return the subscriptions in an entry of consumerDataSet."""
    subscriptions = {}
    for one in _objects(said, "subscriptionDataSet"):
        topic = check_topic(text(one, "topic"))
        kind = text(one, "expressionType", "TAG") or "TAG"
        subscriptions[topic] = Subscription(
            topic, text(one, "subString", "*", most=1 << 16), kind, _number(one, "subVersion")
        )
    return subscriptions


def _objects(said: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = said.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise InvalidArgument(f"{name} is not a list of objects", field=name)
    return found


def text(said: Mapping[str, Any], name: str, default: str | None = None, *, most: int = 255) -> str:
    """Return the text of up to MOST characters with the key NAME in SAID; raise InvalidArgument."""
    found = said.get(name)
    if found is None:
        found = default
    if not isinstance(found, str) or len(found) > most:
        raise InvalidArgument(
            f"{name} is {str(found)[:_SHOWN]!r}: must be a text of up to {most} characters",
            field=name,
        )
    return found


def _number(said: Mapping[str, Any], name: str) -> int:
    found = said.get(name) or 0
    return found if type(found) is int else 0
