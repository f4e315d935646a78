"""Users and permissions as Apache RocketMQ writes them, converted to those of PocketMQ. Pure.

    5.x   the JSON of its admin calls, one object or a list of them, users and ACLs in any order:
            {"username": "alice", "password": "…", "userType": "Normal", "userStatus": "enable"}
            {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [{"resource": "Topic:orders",
              "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}]}]}
          or the tables that its `mqadmin getUser` and `getAcl` print, columns at least two spaces apart:
            #Subject          #PolicyType             #Resource      #Actions     #SourceIp    #Decision
            User:alice        Custom                  Topic:orders   [Pub, Sub]   null         Allow
    4.x   plain_acl.yml: `accounts` with accessKey, secretKey, admin, defaultTopicPerm, defaultGroupPerm, topicPerms and
          groupPerms. An admin is a Super user, a default is a default policy of all topics or groups

Notes say what PocketMQ has no equivalent for: above all, addresses that need no signature (whiteRemoteAddress).
"""

from __future__ import annotations

import re
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

#: The columns of mqadmin's tables, by what they are called in JSON.
_USER_COLUMNS: Final = {
    "#UserName": "username",
    "#Password": "password",
    "#UserType": "userType",
    "#UserStatus": "userStatus",
}
_ACL_COLUMNS: Final = {
    "#Subject": "subject",
    "#PolicyType": "policyType",
    "#Resource": "resource",
    "#Actions": "actions",
    "#SourceIp": "sourceIps",
    "#Decision": "decision",
}
_LISTS: Final = ("actions", "sourceIps")
#: Between two columns.
_GAP: Final = re.compile(r" {2,}")


def parse_tables(text: str, name: str) -> list[dict[str, Any]] | None:
    """Return what is in the tables of mqadmin's output TEXT, of the file NAME, as its JSON would have it.

    None: there is no such table. Raises ConfigError for a row that has not as many columns as its table.
    """
    found: list[dict[str, Any]] = []
    titles: list[str] | None = None
    is_there = False
    for number, line in enumerate(text.splitlines(), 1):
        cells = _GAP.split(line.rstrip())
        known = _USER_COLUMNS if cells[0] == "#UserName" else _ACL_COLUMNS
        if cells[0] in ("#UserName", "#Subject"):
            unknown = [cell for cell in cells if cell not in known]
            if unknown:
                raise ConfigError(
                    f"{name}:{number}: the column {unknown[0][:40]!r} is none of {', '.join(known)}",
                    file=name,
                )
            titles, is_there = [known[cell] for cell in cells], True
        elif titles is None or not line.strip() or line.endswith(" success."):
            titles = titles if line.strip() else None
        elif len(cells) == 1 and titles[0] == "subject":
            found.append({"subject": cells[0]})
        elif len(cells) != len(titles):
            raise ConfigError(
                f"{name}:{number}: {len(cells)} columns where the table has {len(titles)}: values with two spaces in"
                " them are ambiguous. Use the JSON instead",
                file=name,
            )
        else:
            row: dict[str, Any] = dict(zip(titles, cells, strict=True))
            found.append(_policy_of_row(row) if titles[0] == "subject" else row)
    return found if is_there else None


def _policy_of_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ACL with the one entry that ROW of a table has."""
    entry = {key: value for key, value in row.items() if key not in ("subject", "policyType")}
    for key in _LISTS:
        text = str(entry.get(key, "")).strip("[]")
        entry[key] = None if text in ("", "null") else [one.strip() for one in text.split(",")]
    policy = {"policyType": row.get("policyType"), "entries": [entry]}
    return {"subject": row["subject"], "policies": [policy]}


def to_entries(
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
                f"{name}[{at}]: not a user (username), an ACL (subject), or the accounts of a plain_acl.yml",
                file=name,
            )
    told: dict[str, tuple[str, list[Any]]] = {}
    for at, one in enumerate(document):
        if "subject" in one:
            # A table has a row for each entry of an ACL.
            _, policies = told.setdefault(str(one["subject"]), (f"{name}[{at}]", []))
            policies += one.get("policies") or []
    for subject, (where, policies) in told.items():
        entry = _of_acl({"subject": subject, "policies": policies}, where, known | found)
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
            f"{where}: the subject {str(one['subject'])[:80]!r} is not a user here. Import its user first",
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
            read = read_policy(keys, place)
            if read not in entries:  # Each broker of a cluster lists the same user.
                entries.append(read)
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
