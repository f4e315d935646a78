"""The settings of a process: their values, where each came from, and changes without a restart.

    live = LiveSettings({"broker": broker_config, "store": store_config}, origins, audit)
    live.reload(loaded, origins)        the file was read again
    live.set("store.retention_ms", "3600000", by="ada")

A section is a frozen dataclass, shared by all code that needs it. Its `LIVE` names the keys that may change at run
time; code reads these from the section each time and keeps no copy. A change first builds a new section, with all the
checks of a start, and then copies the new values. So a refused change changes nothing.

`set` does not change the file: its values are replaced at the next SIGHUP or start. Each change is one line of the
audit log. The event loop owns a LiveSettings; other threads may read settings.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

from ..access.audit import Audit, host_of
from ..access.signing import claimed_user
from ..configuration import nearest, parse_value
from ..errors import ConfigError, InvalidArgument
from ..gen import pocketmq_v1_pb2 as pb
from ..rpc import Call, MethodTable, service, unary

logger = logging.getLogger(__name__)

NAME: Final = "pocketmq.v1.Settings"
DEFAULT: Final = "default"
#: Origin of a setting that differs from its default without a known reason, as in a program's own server.
_GIVEN: Final = "given at the start"
#: Characters of a value.
_VALUE_MAX: Final = 4_096


class LiveSettings:
    """The SECTIONS of one process, by title. ORIGINS has the origin of each "section.key".

    AUDIT gets each change; ON_CHANGE, by title, is called after a section has changed.
    """

    def __init__(
        self,
        sections: Mapping[str, Any],
        origins: Mapping[str, str] | None = None,
        *,
        audit: Audit,
        on_change: Mapping[str, Callable[[Any], None]] | None = None,
    ) -> None:
        self._sections = dict(sections)
        self._origins = dict(origins or {})
        self._audit = audit
        self._on_change = dict(on_change or {})
        #: The values of the last load, from file and options.
        self._loaded = dict(sections)

    def hold(self, sections: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        """Use SECTIONS instead of the current ones: servers may complete settings when they start."""
        self._sections |= {title: sections[title] for title in self._sections}
        self._origins |= origins

    def tell(self, titles: Iterable[str]) -> list[pb.Setting]:
        """Return all settings in the sections TITLES."""
        return [
            self._told(title, field.name)
            for title in titles
            if title in self._sections
            for field in dataclasses.fields(self._sections[title])
        ]

    def _told(self, title: str, key: str) -> pb.Setting:
        section = self._sections[title]
        value, default = getattr(section, key), _default(section, key)
        unsaid = DEFAULT if value == default else _GIVEN
        return pb.Setting(
            key=f"{title}.{key}",
            value=_text(value),
            default_value="" if default is dataclasses.MISSING else _text(default),
            origin=self._origins.get(f"{title}.{key}", unsaid),
            live=key in section.LIVE,
        )

    def set(self, name: str, text: str, titles: Iterable[str], **by: str) -> tuple[Any, Any]:
        """Set NAME, "section.key" of a section in TITLES, to the value TEXT, YAML; return the old and the new value.

        BY identifies the caller, for the audit log. Raises InvalidArgument for an unknown name and for a setting that
        needs a restart, ConfigError for an invalid value.
        """
        title, _, key = name.partition(".")
        titles = [one for one in titles if one in self._sections]
        known = [
            f"{one}.{field.name}"
            for one in titles
            for field in dataclasses.fields(self._sections[one])
        ]
        if name not in known:
            raise InvalidArgument(f"no setting {name!r} here{nearest(name, known)}", field="key")
        section = self._sections[title]
        if key not in section.LIVE:
            raise InvalidArgument(
                f"{name} cannot change while the server runs: change the configuration file, and restart the"
                " server",
                field="key",
                value=name,
            )
        if len(text) > _VALUE_MAX:
            raise InvalidArgument(
                f"the value of {name} has {len(text)} characters, the limit is {_VALUE_MAX}",
                field="value",
                limit=_VALUE_MAX,
            )
        before = self._told(title, key)
        value = parse_value(type(section), title, key, text)
        self._change({title: {key: value}}, {name: "set live"}, **by)
        return before, self._told(title, key)

    def reload(self, sections: Mapping[str, Any], origins: Mapping[str, str]) -> None:
        """Use the values of SECTIONS (from file and options) for all live keys, also where `set` had changed them.

        Raises ConfigError, and changes nothing, if they do not fit the fixed settings. Changed values of settings
        that need a restart are logged.
        """
        before, changes, told = self._loaded, dict[str, dict[str, Any]](), dict[str, str]()
        waiting = []
        for title, held in self._sections.items():
            section = sections[title]
            for field in dataclasses.fields(section):
                key, value = field.name, getattr(section, field.name)
                if key in section.LIVE:
                    told[f"{title}.{key}"] = origins.get(f"{title}.{key}", DEFAULT)
                    if value != getattr(held, key):
                        changes.setdefault(title, {})[key] = value
                elif value != getattr(before[title], key):
                    waiting.append(f"{title}.{key}")
        self._change(changes, told, by="SIGHUP")
        if waiting:
            logger.warning(
                "settings that need a restart were not changed keys=%s", ",".join(waiting)
            )
        logger.info("settings reloaded changes=%d", sum(map(len, changes.values())))

    def _change(
        self, changes: Mapping[str, Mapping[str, Any]], origins: Mapping[str, str], **by: str
    ) -> None:
        """Write CHANGES into the sections, all or none of them."""
        for title, values in changes.items():
            _checked(title, self._sections[title], values)
        self._origins |= origins
        for title, values in changes.items():
            section = self._sections[title]
            for key, value in values.items():
                before = _text(getattr(section, key))
                # The dataclass is frozen for its users: this is the one place that changes it.
                object.__setattr__(section, key, value)
                self._audit.changed(
                    "setting changed", key=f"{title}.{key}", before=before, value=_text(value), **by
                )
            if title in self._on_change:
                self._on_change[title](section)

    def refused(self, error: ConfigError) -> None:
        """Log that the file is invalid because of ERROR: nothing has changed."""
        logger.error("settings not reloaded reason=%s", error.message)
        self._audit.changed("settings not reloaded", reason=error.message, by="SIGHUP")


def _checked(title: str, section: Any, values: Mapping[str, Any]) -> None:
    """Raise ConfigError, with names as in the file, if SECTION must not have VALUES."""
    try:
        dataclasses.replace(section, **values)
    except ConfigError as error:
        sentence = error.message.removeprefix(f"{title}.")
        raise ConfigError(f"{title}.{sentence}", **error.details) from None


def _default(section: Any, key: str) -> Any:
    (field,) = (one for one in dataclasses.fields(section) if one.name == key)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _text(value: Any) -> str:
    """Return VALUE as JSON, which is YAML as well."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else dict(value)


class SettingsService:
    """Serves the sections TITLES of LIVE. PROVES_USERS: calls are authenticated, so their user is proven."""

    def __init__(self, live: LiveSettings, titles: Iterable[str], *, proves_users: bool) -> None:
        self._live = live
        self._titles = tuple(titles)
        self._proves_users = proves_users

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        return service(
            NAME,
            {
                "List": unary(pb.SettingListRequest, pb.SettingListReply, self.list_all),
                "Set": unary(pb.SetSettingRequest, pb.SetSettingReply, self.set_one),
            },
        )

    def list_all(self, request: pb.SettingListRequest, call: Call) -> pb.SettingListReply:
        """Return all settings."""
        return pb.SettingListReply(settings=self._live.tell(self._titles))

    def set_one(self, request: pb.SetSettingRequest, call: Call) -> pb.SetSettingReply:
        """Change one setting, for CALL."""
        claimed = claimed_user(call.metadata) if self._proves_users else ""
        user = claimed or ",".join(call.certificate_names)
        before, after = self._live.set(
            request.key,
            request.value,
            self._titles,
            host=host_of(call.peer),
            **({"user": user} if user else {}),
        )
        return pb.SetSettingReply(before=before, after=after)
