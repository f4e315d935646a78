"""Users and their policies, as the file of users has them, and authentication of calls.

    users:
      alice:
        secret: env:ALICE_SECRET      # or file:/run/secrets/alice (first line), inline:TEXT, or the text itself
        type: Normal                  # or Super, who may do everything
        status: enable                # or disable
        certificates: [alice.example] # names in client certificates that identify this user; none: signatures only
        policies:
          - {resource: "Topic:orders*", actions: [Pub, Sub], sources: [10.0.0.0/8], decision: Allow}
        default_policies: []          # used where none of the policies matches

`UserEntry` is a user as in the file, with the secret as written there. `Users` is what a server uses. It is immutable
and replaced as a whole. Limits: USERS_MAX users, POLICIES_MAX policies of one user.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ..configuration import nearest
from ..errors import ConfigError, NotAuthenticated
from . import signing
from .policies import (
    POLICIES_MAX,
    SOURCES_MAX,
    SUPER,
    Judgement,
    Need,
    Policies,
    Policy,
    Resource,
    action_names,
    parse_actions,
    parse_source,
)
from .signing import Credentials

USERS_MAX: Final = 10_000
NAME_LENGTH_MAX: Final = 255
SECRET_LENGTH_MAX: Final = 1_024
CERTIFICATES_MAX: Final = 100
#: Headers whose signature was verified. When this cache is full, it is emptied.
_KNOWN_MAX: Final = 4_096
_TYPES: Final = ("Normal", "Super")
_STATUSES: Final = ("enable", "disable")
_KEYS: Final = ("secret", "type", "status", "certificates", "policies", "default_policies")
_POLICY_KEYS: Final = ("resource", "actions", "sources", "decision")
#: Returns the secret that a reference such as env:NAME refers to; raises ConfigError.
ReadSecret = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class UserEntry:
    """A user as in the file: SECRET is as written there."""

    name: str
    secret: str = field(repr=False)
    is_super: bool = False
    enabled: bool = True
    certificates: tuple[str, ...] = ()
    policies: tuple[Policy, ...] = ()
    default_policies: tuple[Policy, ...] = ()

    @property
    def type(self) -> str:
        """Super or Normal."""
        return _TYPES[self.is_super]

    @property
    def status(self) -> str:
        """Enable or disable."""
        return _STATUSES[not self.enabled]

    def __post_init__(self) -> None:
        check_name(self.name)
        check_secret(self.name, self.secret)
        count = len(self.policies) + len(self.default_policies)
        if count > POLICIES_MAX:
            raise ConfigError(
                f"users.{self.name}: {count} policies, the limit is {POLICIES_MAX}: replace some by one with a prefix",
                field="policies",
                limit=POLICIES_MAX,
                value=count,
            )

    def to_document(self) -> dict[str, Any]:
        """Return it as in the file. Default values are left out, except type and status."""
        document: dict[str, Any] = {
            "secret": self.secret,
            "type": self.type,
            "status": self.status,
        }
        if self.certificates:
            document["certificates"] = list(self.certificates)
        document["policies"] = [policy_document(policy) for policy in self.policies]
        if self.default_policies:
            document["default_policies"] = [policy_document(one) for one in self.default_policies]
        return document


def check_name(name: str) -> None:
    """Raise ConfigError unless NAME is a valid name of a user."""
    bad = next((one for one in name if one in "/," or one.isspace() or not one.isprintable()), None)
    if bad is not None or not 0 < len(name.encode()) <= NAME_LENGTH_MAX:
        found = f"has {bad!r}" if bad is not None else f"has {len(name.encode())} bytes"
        raise ConfigError(
            f"users: the name {name[:40]!r} {found}: it must have 1 to {NAME_LENGTH_MAX} bytes, no spaces, / or ,",
            field="user",
            limit=NAME_LENGTH_MAX,
            value=name[:40],
        )


def check_secret(user: str, secret: str) -> None:
    """Raise ConfigError unless SECRET of USER has a valid length. The error does not contain the secret."""
    if not 0 < len(secret) <= SECRET_LENGTH_MAX:
        raise ConfigError(
            f"users.{user}.secret: has {len(secret)} characters, must have 1 to {SECRET_LENGTH_MAX}",
            field="secret",
            limit=SECRET_LENGTH_MAX,
            value=len(secret),
        )
    if any("\ud800" <= one <= "\udfff" for one in secret):
        raise ConfigError(f"users.{user}.secret: is not UTF-8", field="secret")


def read_users(document: object, name: str) -> dict[str, UserEntry]:
    """Return the users in DOCUMENT, the content of the file NAME. Raises ConfigError."""
    root = _mapping(document, name, ("users",))
    found = root.get("users") or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: users: must have one key for each user", file=name)
    if len(found) > USERS_MAX:
        raise ConfigError(
            f"{name}: users: {len(found)} users, the limit is {USERS_MAX}",
            file=name,
            limit=USERS_MAX,
        )
    return {str(user): _read_user(str(user), values, name) for user, values in found.items()}


def _read_user(user: str, values: object, name: str) -> UserEntry:
    where = f"{name}: users.{user}"
    keys = _mapping(values, where, _KEYS)
    secret = keys.get("secret")
    if not isinstance(secret, str):
        raise ConfigError(
            f"{where}.secret: must be a text (in quotes if it looks like a number), env:NAME or file:PATH",
            file=name,
            field="secret",
        )
    try:
        return UserEntry(
            name=user,
            secret=secret,
            is_super=_choice(keys.get("type", "Normal"), _TYPES, f"{where}.type") == "Super",
            enabled=_choice(keys.get("status", "enable"), _STATUSES, f"{where}.status") == "enable",
            certificates=tuple(
                _texts(keys.get("certificates"), f"{where}.certificates", CERTIFICATES_MAX)
            ),
            policies=read_policies(keys.get("policies"), f"{where}.policies"),
            default_policies=read_policies(
                keys.get("default_policies"), f"{where}.default_policies"
            ),
        )
    except ConfigError as error:
        if error.message.startswith(name):
            raise
        raise ConfigError(f"{name}: {error.message}", **{**error.details, "file": name}) from None


def read_policies(values: object, where: str) -> tuple[Policy, ...]:
    """Return the policies in VALUES; errors contain WHERE. Raises ConfigError."""
    if values is None:
        return ()
    if not isinstance(values, list):
        raise ConfigError(f"{where}: must be a list of policies", field="policies")
    return tuple(read_policy(value, f"{where}[{at}]") for at, value in enumerate(values))


def read_policy(value: object, where: str) -> Policy:
    """Return the policy in VALUE; errors contain WHERE. Raises ConfigError."""
    keys = _mapping(value, where, _POLICY_KEYS)
    resource = keys.get("resource")
    if not isinstance(resource, str):
        raise ConfigError(
            f"{where}.resource: must be a text such as Topic:orders", field="resource"
        )
    sources = _texts(keys.get("sources"), f"{where}.sources", SOURCES_MAX)
    decision = _choice(keys.get("decision", "Allow"), ("Allow", "Deny"), f"{where}.decision")
    return Policy(
        resource=Resource.parse(resource, f"{where}.resource"),
        actions=parse_actions(
            _texts(keys.get("actions"), f"{where}.actions", SOURCES_MAX), f"{where}.actions"
        ),
        sources=tuple(parse_source(source, f"{where}.sources") for source in sources),
        allow=decision == "Allow",
    )


def policy_document(policy: Policy) -> dict[str, Any]:
    """Return POLICY as in the file."""
    document: dict[str, Any] = {
        "resource": str(policy.resource),
        "actions": action_names(policy.actions),
        "decision": policy.decision,
    }
    if policy.sources:
        document["sources"] = [str(source) for source in policy.sources]
    return document


def _mapping(value: object, where: str, known: Iterable[str]) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: must be keys with values, not {type(value).__name__}")
    for key in value:
        if key not in known:
            hint = nearest(key, known)
            # YAML reads `{text}` as a key. An unknown key without a similar known one may be a secret: it is not shown.
            shown = f".{key}: no such key" if "did you mean" in hint else ": a key is unknown"
            raise ConfigError(f"{where}{shown}{hint}")
    return value


def _texts(value: object, where: str, count_max: int) -> list[str]:
    """Return the texts in VALUE: a list of texts, one text with commas, or nothing."""
    found = value.split(",") if isinstance(value, str) else value or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{where}: must be a list of texts, not {type(value).__name__}")
    if len(found) > count_max:
        raise ConfigError(
            f"{where}: {len(found)} values, the limit is {count_max}",
            limit=count_max,
            value=len(found),
        )
    return [one.strip() for one in found]


def _choice(value: object, known: tuple[str, str], where: str) -> str:
    for one in known:
        if str(value).strip().lower() == one.lower():
            return one
    raise ConfigError(f"{where}: must be {known[0]} or {known[1]}, not {str(value)[:40]!r}")


class User:
    """A user whose secret the server knows."""

    __slots__ = ("enabled", "is_super", "name", "policies", "secret")

    def __init__(self, entry: UserEntry, secret: str) -> None:
        self.name = entry.name
        self.secret = secret.encode()
        self.is_super = entry.is_super
        self.enabled = entry.enabled
        self.policies = Policies(entry.policies, entry.default_policies)

    def check_enabled(self) -> None:
        """Raise NotAuthenticated if the user is disabled."""
        if not self.enabled:
            raise NotAuthenticated(f"User:{self.name} is disabled.", user=self.name)

    def decide(self, need: Need, host: str, cluster: str) -> Judgement:
        """Return the decision about NEED of this user, who calls from HOST, at a server of CLUSTER."""
        return SUPER if self.is_super else self.policies.decide_all(need, host, cluster)


class Users:
    """The users of ENTRIES. READ_SECRET returns the secret of a reference, and raises ConfigError."""

    def __init__(self, entries: Iterable[UserEntry], read_secret: ReadSecret) -> None:
        #: The first user that is Super and enabled.
        self.first_super: User | None = None
        self._users: dict[str, User] = {}
        self._by_certificate: dict[str, User] = {}
        for entry in entries:
            secret = read_secret(entry.name, entry.secret)
            check_secret(entry.name, secret)
            user = self._users[entry.name] = User(entry, secret)
            if self.first_super is None and user.is_super and user.enabled:
                self.first_super = user
            for certificate in entry.certificates:
                other = self._by_certificate.setdefault(certificate, user)
                if other is not user:
                    raise ConfigError(
                        f"users.{entry.name}.certificates: {certificate!r} also belongs to {other.name!r}:"
                        " a name can identify one user only",
                        field="certificates",
                        value=certificate,
                    )
        #: Unknown users are compared with this one, so that refusing them takes as long.
        self._unknown_user = User(UserEntry("nobody", "-"), secrets.token_hex(20))
        self._known: dict[tuple[str | None, str | None], User] = {}

    def __len__(self) -> int:
        return len(self._users)

    def __iter__(self) -> Iterator[User]:
        return iter(self._users.values())

    def find(self, name: str) -> User | None:
        """Return user NAME, enabled or not; None: there is none."""
        return self._users.get(name)

    def caller(self, metadata: Mapping[str, str]) -> User | None:
        """Return the user that METADATA of a call proves; None: it names no user.

        Raises NotAuthenticated, with Apache RocketMQ's messages. Results are cached by the bytes of the headers.
        The cache is dropped with this object when the file of users changes.
        """
        key = metadata.get(signing.AUTHORIZATION), metadata.get(signing.DATE_TIME)
        user = self._known.get(key)
        if user is not None:
            return user
        claim = signing.read_claim(metadata)
        if claim is None:
            return None
        user = self.authenticated(claim)
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = user
        return user

    def authenticated(self, claim: Credentials) -> User:
        """Return the user of CLAIM if its signature is right; raise NotAuthenticated, with Apache RocketMQ's messages.

        An unknown user and a wrong signature get the same error, after the same time.
        """
        found = self._users.get(claim.user)
        made = signing.signature((found or self._unknown_user).secret, claim.content)
        if not hmac.compare_digest(made, claim.signature) or found is None:
            raise NotAuthenticated(signing.BAD_SIGNATURE, user=claim.user)
        found.check_enabled()
        return found

    def certified(self, names: Iterable[str]) -> User | None:
        """Return the user that one of NAMES, from a verified certificate, identifies; None: no user has such a name.

        Raises NotAuthenticated if that user is disabled.
        """
        for name in names:
            user = self._by_certificate.get(name)
            if user is not None:
                user.check_enabled()
                return user
        return None


def changed(entry: UserEntry, **values: Any) -> UserEntry:
    """Return ENTRY with those of VALUES that are not None."""
    return replace(entry, **{key: value for key, value in values.items() if value is not None})
