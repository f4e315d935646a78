"""The administration API over HTTP: what is under /api/, as JSON. `static/openapi.yaml` describes it.

Its data are those of `--json` of the commands: the same admin calls the same methods of the broker, in the same
process (local.py). The pages of the console show these data. Lists have pages of up to LIMIT_MAX rows.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ...broker.broker import SiteParts
from ...broker.groups.lag import stored_ms
from ...broker.metrics.page import PageFigure
from ...client.administration.admin import AsyncAdmin
from ...client.administration.descriptions import (
    GroupDescription,
    QueueDescription,
    TopicDescription,
    topic_description,
)
from ...client.administration.servers import figures_of, totals_of
from ...client.connections import BROKER
from ...proto import errors
from ...proto.access.audit import host_of
from ...proto.access.policies import (
    GET,
    LIST,
    OTHERS,
    SUB,
    Need,
    of_all_messages,
    of_cluster,
    of_group,
    of_topic,
    to_see_group,
    to_see_topic,
)
from ...proto.access.users import Users
from ...proto.clock import SystemClock
from ...proto.filters.sql_evaluation import compiled
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc.pages import READING, HttpResponse, PageRequest
from ...proto.time_text import check_unix_ms
from ...proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX
from ...store.message_store import MessageStore
from ...store.timers.store import TimerStore
from ..dead_letters import letter_document
from ..group_description import document as group_document
from ..lag.live import rows_of_group
from ..lag.rows import CALM, LagRow
from ..output import message_document
from ..topic import queue_document, topic_document
from ..trace.stores import WhyAsked, histories_in
from .answers import EventListeners
from .auth import ConsoleSession, Door
from .local import CALLER, LocalConnection, LocalConnections
from .rates import Rates
from .visible_history import visible_history

Document: TypeAlias = dict[str, Any]
Handler: TypeAlias = Callable[..., Awaitable[Document]]
#: Rows with a verdict that needs attention, the number of groups checked, and of all groups.
Lags: TypeAlias = tuple[list[LagRow], int, int]

LIMIT_MAX: Final = 500
#: Limit of messages that one SQL filter is applied to.
SQL_ROWS_MAX: Final = 500
_LIMIT: Final = 50
#: Limit of groups whose lag one overview computes.
_GROUPS_MAX: Final = 200
_WORST: Final = 10
#: Limit of users whose lags are cached.
_LAGS_KEPT: Final = 16
#: Delivery times in the overview.
_NEXT_DUE: Final = 5
#: Lags are cached for this multiple of the time that computing them took: it uses up to 5 % of a core.
_REST: Final = 20
#: Least and greatest time between two reads of a topic for rates, and the limit of topics remembered.
_RATE_LEAST_S: Final = 1.0
_RATE_S: Final = 60.0
_RATES_KEPT: Final = 64
#: Limit of queues of a topic whose last store time is shown.
_LAST_STORED_MAX: Final = 64
#: Time limit of `pocketmq doctor`.
_DOCTOR_S: Final = 60.0
_TICK_S: Final = 0.25
#: Ticks until pages reload although nothing was stored: offsets and ages change.
_REFRESH_TICKS: Final = 12
_TIMEOUT_MS: Final = 5_000
_REPLICA: Final = "pocketmq_replica_"
#: Permissions for the lags of the overview. Single topics and groups that the user may not see are left out.
_SEE_LAGS: Final = of_group(OTHERS, GET), of_topic(OTHERS, GET)


class ApiRoute(NamedTuple):
    """A route of an `Api`: METHOD, PATH, where {name} matches one part, and HANDLER."""

    method: str
    path: str
    handler: Handler

    def names(self, asked: PageRequest) -> list[str] | None:
        """Return the values of the parts in braces; None: ASKED does not match this route."""
        wanted, found = self.path.split("/")[1:], asked.parts
        if len(wanted) != len(found) or asked.method not in (self.method, *self._also):
            return None
        pairs = list(zip(wanted, found, strict=True))
        if any(part != here and not part.startswith("{") for part, here in pairs):
            return None
        return [here for part, here in pairs if part.startswith("{")]

    @property
    def _also(self) -> tuple[str, ...]:
        return tuple(READING) if self.method in READING else ()


class Api:
    """The API of the broker with PARTS and RATES. DOOR: the authentication of requests.

    Methods of the broker are called as CALLER, and check permissions themselves. For other data `need` checks them.
    """

    def __init__(self, parts: SiteParts, rates: Rates, door: Door) -> None:
        self.connection = LocalConnection(parts.methods)
        self.admin = AsyncAdmin(
            self.connection.address,
            request_timeout_ms=_TIMEOUT_MS,
            connections=LocalConnections(self.connection),
            clock=SystemClock(),
        )
        self._rates = rates
        self._figures = parts.figures
        self._counters = parts.counters
        self.parts = parts
        self._door = door
        self._listeners = EventListeners()
        self._looking = asyncio.Semaphore(2)
        self._lag_lock = asyncio.Lock()
        self._doctor_lock = asyncio.Lock()
        #: By topic, the time of the last read, and the ends of its queues.
        self._looked_at: dict[str, tuple[float, dict[int, int]]] = {}
        #: Cached lags, with the time when they expire, by users, user and address: policies depend on these.
        self._lags: dict[tuple[Users | None, str, str], tuple[Lags, float]] = {}

    async def answer(
        self, asked: PageRequest, visitor: ConsoleSession, routes: Iterable[ApiRoute]
    ) -> Document | HttpResponse:
        """Return the answer of one of ROUTES to ASKED, a request of VISITOR under /api/."""
        if asked.path == "/api/session" and asked.method in READING:
            return {"token": visitor.token, "user": visitor.user or None}
        if asked.path == "/api/events":
            if asked.method not in READING:
                raise errors.Unsupported("/api/events supports only GET")
            return self._listeners.stream(self._changes(visitor))
        for route in routes:
            names = route.names(asked)
            if names is not None:
                return await route.handler(self, asked, *names)
        raise errors.ServiceNotFound(
            f"there is no {asked.method} {asked.path[:200]}: see /api/openapi.yaml"
        )

    def may(self, *needs: Need) -> bool:
        """May the caller do all of NEEDS?"""
        guard = self._door.guard
        if guard is None:
            return True
        try:
            guard.check(CALLER.get(), lambda wanted: wanted, needs)
        except errors.NotAuthorized:
            return False
        return True

    def need(self, asked: PageRequest, *needs: Need) -> None:
        """Raise NotAuthorized, and write it to the audit log, unless the caller may do all of NEEDS."""
        guard = self._door.guard
        if guard is None:
            return
        try:
            guard.check(CALLER.get(), lambda wanted: wanted, needs)
        except errors.NotAuthorized as error:
            guard.audit.denied(asked.path, asked.peer, error)
            raise

    @property
    def _see_broker(self) -> Need:
        return of_cluster(self.parts.cluster, GET)

    async def status(self) -> pb.BrokerStatusReply:
        """Return the status of the broker."""
        request = pb.BrokerStatusRequest()
        found: pb.BrokerStatusReply = await self.ask("Status", request, pb.BrokerStatusReply)
        return found

    async def ask(self, name: str, request: Any, reply_type: Any) -> Any:
        """Return the answer of the broker's method NAME."""
        return await self.connection.call(BROKER + name, request, reply_type, _TIMEOUT_MS)

    async def overview(self, asked: PageRequest) -> Document:
        """Return status, rates and the largest lags; null for what the caller may not see."""
        found: Document = {"broker": await self._broker()}
        names = (
            "rates",
            "figures",
            "official_clients",
            "replica",
            "next_due",
            "lags",
            "groups",
            "groups_looked_at",
        )
        found |= dict.fromkeys(names)
        if self.may(self._see_broker):
            clients = await self.ask("ListClients", pb.ClientListRequest(), pb.ClientListReply)
            languages = Counter(one.language or "unknown" for one in clients.clients)
            found["rates"] = self._rates.document()
            figures = list(self._figures())
            found["figures"] = {one.name: one.value for one in figures if not one.labels}
            found["replica"] = _replica(figures)
            found["official_clients"] = dict(sorted(languages.items()))
        if self.may(of_topic("*", GET)):
            found["next_due"] = _next_due(self.parts.store.timers)
        if self.may(*_SEE_LAGS):
            rows, looked, count = await self.lags()
            found["lags"] = [row.to_json() for row in rows[:_WORST]]
            found |= {"groups": count, "groups_looked_at": looked}
        return found

    async def store(self, asked: PageRequest) -> Document:
        """Return path, offsets and files of the store, and the result of the last recovery."""
        self.need(asked, self._see_broker)
        status = await self.status()
        figures = {
            one.name: one.value
            for one in self._figures()
            if not one.labels and one.name.startswith("pocketmq_store_")
        }
        store = self.parts.store
        config, log, index = store.config, store.log.files, store.index
        queues = [queue.files.files for queue in store.queues]
        return {
            "path": status.store_path,
            "min_log_offset": status.min_log_offset,
            "max_log_offset": status.max_log_offset,
            "flush_behind_bytes": status.max_log_offset - status.flushed_offset,
            "dispatch_behind_bytes": status.max_log_offset - status.dispatched_offset,
            "disk_used_ratio": status.disk_used_ratio,
            "writable": status.writable,
            "not_writable_because": status.not_writable_because or None,
            "files": {
                "log": {"files": len(log.files), "bytes": len(log.files) * log.file_size},
                "queues": {"queues": len(queues), "files": sum(map(len, queues))},
                "index": {"files": 0 if index is None else len(index.files)},
            },
            "retention": {
                "retention_ms": config.retention_ms,
                "disk_expire_percent": config.disk_expire_percent,
                "disk_force_percent": config.disk_force_percent,
                "disk_refuse_percent": config.disk_refuse_percent,
            },
            "figures": figures,
            "recovery": json.loads(status.recovery or "{}"),
        }

    async def doctor(self, asked: PageRequest) -> Document:
        """Run `pocketmq doctor` on the store in a process, and return its output. It may name any topic and group."""
        self.need(asked, *of_all_messages(self.parts.cluster, GET))
        if self._doctor_lock.locked():
            raise errors.Overloaded(
                "the doctor is running for another request. Try again in a moment",
                field="doctor",
                limit=1,
            )
        path = (await self.status()).store_path
        async with self._doctor_lock:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pocketmq.tools.cli", "doctor", path),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(_DOCTOR_S):
                    said, failed = await process.communicate()
            except TimeoutError:
                raise errors.RequestTimeout(
                    f"the doctor took more than {_DOCTOR_S:g} s. Run `pocketmq doctor {path}` there"
                ) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode not in (0, 1):
            raise errors.Unsupported(f"the doctor failed: {failed.decode(errors='replace')[-500:]}")
        return {"healthy": process.returncode == 0, "doctor": said.decode(errors="replace")}

    async def _broker(self) -> Document:
        (found,) = await self.admin.brokers()
        document = asdict(found)
        del document["recovery"]
        return document

    async def lags(self) -> Lags:
        """Return the rows that need attention, the largest lag first, the number of groups checked, and of all groups.

        The result is cached by user and address, until users change: other users may see other topics and groups.
        """
        now_s = asyncio.get_running_loop().time
        guard = self._door.guard
        caller = CALLER.get()
        asks: tuple[Users | None, str, str] = None, "", ""
        if guard is not None:
            asks = guard.users, guard.caller(caller).name, host_of(caller.peer)
        async with self._lag_lock:
            known, until_s = self._lags.pop(asks, (None, 0.0))
            if known is not None and now_s() < until_s:
                self._lags[asks] = known, until_s
                return known
            begun_s = now_s()
            groups = await self.admin.groups()
            found: list[LagRow] = []
            for one in groups[:_GROUPS_MAX]:
                found += [row for row in await self._rows(one) if row.verdict not in CALM]
                await asyncio.sleep(0)
            found.sort(key=lambda row: (-(row.lag or 0), row.key))
            lags = found, min(len(groups), _GROUPS_MAX), len(groups)
            self._lags[asks] = lags, now_s() + (now_s() - begun_s) * _REST
            while len(self._lags) > _LAGS_KEPT:
                del self._lags[next(iter(self._lags))]
        return lags

    async def _hidden_groups(self) -> int:
        reply = await self.ask("ListGroups", pb.GroupListRequest(), pb.GroupListReply)
        hidden: int = reply.hidden
        return hidden

    def sees_topic(self, name: str) -> bool:
        """May the caller see topic NAME?"""
        return self.may(to_see_topic(name))

    def sees_group(self, name: str) -> bool:
        """May the caller see group NAME?"""
        return self.may(to_see_group(name))

    async def _rows(self, described: str | GroupDescription) -> list[LagRow]:
        """Return the rows of a group, by its name or its description."""
        group = described if isinstance(described, str) else described.name
        if not self.sees_group(group):
            return []
        try:
            queues = list((await self.admin.describe_group(described)).queues)
        except errors.GroupNotFound:
            return []  # It was deleted meanwhile.
        known = {one.queue.topic for one in queues}
        for topic in (RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group):
            if topic not in known and self.sees_topic(topic):
                try:
                    more = (await self.admin.describe_group(described, topic=topic)).queues
                except (errors.GroupNotFound, errors.TopicNotFound):
                    continue
                queues += [one for one in more if one.max_offset > one.first_offset]
        return rows_of_group(group, queues)

    async def topics(self, asked: PageRequest) -> Document:
        """Return a page of the topics, by name."""
        query = asked.query
        skip, limit = number(query, "skip", 0), limit_of(query)
        request = pb.BrokerTopicsRequest(
            include_system=query.get("system") == "true",
            containing=query.get("search", ""),
            skip=skip,
            max_topics=limit,
        )
        reply = await self.ask("ListTopics", request, pb.BrokerTopicsReply)
        name = (await self.status()).broker_name
        rows = []
        seen = [one for one in reply.topics if self.sees_topic(one.name)]
        for config in seen:
            described = await self.ask(
                "DescribeTopic",
                pb.DescribeTopicRequest(topic=config.name),
                pb.DescribeTopicReply,
            )
            rows.append(
                topic_document(topic_description(config, [name], ()))
                | {
                    "messages": sum(one.max_offset - one.min_offset for one in described.queues),
                    "sent_messages": described.sent.messages,
                    "last_sent_ms": described.sent.last_ms or None,
                }
            )
            await asyncio.sleep(0)
        left_out = reply.hidden + len(reply.topics) - len(seen)
        return {
            "topics": rows,
            "total": reply.total,
            "skip": skip,
            "limit": limit,
            "left_out": left_out,
        }

    async def topic(self, asked: PageRequest, name: str) -> Document:
        """Return one topic, its queues, and the groups that have read it."""
        found = await self.admin.describe_topic(name)
        groups = []
        may_see = self.may(of_group(OTHERS, GET))
        every = await self.admin.groups() if may_see else []
        for group in [one for one in every if self.sees_group(one.name)][:_GROUPS_MAX]:
            reply = await self.ask(
                "GroupOffsets", pb.GroupOffsetsRequest(group=group.name), pb.GroupOffsetsReply
            )
            offsets = {one.queue: one.offset for one in reply.offsets if one.topic == name}
            if offsets:
                lag = sum(
                    max(0, one.max_offset - max(offsets.get(one.queue.number, 0), one.min_offset))
                    for one in found.queues
                )
                groups.append({"group": group.name, "lag": lag})
            await asyncio.sleep(0)
        rates = self._queue_rates(found)
        return topic_document(found) | {
            "queues": [
                queue_document(one)
                | {
                    "last_stored_ms": _last_stored_ms(self.parts.store, one, at),
                    "messages_per_s": rates.get(one.queue.number),
                }
                for at, one in enumerate(found.queues)
            ],
            "sent": None if found.sent is None else asdict(found.sent),
            "groups": groups if may_see else None,
        }

    def _queue_rates(self, found: TopicDescription) -> dict[int, float]:
        """Return the messages per second of each queue since the last read of the topic, if there was one."""
        now_s = asyncio.get_running_loop().time()
        ends = {one.queue.number: one.max_offset for one in found.queues}
        before_s, before = self._looked_at.get(found.name, (now_s, ends))
        passed_s = now_s - before_s
        if found.name not in self._looked_at or passed_s >= _RATE_LEAST_S:
            self._looked_at.pop(found.name, None)
            self._looked_at[found.name] = now_s, ends
            while len(self._looked_at) > _RATES_KEPT:
                del self._looked_at[next(iter(self._looked_at))]
        if not 0 < passed_s <= _RATE_S:
            return {}
        common = before.keys() & ends.keys()
        return {queue: max(0, ends[queue] - before[queue]) / passed_s for queue in common}

    async def messages(self, asked: PageRequest, topic: str) -> Document:
        """Return messages of a topic: by key, tag, id, queue and offset, SQL, a time, or the newest."""
        query = asked.query
        limit = limit_of(query)
        if "id" in query:
            found = [await self.admin.lookup_id(query["id"], topic)]
        elif "key" in query or "tag" in query:
            to_ms = instant_ms(query, "to_ms", 0)
            found = await self.admin.lookup(
                topic,
                query.get("key"),
                tag=query.get("tag"),
                begin_ms=instant_ms(query, "from_ms", 0),
                end_ms=max(1, to_ms - 1) if to_ms else 0,
                max_messages=limit,
            )
            found.reverse()
        elif "offset" in query:
            found = await self.admin.lookup_offset(
                topic, number(query, "queue", 0), number(query, "offset", 0), max_messages=limit
            )
        elif "sql" in query:
            wanted = compiled(query["sql"])
            every = await self._recent(topic, query)
            values = [{**one.properties, "TAGS": one.tag} for one in every]
            rows = [tuple(one.get(name) for name in wanted.names) for one in values]
            fits = wanted.matches(rows)
            found = [one for one, is_true in zip(every, fits, strict=True) if is_true][:limit]
        elif "from_ms" in query:
            end_ms = instant_ms(query, "to_ms", 1 << 62)
            begin_ms = instant_ms(query, "from_ms", 0)
            found = await self.admin.lookup_time(topic, begin_ms, end_ms, max_messages=limit)
        else:
            found = await self._newest(topic, limit)
        return {"messages": [message_document(one) for one in found]}

    async def _recent(self, topic: str, query: Mapping[str, str]) -> list[Any]:
        """Return up to SQL_ROWS_MAX messages for a filter: the newest, or those from a time on."""
        if "from_ms" not in query:
            return await self._newest(topic, SQL_ROWS_MAX)
        begin_ms, end_ms = instant_ms(query, "from_ms", 0), instant_ms(query, "to_ms", 1 << 62)
        return await self.admin.lookup_time(topic, begin_ms, end_ms, max_messages=SQL_ROWS_MAX)

    async def _newest(self, topic: str, limit: int) -> list[Any]:
        found = []
        for one in (await self.admin.describe_topic(topic)).queues:
            begin = max(one.min_offset, one.max_offset - limit)
            if begin < one.max_offset:
                try:
                    found += await self.admin.lookup_offset(
                        topic, one.queue, begin, max_messages=limit
                    )
                except errors.MessageNotFound:
                    continue  # It was deleted meanwhile, or its record is damaged.
        found.sort(key=lambda message: (-message.store_timestamp_ms, -message.log_offset))
        return found[:limit]

    async def history(self, asked: PageRequest, message: str) -> Document:
        """Return the history of the messages with an id, with a key of a topic, or at TOPIC/QUEUE/OFFSET."""
        named = [message.split("/")[0]] if message.count("/") == 2 else []
        named += [asked.query["topic"]] if "topic" in asked.query else []
        self.need(asked, *(of_topic(name, SUB | GET) for name in named or ["*"]))
        status = await self.status()
        count = min(max(number(asked.query, "count", 4), 1), LIMIT_MAX)
        wanted = WhyAsked(message, asked.query.get("topic"), count)
        await self._looking.acquire()
        # If the client disconnects, the thread still counts until it ends.
        look = asyncio.get_running_loop().run_in_executor(
            None, _histories, status.store_path, wanted
        )
        look.add_done_callback(lambda _: self._looking.release())
        stories = await asyncio.shield(look)
        if not stories:
            raise errors.MessageNotFound(
                f"message {message[:200]!r} not found. Check the id, or give topic and key",
                asked_for=message[:200],
            )
        documents = [story.document(status.broker_name) for story in stories]
        return {"stories": self._visible_histories(asked, documents)}

    def _visible_histories(self, asked: PageRequest, every: list[Document]) -> list[Document]:
        """Return what the caller may see of EVERY history. Raises NotAuthorized if that is nothing."""
        found = [
            visible_history(one, self.sees_topic, self.sees_group)
            for one in every
            if not one["topic"] or self.may(of_topic(one["topic"], SUB | GET))
        ]
        if not found:
            error = errors.NotAuthorized("you may not read the topic of this message")
            if self._door.guard is not None:
                self._door.guard.audit.denied(asked.path, asked.peer, error)
            raise error
        return found

    async def groups(self, asked: PageRequest) -> Document:
        """Return a page of the groups, by name, with their lag."""
        query = asked.query
        skip, limit = number(query, "skip", 0), limit_of(query)
        wanted = query.get("search", "").lower()
        found = [one for one in await self.admin.groups() if wanted in one.name.lower()]
        rows = []
        some = found[skip : skip + limit]
        seen = [one for one in some if self.sees_group(one.name)]
        for one in seen:
            lags = await self._rows(one)
            worst = next((row for row in lags if row.verdict not in CALM), None)
            ages = [row.oldest_unread_age_ms or 0 for row in lags]
            rows.append(
                asdict(one)
                | {
                    "lag": sum(row.lag or 0 for row in lags),
                    "oldest_unread_ms": max(ages, default=0),
                    "verdict": "ok" if worst is None else str(worst.verdict),
                    "dead_letters": max((row.facts.dead_letters or 0 for row in lags), default=0),
                }
            )
            await asyncio.sleep(0)
        left_out = await self._hidden_groups() + len(some) - len(seen)
        return {
            "groups": rows,
            "total": len(found),
            "skip": skip,
            "limit": limit,
            "left_out": left_out,
        }

    async def _official_of(self, group: str) -> dict[str, pb.OfficialClient]:
        """Return the official clients of GROUP by id, if the caller may see connections."""
        if not self.may(self._see_broker):
            return {}
        reply = await self.ask("ListClients", pb.ClientListRequest(), pb.ClientListReply)
        return {one.client_id: one for one in reply.clients if one.group == group}

    async def group(self, asked: PageRequest, name: str) -> Document:
        """Return one group: members, queues, lags."""
        every = await self.admin.groups() if self.may(of_group(OTHERS, LIST | GET)) else []
        settings = [one for one in every if one.name == name]
        rows = await self._rows(name)
        found = group_document(await self.admin.describe_group(name))
        official = await self._official_of(name)
        for one in found["clients"]:
            known = official.get(one["client_id"])
            one["version"] = known.version if known is not None else None
        return found | {
            "settings": asdict(settings[0]) if settings else None,
            "lags": [row.to_json() for row in rows],
        }

    async def dead_letters(self, asked: PageRequest, group: str) -> Document:
        """Return a page of a group's dead letters, the oldest first; `all`: also resent ones."""
        limit = limit_of(asked.query)
        begin = number(asked.query, "from", 0)
        found = await self.admin.dead_letters(
            group,
            from_offset=begin,
            max_letters=limit,
            include_resent=asked.query.get("all") == "true",
        )
        rows = [letter_document(one) for one in found]
        following = rows[-1]["offset"] + 1 if len(rows) == limit else None
        return {"dead_letters": rows, "from": begin, "limit": limit, "next_from": following}

    async def dead_letter_bounds(self, group: str) -> pb.DeadLettersReply:
        """Return the first and last offset of the dead letters of GROUP. Raises GroupNotFound."""
        request = pb.DeadLettersRequest(group=group, max_letters=1)
        found: pb.DeadLettersReply = await self.ask("DeadLetters", request, pb.DeadLettersReply)
        return found

    async def all_dead_letters(self, asked: PageRequest) -> Document:
        """Return the groups with dead letters that were not resent; `all`: also the others."""
        everything = asked.query.get("all") == "true"
        request = pb.BrokerTopicsRequest(include_system=True, containing=DEAD_LETTER_PREFIX)
        reply = await self.ask("ListTopics", request, pb.BrokerTopicsReply)
        rows, left_out = [], 0
        for topic in [one.name for one in reply.topics if one.name.startswith(DEAD_LETTER_PREFIX)]:
            group = topic.removeprefix(DEAD_LETTER_PREFIX)
            if not self.sees_group(group):
                left_out += 1
                continue
            try:
                bounds = await self.dead_letter_bounds(group)
            except errors.GroupNotFound:
                continue
            waiting = bounds.max_offset - bounds.min_offset - bounds.resent_count
            if waiting or (everything and bounds.resent_count):
                rows.append(
                    {"group": group, "dead_letters": waiting, "resent": bounds.resent_count}
                )
            await asyncio.sleep(0)
        rows.sort(key=lambda row: (-row["dead_letters"], row["group"]))
        return {"groups": rows[:LIMIT_MAX], "total": len(rows), "left_out": left_out}

    async def connections(self, asked: PageRequest) -> Document:
        """Return a page of the open connections, by id, totals of all, and the official clients.

        Groups and topics that the user may not see are left out.
        """
        query = asked.query
        request = pb.ConnectionListRequest(
            first_id=number(query, "first_id", 0), max_connections=limit_of(query)
        )
        reply = await self.connection.call(
            "/pocketmq.v1.Connections/List", request, pb.ConnectionListReply, _TIMEOUT_MS
        )
        clients = await self.ask("ListClients", pb.ClientListRequest(), pb.ClientListReply)
        return {
            "connections": [asdict(figures_of(one)) for one in reply.connections],
            "next_id": reply.next_id or None,
            "totals": asdict(totals_of(reply.totals)),
            "official_clients": [
                {
                    "client_id": one.client_id,
                    "language": one.language or None,
                    "version": one.version or None,
                    "type": one.type or None,
                    "group": one.group or None,
                    "topics": list(one.topics),
                    "left_out_group": one.hidden_group,
                    "left_out_topics": one.hidden_topics,
                    "heard_ms": one.heard_ms,
                }
                for one in clients.clients[:LIMIT_MAX]
            ],
        }

    async def connection_of(self, number: int) -> pb.ConnectionFigures | None:
        """Return connection NUMBER; None: it is not open."""
        request = pb.ConnectionListRequest(first_id=number, max_connections=1)
        reply = await self.connection.call(
            "/pocketmq.v1.Connections/List", request, pb.ConnectionListReply, _TIMEOUT_MS
        )
        found = list(reply.connections)
        return found[0] if found and found[0].id == number else None

    async def _changes(self, visitor: ConsoleSession) -> AsyncGenerator[bytes, None]:
        """Yield events when messages are stored, and at an interval, while VISITOR is authenticated."""
        before, ticks = -1, 0
        while self._door.is_in(visitor):
            now = self._counters().dispatched_offset
            ticks += 1
            if now != before or ticks >= _REFRESH_TICKS:
                before, ticks = now, 0
                yield f"event: changed\ndata: {now}\n\n".encode()
            await asyncio.sleep(_TICK_S)


def _last_stored_ms(store: MessageStore, one: QueueDescription, at: int) -> int | None:
    """Return when the last message of queue ONE, number AT of its topic, was stored; None: not known."""
    if at >= _LAST_STORED_MAX or one.max_offset <= one.min_offset:
        return None
    last_ms = stored_ms(store, one.queue.topic, one.queue.number, one.max_offset - 1)
    return last_ms if last_ms >= 0 else None


def due_times(timers: TimerStore) -> tuple[np.ndarray, np.ndarray]:
    """Return the delivery times of messages in TIMERS, in Unix ms and ascending, and the number of messages of each."""
    times = timers.ring.pending_times()
    counts = timers.ring.get_many(times)[2] if len(times) else times
    there = counts > 0
    return times[there] * timers.precision_ms, counts[there]


def _next_due(timers: TimerStore) -> list[Document]:
    times_ms, counts = due_times(timers)
    soonest = zip(times_ms[:_NEXT_DUE].tolist(), counts[:_NEXT_DUE].tolist(), strict=True)
    return [{"due_ms": due_ms, "messages": count} for due_ms, count in soonest]


def _replica(figures: Iterable[PageFigure]) -> Document:
    """Return the state of the replica set from the metrics in FIGURES; empty if the broker is in none."""
    alone: Document = {}
    others: dict[str, Document] = {}
    for one in figures:
        if not one.name.startswith(_REPLICA):
            continue
        name, labels = one.name.removeprefix(_REPLICA), dict(one.labels)
        if name == "info":
            alone |= {"set": labels["set"], "replica": int(labels["replica"])}
        elif "replica" in labels:
            other = others.setdefault(labels["replica"], {"replica": int(labels["replica"])})
            other[name] = one.value
        elif not one.labels:
            alone[name] = one.value
    return alone | {"others": list(others.values())} if alone else {}


def _histories(path: str, wanted: WhyAsked) -> list[Any]:
    from ..stores.locations import locate

    return [story for place in locate([path]) for story in histories_in(place, {}, wanted)[1]]


def number(values: Mapping[str, Any], name: str, default: int) -> int:
    """Return the number NAME of VALUES. Raises InvalidArgument if it is negative or no number."""
    value = values.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise errors.InvalidArgument(
            f"{name} is {str(value)[:40]!r}: must be a whole number, 0 or more", field=name
        )
    return value


def instant_ms(values: Mapping[str, Any], name: str, default: int) -> int:
    """Return the Unix milliseconds NAME of VALUES. Raises InvalidArgument, also for seconds."""
    return check_unix_ms(number(values, name, default), name)


def limit_of(query: Mapping[str, str]) -> int:
    """Return the limit of rows in QUERY. Raises InvalidArgument if it is too large."""
    limit = number(query, "limit", _LIMIT)
    if not 0 < limit <= LIMIT_MAX:
        raise errors.InvalidArgument(
            f"limit is {limit}: must be 1 to {LIMIT_MAX}", field="limit", limit=LIMIT_MAX
        )
    return limit


READS: Final = (
    ApiRoute("GET", "/api/overview", Api.overview),
    ApiRoute("GET", "/api/store", Api.store),
    ApiRoute("GET", "/api/topics", Api.topics),
    ApiRoute("GET", "/api/topics/{topic}", Api.topic),
    ApiRoute("GET", "/api/topics/{topic}/messages", Api.messages),
    ApiRoute("GET", "/api/messages/{message}/life", Api.history),
    ApiRoute("GET", "/api/groups", Api.groups),
    ApiRoute("GET", "/api/groups/{group}", Api.group),
    ApiRoute("GET", "/api/groups/{group}/dead-letters", Api.dead_letters),
    ApiRoute("GET", "/api/dead-letters", Api.all_dead_letters),
    ApiRoute("GET", "/api/connections", Api.connections),
)
