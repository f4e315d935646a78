"""Requests of an admin to one broker or to all brokers of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ...proto.clock import SystemClock
from ...proto.errors import InvalidArgument, PocketMQError, RequestTimeout, RouteNotFound
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..config import ClientConfig, settled
from ..connections import BROKER, Connection, Connections
from ..follower_choice import FollowerChoices
from ..lifecycle import AsyncClient
from ..session import Session

Reply = TypeVar("Reply", bound=Message)
Asked = TypeVar("Asked", bound=Message)
Refusal = type[PocketMQError] | tuple[type[PocketMQError], ...]
#: Called with the name of a broker. Returns the reply if an earlier try has made the change there; None: it has not.
Earlier = Callable[[str], Awaitable[Reply | None]]

_SAME: Final[Mapping[str, str]] = MappingProxyType({})
_WANTED: Final = {
    FieldDescriptor.CPPTYPE_INT32: "a whole number of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of 64 bits",
    FieldDescriptor.CPPTYPE_BOOL: "True or False",
    FieldDescriptor.CPPTYPE_STRING: "text",
}


def request_of(kind: type[Asked], arguments: Mapping[str, str] = _SAME, /, **fields: Any) -> Asked:
    """Return a request of type KIND with FIELDS. Raises InvalidArgument.

    ARGUMENTS: names of the caller's arguments for fields with another name, for error messages.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            try:
                kind(**{name: value})
            except (TypeError, ValueError):
                raise _refused(kind, name, arguments.get(name, name), value) from None
        raise


def _refused(kind: type[Message], name: str, argument: str, value: object) -> InvalidArgument:
    empty = getattr(kind(), name)
    if isinstance(empty, Mapping):
        wanted = "a mapping of text to text"
    else:
        wanted = _WANTED[kind.DESCRIPTOR.fields_by_name[name].cpp_type]
        if not isinstance(empty, (int, str)):
            wanted = f"a list of values, each {wanted}"
    return InvalidArgument(
        f"{argument} is {value!r:.80}, but must be {wanted}", field=argument, value=repr(value)[:80]
    )


class AsyncAsker(AsyncClient):
    """Base class of clients that send requests to servers and have no state except their session."""

    def __init__(
        self,
        nameservers: str | None,
        request_timeout_ms: int,
        connections: Connections | None,
    ) -> None:
        """CONNECTIONS are for tests."""
        config = settled(ClientConfig, nameservers, {"request_timeout_ms": request_timeout_ms})
        self._session = Session(config, connections, SystemClock(), Random())
        self._timeout_ms = request_timeout_ms

    async def close(self) -> None:
        """Disconnect."""
        await self._session.close()


class AsyncBrokerAsker(AsyncAsker):
    """Base class of clients for all brokers of the name servers, or for one BROKER: its name or address."""

    def __init__(
        self,
        nameservers: str | None = None,
        broker: str | None = None,
        *,
        request_timeout_ms: int = 5_000,
        connections: Connections | None = None,
    ) -> None:
        """CONNECTIONS are for tests."""
        super().__init__(nameservers, request_timeout_ms, connections)
        self._broker = broker


class Brokers:
    """Sends requests to the masters that the name servers know, and to followers if the request allows it."""

    def __init__(self, session: Session, timeout_ms: int) -> None:
        self._session = session
        self._timeout_ms = timeout_ms
        #: The followers for requests that any replica may answer.
        self.followers = FollowerChoices(session)

    async def addresses(self, broker: str | None = None) -> dict[str, str]:
        """Return the address of each broker by name, sorted. BROKER: only this one, a name or an address.

        Raises RouteNotFound if there is none.
        """
        found = await self._session.routes.brokers()
        if not found:
            raise RouteNotFound(
                f"no broker is registered at {self._session.name_servers}: start a broker with `pocketmq broker`",
                nameservers=self._session.name_servers,
            )
        known = dict(sorted(found.items()))
        if broker is None:
            return known
        chosen = {name: address for name, address in known.items() if broker in (name, address)}
        if not chosen:
            raise RouteNotFound(
                f"broker {broker!r} is not registered (known: {', '.join(known)})", broker=broker
            )
        return chosen

    async def ask(
        self, broker: str, method: str, request: Message, reply_type: type[Reply]
    ) -> Reply:
        """Send REQUEST to BROKER, a name from `addresses`; return the reply.

        With `from_any` in REQUEST it is sent to a follower of BROKER, if one can answer it.
        """
        if getattr(request, "from_any", False):

            async def question(connection: Connection) -> Reply:
                return await connection.call(BROKER + method, request, reply_type, self._timeout_ms)

            found = await self.followers.of(broker).ask(question)
            if found is not None:
                return found
        return await self._session.ask(
            broker, method, request, reply_type, self._timeout_ms, repeatable=False
        )

    async def change(
        self,
        broker: str,
        method: str,
        request: Message,
        reply_type: type[Reply],
        refusal: Refusal,
        earlier: Earlier[Reply],
    ) -> Reply:
        """Send REQUEST, which changes BROKER, and return the reply. It is retried while a replica set elects a master.

        A master may make the change and not answer. Then the next master refuses the retry with REFUSAL, for example
        TopicExists. In this case EARLIER is called: it returns the reply if an earlier try has made the change. If it
        returns None, the error is raised.
        """
        try:
            return await self._session.ask(broker, method, request, reply_type, self._timeout_ms)
        except refusal as error:
            if "tries" not in error.details:
                raise
            done = await earlier(broker)
            if done is None:
                raise
            return done

    async def change_all(
        self,
        method: str,
        request: Message,
        reply_type: type[Reply],
        refusal: Refusal,
        earlier: Earlier[Reply],
    ) -> dict[str, Reply]:
        """Call `change` for all brokers; return the replies by name.

        A broker that raises REFUSAL is omitted, unless all brokers raise it.
        """
        return await self._of_all(
            lambda name: self.change(name, method, request, reply_type, refusal, earlier), refusal
        )

    async def ask_all(
        self,
        method: str,
        request: Message,
        reply_type: type[Reply],
        *,
        passing: Refusal = (),
    ) -> dict[str, Reply]:
        """Send REQUEST to all brokers; return the replies by name.

        A broker that raises PASSING is omitted, unless all brokers raise it. Other errors are raised.
        """
        return await self._of_all(lambda name: self.ask(name, method, request, reply_type), passing)

    async def _of_all(
        self, ask: Callable[[str], Awaitable[Reply]], passing: Refusal
    ) -> dict[str, Reply]:
        names = list(await self.addresses())
        answers = await asyncio.gather(*map(ask, names), return_exceptions=True)
        replies: dict[str, Reply] = {}
        passed: PocketMQError | None = None
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, passing):
                passed = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                replies[name] = answer
        if passed is not None and not replies:
            raise passed
        return replies

    async def wait_for_route(
        self, topic: str, is_right: Callable[[pb.TopicRoute | None], bool], timeout_ms: int
    ) -> None:
        """Return when IS_RIGHT is true for the route of TOPIC at every name server that can be reached.

        Raises RequestTimeout after TIMEOUT_MS.
        """

        async def look() -> None:
            request = pb.RouteRequest(topics=[topic])
            for reply in await self._session.name_servers.ask_all("Route", request, pb.RouteReply):
                if not is_right(reply.routes[0] if reply.routes else None):
                    raise RequestTimeout(
                        f"the name servers {self._session.name_servers} do not show the change of topic {topic!r}"
                        f" after {timeout_ms} ms: check that its brokers are registered",
                        topic=topic,
                    )

        await self._session.until(look, RequestTimeout, timeout_ms)
        self._session.routes.forget(topic)
