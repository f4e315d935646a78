"""Heartbeat and NotifyClientTermination: signs of life of official clients.

Both answer OK to a client that the broker does not know: after a restart of the broker, some clients continue for
minutes before they send their settings again. A heartbeat without any content, not even a client id, is a probe that Go
clients send after a broken stream. The group of a consumer need not exist yet.

Source: v2-protocol sections 3.6 to 3.9; the recording heartbeat.
"""

from __future__ import annotations

from typing import Final

from ...proto.gen import rocketmq_v2_pb2 as v2
from ...proto.rpc import Call, MethodTable
from .client_session import ClientSession
from .request_checks import KnownGroups, group_name
from .service import CLIENT_ID, client_host, client_id, service, unary
from .sessions import Sessions
from .statuses import OK

LANGUAGE: Final = "x-mq-language"
_NO_CONSUMERS: Final = frozenset({v2.CLIENT_TYPE_UNSPECIFIED, v2.PRODUCER})


class Heartbeats:
    """Heartbeats and terminations, for SESSIONS. GROUPS are those of the broker."""

    def __init__(self, sessions: Sessions, groups: KnownGroups) -> None:
        self._sessions = sessions
        self._groups = groups

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            {
                "Heartbeat": unary(
                    v2.HeartbeatRequest, v2.HeartbeatResponse, self.beat, anonymous=True
                ),
                "NotifyClientTermination": unary(
                    v2.NotifyClientTerminationRequest,
                    v2.NotifyClientTerminationResponse,
                    self.terminate,
                ),
            }
        )

    def beat(self, request: v2.HeartbeatRequest, call: Call) -> v2.HeartbeatResponse:
        """Record a heartbeat. The client type in the settings has priority over that of the request."""
        metadata = call.metadata
        if not metadata.get(CLIENT_ID, "") and not request.ByteSize():
            return v2.HeartbeatResponse(status=OK)
        who = client_id(call)
        session = self._sessions.find(who)
        if _is_consumer(session, request):
            group_name(request.group, self._groups)
        self._sessions.record_activity(who, metadata.get(LANGUAGE, ""), client_host(call))
        return v2.HeartbeatResponse(status=OK)

    def terminate(
        self, request: v2.NotifyClientTerminationRequest, call: Call
    ) -> v2.NotifyClientTerminationResponse:
        """Forget a client, also if the request is refused."""
        who = client_id(call)
        self._sessions.check_host(who, client_host(call))
        self._sessions.end(who)
        if request.group.name:
            group_name(request.group, self._groups)
        return v2.NotifyClientTerminationResponse(status=OK)


def _is_consumer(session: ClientSession | None, request: v2.HeartbeatRequest) -> bool:
    if session is not None and session.settings is not None:
        return session.settings.HasField("subscription")
    return request.client_type not in _NO_CONSUMERS
