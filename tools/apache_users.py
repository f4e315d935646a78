"""Users and permissions as Apache RocketMQ writes them down, taken for ours. Pure.

    5.x   the JSON of its admin calls, one object or a list of them, users and ACLs in any order:
            {"username": "alice", "password": "…", "userType": "Normal", "userStatus": "enable"}
            {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [{"resource": "Topic:orders",
              "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}]}]}
    4.x   plain_acl.yml: `accounts` with accessKey, secretKey, admin, defaultTopicPerm, defaultGroupPerm, topicPerms and
          groupPerms. An admin is a Super user, a default is a default policy of all topics or groups

What has no likeness here is said in notes: addresses that need no signature (whiteRemoteAddress), above all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from ..proto.access.policies import Policy
from ..proto.access.users import UserEntry, read_policy, read_users
from ..proto.errors import ConfigError

#: Permissions of 4.x, as a decision and actions.
_PERMISSIONS: Final = {
    "DENY": ("Deny", "Pub,Sub"),
    "PUB": ("Allow", "Pub"),
    "SUB": ("Allow", "Sub"),
    "PUB|SUB": ("Allow", "Pub,Sub"),
    "SUB|PUB": ("Allow", "Pub,Sub"),
    "ANY": ("Allow", "All"),
}


def take(
    document: Any, name: str, known: dict[str, UserEntry]
) -> tuple[dict[str, UserEntry], list[str]]:
    """Return the users in DOCUMENT, of the file NAME, and notes on what was left out. Raises ConfigError.

    KNOWN are the users that are there already: an ACL may be of one of them.
    """
    if isinstance(document, dict) and "accounts" in document:
        return _of_accounts(document, name)
    if not isinstance(document, list):
        document = [document]
    found: dict[str, UserEntry] = {}
    for at, one in enumerate(document):
        if isinstance(one, dict) and "username" in one:
            entry = _of_user(one, f"{name}[{at}]")
            found[entry.name] = entry
        elif not (isinstance(one, dict) and "subject" in one):
            raise ConfigError(
                f"{name}[{at}]: neither a user (username), nor an ACL (subject), nor accounts of a plain_acl.yml",
                file=name,
            )
    for at, one in enumerate(document):
        if "subject" in one:
            entry = _of_acl(one, f"{name}[{at}]", known | found)
            found[entry.name] = entry
    return found, []


def _entry(name: str, where: str, **keys: Any) -> UserEntry:
    return read_users({"users": {name: keys}}, where)[name]


def _of_user(one: dict[str, Any], where: str) -> UserEntry:
    return _entry(
        str(one["username"]),
        where,
        secret=_inline(one.get("password")),
        type=one.get("userType") or "Normal",
        status=one.get("userStatus") or "enable",
    )


def _inline(secret: object) -> object:
    """Return SECRET as our file has it: it may begin as a reference would."""
    if isinstance(secret, str) and secret.startswith(("env:", "file:", "inline:")):
        return f"inline:{secret}"
    return str(secret) if isinstance(secret, int) else secret


def _of_acl(one: dict[str, Any], where: str, users: dict[str, UserEntry]) -> UserEntry:
    kind, _, name = str(one["subject"]).partition(":")
    if kind != "User" or name not in users:
        raise ConfigError(
            f"{where}: the subject {str(one['subject'])[:80]!r} is no user here: take its user first",
            field="subject",
        )
    by_kind: dict[str, list[Policy]] = {"Custom": [], "Default": []}
    for at, policy in enumerate(one.get("policies") or []):
        entries = by_kind.get(policy.get("policyType") or "Custom")
        if entries is None:
            raise ConfigError(
                f"{where}.policies[{at}]: policyType is {policy['policyType']!r}: Custom or Default",
                field="policyType",
            )
        for number, entry in enumerate(policy.get("entries") or []):
            place = f"{where}.policies[{at}].entries[{number}]"
            keys = {
                "resource": entry.get("resource"),
                "actions": entry.get("actions"),
                "sources": entry.get("sourceIps"),
                "decision": entry.get("decision") or "Allow",
            }
            entries.append(read_policy(keys, place))
    return replace(
        users[name],
        policies=tuple(by_kind["Custom"]),
        default_policies=tuple(by_kind["Default"]),
    )


def _of_accounts(document: dict[str, Any], name: str) -> tuple[dict[str, UserEntry], list[str]]:
    notes = []
    if document.get("globalWhiteRemoteAddresses"):
        notes.append("globalWhiteRemoteAddresses: left out, since here every caller signs")
    found: dict[str, UserEntry] = {}
    for at, account in enumerate(document["accounts"] or []):
        where = f"{name}: accounts[{at}]"
        if not isinstance(account, dict) or "accessKey" not in account:
            raise ConfigError(f"{where}: accessKey is missing", field="accessKey")
        user = str(account["accessKey"])
        if account.get("whiteRemoteAddress"):
            notes.append(f"{user}: whiteRemoteAddress left out, since here every caller signs")
        found[user] = _entry(
            user,
            where,
            secret=_inline(account.get("secretKey")),
            type="Super" if account.get("admin") else "Normal",
            policies=[
                *_permissions("Topic", account.get("topicPerms"), where),
                *_permissions("Group", account.get("groupPerms"), where),
            ],
            default_policies=[
                _permission(f"{kind}:*", str(account[key]), f"{where}.{key}")
                for kind, key in (("Topic", "defaultTopicPerm"), ("Group", "defaultGroupPerm"))
                if account.get(key)
            ],
        )
    return found, notes


def _permissions(kind: str, values: Any, where: str) -> Iterator[dict[str, str]]:
    for value in values or []:
        name, _, permission = str(value).partition("=")
        yield _permission(f"{kind}:{name.strip()}", permission, where)


def _permission(resource: str, text: str, where: str) -> dict[str, str]:
    found = _PERMISSIONS.get(text.strip().upper().replace(" ", ""))
    if found is None:
        raise ConfigError(
            f"{where}: {resource}: the permission {text[:40]!r} is none of {', '.join(_PERMISSIONS)}",
            field="permission",
            value=text[:40],
        )
    return {"resource": resource, "decision": found[0], "actions": found[1]}
