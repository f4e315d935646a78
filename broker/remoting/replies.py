"""Request and reply: SEND_REPLY_MESSAGE is passed to the client that sent the request.

A replier sends its reply to the broker that has the request's client, whose id is in the property REPLY_TO_CLIENT. The
broker passes it on over that client's connection and answers whether it could. Replies are not stored.
"""

from __future__ import annotations

from typing import Final

from ...proto.properties import decode_properties
from ...proto.remoting.codes import RequestCode, ResponseCode
from ...proto.remoting.command import ONE_WAY, RemotingCommand
from ...proto.remoting.requests import RemotingRequest
from ...proto.remoting.server import Handler
from .members import Members
from .sending import V2_NAMES

_REPLY_TO: Final = "REPLY_TO_CLIENT"
_ARRIVED: Final = "ARRIVE_TIME"
#: Fields that are not passed on: PUSH_REPLY_MESSAGE_TO_CLIENT does not have them.
_NOT_PASSED: Final = ("maxReconsumeTimes", "batch")


class ReplyMessages:
    """Passes replies to the clients among MEMBERS."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply,
        }

    def reply(self, request: RemotingRequest) -> None:
        """Pass a reply on."""
        fields = request.command.fields
        is_short = request.command.code == RequestCode.SEND_REPLY_MESSAGE_V2
        passed = {}
        for name, short in V2_NAMES.items():
            value = fields.get(short if is_short else name)
            if value is not None and name not in _NOT_PASSED:
                passed[name] = value
        properties = decode_properties(passed.get("properties", "").encode("utf-8", "replace"))
        client_id = properties.get(_REPLY_TO, "")
        member = self._members.find(client_id)
        if member is None or not member.connection.has_room:
            request.answer(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"push reply message fail, channel of <{client_id[:255]}> not found.",
            )
            return
        host, port = request.connection.peer.rpartition(":")[::2]
        passed |= {
            "bornHost": f"{host}:{port}",
            "storeHost": "{}:{}".format(*request.connection.local_address),
            "storeTimestamp": passed.get("bornTimestamp", "0"),
        }
        member.connection.send(
            RemotingCommand(
                code=RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                flag=ONE_WAY,
                fields=passed,
                body=request.command.body,
            )
        )
        request.answer(
            fields={"msgId": "", "queueId": passed.get("queueId", "0"), "queueOffset": "0"}
        )
