"""Requests of a follower to its Java broker: identity, offsets of the log, and tables.

Tables are read before the end of the log is asked for: what they say was so when the log was no longer than that, so
that they hold for a follower whose log has come there. Nothing is changed at the broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ...proto.errors import ConnectionLost, StoreMismatch, Unsupported
from ...proto.remoting.client import RemotingClient
from ...proto.remoting.codes import RequestCode
from ...store.format import state_tables
from ...store.format.java_json import Json, parse, render

#: The settings that decide about the files, and about when delayed messages are due.
SETTINGS: Final = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mapperFileSizeBatchConsumeQueue",
    "mappedFileSizeTimerLog",
    "maxHashSlotNum",
    "maxIndexNum",
    "maxMessageSize",
    "messageDelayLevel",
    "timerPrecisionMs",
    "timerRollWindowSlot",
)
_TIMER_CHECKPOINT_SIZE: Final = 56
TOPICS_FILE: Final = "topics.json"


@dataclass(frozen=True, slots=True)
class MasterIdentity:
    """Who the broker is, by its own configuration."""

    cluster: str
    broker: str
    auto_switch: bool
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class MasterTables:
    """The broker's state files by name, as text, when its log ended at END or before."""

    files: dict[str, str]
    timer_checkpoint: bytes
    end: int


class JavaMaster:
    """The broker at ADDRESS. A call raises ConnectFailed, ConnectionLost, RequestTimeout, Unsupported."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: RemotingClient | None = None

    @property
    def is_connected(self) -> bool:
        return self._client is not None and not self._client.is_closed

    def close(self) -> None:
        """Let go of the connection; the next call makes another."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def _call(self, code: RequestCode, fields: dict[str, str] | None = None) -> bytes:
        if not self.is_connected:
            self.close()
            self._client = await RemotingClient.connect(self.address)
        assert self._client is not None
        try:
            return (await self._client.call(code, fields)).body
        except Unsupported:
            raise
        except BaseException:
            self.close()
            raise

    def _read(self, code: RequestCode, body: bytes, parser: Callable[[str], Any]) -> Any:
        try:
            return parser(body.decode())
        except ValueError as error:
            self.close()
            raise ConnectionLost(
                f"{self.address} answered {code.name} with what cannot be read: {error}",
                address=self.address,
            ) from None

    async def identity(self) -> MasterIdentity:
        """Return who the broker is. Raises StoreMismatch for one whose log cannot be followed."""
        body = await self._call(RequestCode.GET_BROKER_CONFIG)
        lines = [line.partition("=") for line in body.decode("utf-8", "replace").splitlines()]
        config = {name: value for name, _, value in lines}
        for name, wrong, why in (
            ("brokerRole", "SLAVE", "it is a slave: follow its master"),
            ("enableDLegerCommitLog", "true", "its log is DLedger's, which is another format"),
        ):
            if config.get(name) == wrong:
                raise StoreMismatch(
                    f"the broker at {self.address} cannot be followed, {name}={wrong}: {why}",
                    address=self.address,
                )
        return MasterIdentity(
            config.get("brokerClusterName", ""),
            config.get("brokerName", ""),
            config.get("enableControllerMode") == "true",
            {name: config[name] for name in SETTINGS if name in config},
        )

    async def bounds(self) -> tuple[int, int]:
        """Return where the log begins and ends."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO

        def bounds(text: str) -> tuple[int, int]:
            document = parse(text)
            table = document.get("table") if isinstance(document, dict) else None
            if not isinstance(table, dict):
                raise ValueError("there is no table in it")
            begin, end = table.get("commitLogMinOffset"), _number(table, "commitLogMaxOffset")
            # A log without a file begins at -1.
            return (0 if begin == "-1" else _number(table, "commitLogMinOffset")), end

        found: tuple[int, int] = self._read(code, await self._call(code), bounds)
        return found

    async def record(self, offset: int) -> bytes | None:
        """Return the bytes of the record that begins at OFFSET of the log; None: there is none."""
        try:
            return await self._call(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        except Unsupported:
            return None

    async def topics(self) -> str:
        """Return the text of topics.json."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        text: str = self._read(code, await self._call(code), _topics)
        return text

    async def tables(self) -> MasterTables:
        """Return the tables, and the end of the log that they do not exceed."""
        files: dict[str, str] = {}
        for code, name, rendered in _FILES:
            try:
                body = await self._call(code)
            except Unsupported:
                if name in _NEEDED:
                    raise
                continue  # A broker that never had it.
            files[name] = self._read(code, body, rendered)
        try:
            checkpoint = await self._call(RequestCode.GET_TIMER_CHECK_POINT)
        except Unsupported:  # Its timers are off.
            checkpoint = b""
        _, end = await self.bounds()
        return MasterTables(files, checkpoint[:_TIMER_CHECKPOINT_SIZE], end)


def _topics(text: str) -> str:
    return _rendered(state_tables.TOPICS, text)


def _groups(text: str) -> str:
    return _rendered(state_tables.GROUPS, text)


def _rendered(form: state_tables.TableForm[Any], text: str) -> str:
    """Return TEXT, a table of FORM, as PocketMQ writes it; an entry that cannot be read stays as it is."""
    table = form.parse(text)
    beans: dict[str | int, Json] = {name: one.to_json() for name, one in table.entries.items()}
    beans |= {name: one.bean for name, one in table.unread.items()}
    return render({"dataVersion": table.version.to_json(), **table.others, form.members: beans})


def _offsets(text: str) -> str:
    return state_tables.render_consumer_offsets(state_tables.parse_consumer_offsets(text))


def _delays(text: str) -> str:
    return state_tables.render_delay_offsets(state_tables.parse_delay_offsets(text))


def _modes(text: str) -> str:
    return render(parse(text))


#: The request for each file.
_FILES: Final[tuple[tuple[RequestCode, str, Callable[[str], str]], ...]] = (
    (RequestCode.GET_ALL_CONSUMER_OFFSET, "consumerOffset.json", _offsets),
    (RequestCode.GET_ALL_DELAY_OFFSET, "delayOffset.json", _delays),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroup.json", _groups),
    (RequestCode.GET_ALL_TOPIC_CONFIG, TOPICS_FILE, _topics),
    (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, "messageRequestMode.json", _modes),
)
_NEEDED: Final = ("consumerOffset.json", "subscriptionGroup.json", TOPICS_FILE)


def _number(table: dict[Any, Any], name: str) -> int:
    text = str(table.get(name))
    if not text.isdecimal():
        raise ValueError(f"{name} is {text[:40]!r}, not a number")
    return int(text)
