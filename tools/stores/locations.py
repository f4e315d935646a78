"""Where stores are: local folders, globs over many brokers, URLs; and the name of the broker of each.

A store is named by a path ("./store"), a URL that pyarrow.fs takes ("s3://bucket/broker-a/store", "hdfs://…",
"file:///…"), or a pattern of either whose segments hold * ? [ ] (in URLs only * and [ ]): "/data/broker-*/store".
A pattern matches folders that hold a store; a folder of that very name comes first.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from ...proto.errors import ConfigError, StoreMismatch
from ...store.disk import Disk, Entry
from ...store.format.java_json import parse
from ...store.os_disk import OsDisk
from .filesystem_disk import FileSystemDisk, open_url, pyarrow_fs

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_MEMBER_TOPIC: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
_ROWS: Final = ("commitlog", "consumequeue", "batchconsumequeue")
_TABLES: Final = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset")
_CHECKPOINT_SIZE: Final = 4096
_NOT_FOREIGN: Final = ("lost+found", "lock", "abort", "pocketmq")
_USUAL_FOLDER: Final = "store"
_BROKER_FOLDER: Final = re.compile(r"broker-([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """One store. Plain text, so that it travels to other processes.

    url: as it was given, or found by a pattern; a local path is absolute;  root: its path on `open_disk()`.
    """

    url: str
    root: str
    broker_name: str

    @property
    def is_local(self) -> bool:
        """Are its files in this machine's file system?"""
        return not _is_remote(self.url)

    def open_disk(self) -> Disk:
        """Return the disk that the store is on, with nothing remembered yet."""
        return OsDisk() if self.is_local else FileSystemDisk.of(self.url)


def locate(
    stores: Iterable[str],
    *,
    broker_name: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> list[StoreLocation]:
    """Return the stores that paths, URLs and patterns name, each once, in the order given.

    Raises ConfigError for a name of no store, and for BROKER_NAME with more than one.
    """
    urls = list(dict.fromkeys(url for given in stores for url in _urls_of(given)))
    if broker_name is not None and len(urls) != 1:
        raise ConfigError(
            f"brokerName={broker_name} names one broker, and {len(urls)} stores were found: leave it out, or give one",
            field="brokerName",
            value=broker_name,
        )
    return [_location(url, broker_name, settings or {}) for url in urls]


def _location(url: str, broker_name: str | None, settings: Mapping[str, str]) -> StoreLocation:
    unnamed = StoreLocation(url, _root(url), "")
    if broker_name is not None:
        return StoreLocation(url, unnamed.root, broker_name)
    disk = unnamed.open_disk()
    name = broker_name_of(disk, unnamed.root, settings)
    return StoreLocation(url, unnamed.root, name)


def broker_name_of(disk: Disk, root: str, settings: Mapping[str, str] | None = None) -> str:
    """Return the name of the broker whose store is in ROOT of DISK, by the first of these that has one:

    1. `config/topics.json`, or its `.bak`: each broker makes the topic rmq_sys_SYNC_BROKER_MEMBER_<broker's name>;
    2. `config/topicQueueMapping.json`, or its `.bak`: `bname` of its static topics;
    3. the setting `brokerName`, where settings are given (--broker-conf brokerName=…);
    4. the folder's name; that of the folder above where it is called "store".

    A file that has several names is ignored.
    """
    for file, names_of in (("topics.json", _members), ("topicQueueMapping.json", _owners)):
        name = _told(disk, posixpath.join(root, "config", file), names_of)
        if name:
            return name
    given = (settings or {}).get("brokerName")
    return given or _folder_name(root)


def _told(disk: Disk, path: str, names_of: Callable[[Any], set[str]]) -> str | None:
    """Return the only name in the file PATH, or in its backup."""
    for candidate in (path, path + ".bak"):
        if not disk.exists(candidate) or disk.is_folder(candidate):
            continue
        try:
            names = names_of(parse(disk.read(candidate).decode("utf-8", "replace")))
        except (OSError, ValueError, AttributeError, TypeError):
            continue
        return names.pop() if len(names) == 1 else None
    return None


def _members(document: Any) -> set[str]:
    topics = document.get("topicConfigTable") or {}
    return {
        str(name).removeprefix(_MEMBER_TOPIC)
        for name in topics
        if str(name).startswith(_MEMBER_TOPIC)
    }


def _owners(document: Any) -> set[str]:
    mappings = document.get("topicQueueMappingInfoMap") or {}
    return {str(one["bname"]) for one in mappings.values() if one.get("bname")}


def _folder_name(root: str) -> str:
    folder, name = posixpath.split(root.rstrip("/"))
    if name == _USUAL_FOLDER and posixpath.basename(folder):
        return posixpath.basename(folder)
    return name or _USUAL_FOLDER


def _is_remote(text: str) -> bool:
    return _URL.match(text) is not None


def _root(url: str) -> str:
    if not _is_remote(url):
        return url
    _, path = open_url(url)
    return "/" + path.strip("/")


def _urls_of(given: str) -> list[str]:
    if given.startswith("file://"):
        given = open_url(given)[1]
    if _is_remote(given):
        return _remote(given)
    return _local(os.path.abspath(os.path.expanduser(given)))


def _local(path: str) -> list[str]:
    disk = OsDisk()
    if disk.is_folder(path):
        if not is_store(disk, path):
            raise _no_store(path)
        return [path]
    if not _is_pattern(path):
        raise _nothing(path)
    found = [one for one in _matches(disk.list, "/", path) if is_store(disk, one)]
    if not found:
        raise _nothing(path)
    return found


def _remote(url: str) -> list[str]:
    scheme = _URL.match(url)
    assert scheme is not None
    base, question, query = url.partition("?")
    if not any(character in base for character in "*["):
        disk = FileSystemDisk.of(url)
        if not disk.is_folder(disk.root):
            raise _nothing(url)
        if not is_store(disk, disk.root):
            raise _no_store(url)
        return [url]
    fixed = posixpath.dirname(re.split(r"[*\[]", base)[0])
    if len(fixed) <= scheme.end():
        raise ConfigError(
            f"{url}: a pattern is allowed after the bucket or host, not in its name",
            field="store",
            value=url,
        )
    file_system, folder = open_url(fixed + question + query)

    def children(path: str) -> list[Entry]:
        return _listed(file_system, path, leading_slash=folder.startswith("/"))

    top = "/" + folder.strip("/")
    found = [
        fixed + "/" + posixpath.relpath(path, top) + question + query
        for path in _matches(children, top, posixpath.join(top, base[len(fixed) :].strip("/")))
        if _holds_store(children, path)
    ]
    if not found:
        raise _nothing(url)
    return found


def _listed(file_system: Any, path: str, *, leading_slash: bool) -> list[Entry]:
    """Return the entries of one folder of FILE_SYSTEM, not of those below it; none for what is no folder."""
    fs = pyarrow_fs()
    own = path if leading_slash else path.lstrip("/")
    infos = file_system.get_file_info(fs.FileSelector(own, allow_not_found=True))
    return sorted(
        (
            Entry(info.base_name, info.size or 0, info.type == fs.FileType.Directory)
            for info in infos
        ),
        key=lambda entry: entry.name,
    )


def _matches(children: Callable[[str], list[Entry]], top: str, pattern: str) -> list[str]:
    """Return the folders below TOP whose segments match those of PATTERN, sorted."""
    found = [top]
    inside = pattern[len(top) :].strip("/")
    for segment in inside.split("/"):
        found = [
            posixpath.join(folder, entry.name)
            for folder in found
            for entry in children(folder)
            if entry.is_folder and fnmatchcase(entry.name, segment)
        ]
    return sorted(found)


def _is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def is_store(disk: Disk, folder: str) -> bool:
    """Does FOLDER on DISK hold a store, complete, damaged or just created? False for what is no folder.

    A store has the files of a log or of queues, one of a broker's tables in `config/`, or a `checkpoint` of 4,096
    bytes. Every verb that takes a store asks this.
    """
    return _holds_store(disk.list, folder)


def check_store(path: str) -> None:
    """Raise ConfigError unless the local folder PATH is there and holds a store."""
    disk = OsDisk()
    if not disk.is_folder(path):
        raise _nothing(path)
    if not is_store(disk, path):
        raise _no_store(path)


def check_new_store(disk: Disk, folder: str) -> None:
    """Raise StoreMismatch if a store made in FOLDER would lie among other things.

    A folder that is missing or empty, or holds a store, is fine; so are names with a dot in front, a file system's
    `lost+found`, and what a start that failed leaves.
    """
    found = [entry.name for entry in disk.list(folder)]
    others = [name for name in found if not name.startswith(".") and name not in _NOT_FOREIGN]
    if not others or is_store(disk, folder):
        return
    if numbers := broker_numbers(disk, folder):
        raise StoreMismatch(
            f"{folder} holds stores of several brokers (broker-{numbers[0]} …). Give --brokers {max(numbers[-1], 2)},"
            f" or --store {posixpath.join(folder, f'broker-{numbers[0]}')} to serve only that one",
            path=folder,
        )
    more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
    raise StoreMismatch(
        f"{folder} is not a store, and has other files ({', '.join(others[:3])}{more}). Give an empty or new folder,"
        " or --force to create a store in it",
        path=folder,
    )


def check_stores_of_brokers(disk: Disk, folder: str, count: int, *, force: bool) -> None:
    """Raise StoreMismatch unless FOLDER may hold the stores of COUNT brokers, broker-1 …; FORCE: among other things."""
    if is_store(disk, folder):
        raise StoreMismatch(
            f"{folder} holds the store of one broker: leave out --brokers, or name another --store; it becomes that of"
            f" the first of several where all that is in it is moved to {posixpath.join(folder, 'broker-1')}",
            path=folder,
        )
    numbers = broker_numbers(disk, folder)
    if numbers and numbers[-1] > count:
        raise StoreMismatch(
            f"{folder} holds a store of broker-{numbers[-1]}, whose messages no client could read with --brokers"
            f" {count}. Give --brokers {numbers[-1]}, or move that folder away when its messages are read",
            path=folder,
        )
    if not force and not numbers:
        check_new_store(disk, folder)


def broker_numbers(disk: Disk, folder: str) -> list[int]:
    """Return which of the folders broker-1, broker-2, … of `serve --brokers` FOLDER holds, with a store in them."""
    return sorted(
        int(found[1])
        for entry in disk.list(folder)
        if (found := _BROKER_FOLDER.fullmatch(entry.name))
        and is_store(disk, posixpath.join(folder, entry.name))
    )


def _holds_store(children: Callable[[str], list[Entry]], folder: str) -> bool:
    entries = {entry.name: entry for entry in children(folder)}
    if any(name in entries and entries[name].is_folder for name in _ROWS):
        return True
    checkpoint, config = entries.get("checkpoint"), entries.get("config")
    if checkpoint and not checkpoint.is_folder and checkpoint.size == _CHECKPOINT_SIZE:
        return True
    if not (config and config.is_folder):
        return False
    files = (entry.name for entry in children(posixpath.join(folder, "config")))
    return any(
        name.removesuffix(".bak") in {f"{table}.json" for table in _TABLES} for name in files
    )


def _nothing(given: str) -> ConfigError:
    what = "no store matches" if _is_pattern(given) else "no such folder:"
    return ConfigError(f"{what} {given}: check the path", field="store", value=given)


def _no_store(given: str) -> ConfigError:
    return ConfigError(
        f"{given} is not a store: it has no commitlog, consumequeue or batchconsumequeue folder, no tables in config/,"
        f" no checkpoint. For several stores write a pattern, {json.dumps(given.rstrip('/') + '/*/store')}",
        field="store",
        value=given,
    )
