"""Comparing descriptions of stores, and telling whether a folder was touched."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

Document = dict[str, Any]

_PAGE_BYTES = 4096


def comparable(document: Document) -> Document:
    """Return DOCUMENT without what depends on the run instead of the store.

    That is: Apache's log, names under rocksdbstore/, names of index files that recovery made, the version of a file of
    static topics that is not there, up to where timers were read, which depends on today's date, and the checkpoint's
    index time where recovery filled several index files: Apache's threads race for it.
    """
    kept = {key: value for key, value in document.items() if key not in ("log", "oracle")}
    before = kept["filesBefore"]
    for key in ("filesBefore", "filesAfter"):
        if key in kept:
            kept[key] = {
                name: size
                for name, size in kept[key].items()
                if not name.startswith("rocksdbstore/") and not _is_new_index(name, before)
            }
    if not kept["accepted"]:
        return kept
    made = {n: s for n, s in document["filesAfter"].items() if _is_new_index(n, before)}
    kept["sizes of new index files"] = [size for _, size in sorted(made.items())]
    if len(made) > 2:
        kept["checkpoint"] = kept["checkpoint"] | {"indexMsgTimestamp": "raced for"}
    kept["indexFiles"] = [
        file | ({} if f"index/{file['name']}" in before else {"name": "new"})
        for file in kept["indexFiles"]
    ]
    kept["config"] = _without_absent_version(kept["config"])
    if "timer" in kept:
        checkpoint = kept["timer"]["checkpoint"] | {"lastReadTimeMs": "depends on the date"}
        kept["timer"] = kept["timer"] | {"checkpoint": checkpoint}
    return kept


def _is_new_index(name: str, before: dict[str, int]) -> bool:
    return name.startswith("index/") and name not in before


def _without_absent_version(config: Document) -> Document:
    mappings = config["topicQueueMapping"]
    if mappings["topicQueueMappingInfoMap"]:
        return config
    return config | {"topicQueueMapping": mappings | {"dataVersion": "there is no file"}}


def differences(wanted: object, found: object, where: str = "") -> list[str]:
    """Return the first places in which two documents differ."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        places: list[str] = []
        for key in sorted(wanted.keys() | found.keys()):
            if key not in wanted or key not in found:
                places.append(f"{where}.{key} is only in one")
            else:
                places += differences(wanted[key], found[key], f"{where}.{key}")
        return places[:10]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        places = []
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            places += differences(one, other, f"{where}[{index}]")
            if len(places) > 10:
                break
        return places[:10]
    return [] if wanted == found else [f"{where}: {str(wanted)[:200]} ≠ {str(found)[:200]}"]


def fingerprint(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Return length, time of change and digest of everything in FOLDER."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = os.stat(path)
        digest = hashlib.sha256(_data(path)).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns, digest)
    return found


def _data(path: Path) -> bytes:
    """Return the pages of PATH that are not all zeros, with their places: whether zeros are a hole is left open.

    Some file systems fill a hole that is read through a map.
    """
    parts = []
    with open(path, "rb") as file:
        at, size = 0, os.fstat(file.fileno()).st_size
        while at < size:
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            data = os.pread(file.fileno(), end - at, at)
            pages = np.frombuffer(data + bytes(-len(data) % _PAGE_BYTES), np.uint8)
            pages = pages.reshape(-1, _PAGE_BYTES)
            parts += [
                b"%d:" % (at + number * _PAGE_BYTES) + pages[number].tobytes()
                for number in np.flatnonzero(pages.any(axis=1)).tolist()
            ]
            at = end
    return b"".join(parts)
