"""`leases.json`: the records of leases over a restart, in the broker's own folder, where they may be lost."""

from __future__ import annotations

import json
import logging
from typing import Final

from ...proto.errors import PocketMQError
from ...store.disk import Disk
from .leases import Leases

logger = logging.getLogger(__name__)

_NAME: Final = "leases.json"


class LeaseFile:
    """`leases.json` in FOLDER."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{_NAME}"

    def load(self, leases: Leases, now_ms: int) -> None:
        """Have LEASES go on with what the file says; one that cannot be read is as none."""
        try:
            leases.restore(json.loads(self._disk.read(self._path)), now_ms)
        except FileNotFoundError:
            return
        except (ValueError, LookupError, TypeError, PocketMQError) as error:
            logger.warning("leases not read path=%s reason=%r", self._path, error)

    def save(self, leases: Leases, now_ms: int) -> None:
        """Replace the file."""
        self._disk.make_folders(self._folder)
        text = json.dumps(leases.to_json(now_ms), separators=(",", ":"))
        self._disk.write_atomically(self._path, text.encode())
