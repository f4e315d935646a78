"""Planted bugs: each changes one place of the product, and names the tests that must notice.

The bugs are of the kinds that lose, repeat, or show messages wrongly: a missing sync, an acknowledgement that is
too early, an off-by-one at the end of a file, a change that is not replayed, a check that is left out.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Planted(NamedTuple):
    """A bug: in the file PATH, the text BEFORE, which is there once, becomes AFTER. TESTS catch it."""

    name: str
    path: str
    before: str
    after: str
    tests: str


PLANTED: Final = (
    # --- the commit log
    Planted(
        "a record takes the last 8 bytes of a log file",
        "store/commit_log.py",
        "if size + BLANK_SIZE > file.room:",
        "if size > file.room:",
        "tests/store/test_commit_log.py",
    ),
    Planted(
        "a failed append leaves a part of its messages",
        "store/log_writer.py",
        "                    self._log.truncate(begin)\n",
        "                    pass\n",
        "tests/store/test_message_store.py",
    ),
    Planted(
        "store times go back with the clock",
        "store/log_writer.py",
        "self.last_store_ms = store_ms = max(self._now_ms(), self.last_store_ms)",
        "self.last_store_ms = store_ms = self._now_ms()",
        "tests/store/test_message_store.py",
    ),
    Planted(
        "recovery does not compare checksums of bodies",
        "store/recovery/recover.py",
        "check_crc=check_crc,",
        "check_crc=False,",
        "tests/store/test_recovery.py",
    ),
    Planted(
        "old bytes after the end of the log become messages again",
        "store/recovery/recover.py",
        "        if stale is not None:\n",
        "        if False:\n",
        "tests/store/test_recovery.py",
    ),
    # --- syncs and acknowledgements
    Planted(
        "a message is acknowledged when the sync has begun",
        "store/flush.py",
        "elif end_offset <= self.flushed_offset:",
        "elif end_offset <= max(self.flushed_offset, self._wanted_offset):",
        "tests/store/test_flush.py",
    ),
    Planted(
        "a failed sync counts as a good one",
        "store/flush.py",
        '        return DiskFailure(f"sync failed: {error}", reason=str(error))\n',
        "        return None\n",
        "tests/store/test_flush.py",
    ),
    Planted(
        "who waits during a sync is forgotten",
        "store/flush.py",
        "        self.flush_up_to(self._wanted_offset)\n",
        "",
        "tests/store/test_flush.py",
    ),
    Planted(
        "a running broker leaves no mark that it runs",
        "store/message_store.py",
        "            self.disk.write_atomically(self.config.abort_path, _process_id())\n",
        "",
        "tests/store/test_recovery.py tests/store/test_message_store.py",
    ),
    Planted(
        "the mark of a running broker is deleted before the last flush",
        "store/message_store.py",
        "        self._flush_and_remember()\n        self.disk.delete(self.config.abort_path)\n",
        "        self.disk.delete(self.config.abort_path)\n        self._flush_and_remember()\n",
        "tests/crash/test_crash_matrix.py",
    ),
    Planted(
        "the checkpoint says that queues are flushed before they are",
        "store/flush_scheduler.py",
        "                landed.append(self._note_queues())\n",
        "                self._note_queues()()\n",
        "tests/store/test_message_store.py",
    ),
    Planted(
        "a snapshot of verified files is saved before the log is flushed",
        "store/flush_scheduler.py",
        "if self._verified is not None and self.group.flushed_offset >= self._verified.log_end:",
        "if self._verified is not None:",
        "tests/store/test_verified.py",
    ),
    Planted(
        "a state file replaces the old one before it is on disk",
        "store/os_disk.py",
        "            sync_file(file.fileno())\n        if backup",
        "        if backup",
        "tests/store/test_disks.py",
    ),
    # --- queues, index, retention, readers
    Planted(
        "recovery trusts queue entries that point back",
        "store/consume_queue.py",
        "            good[1:] &= offsets[1:] >= offsets[:-1]\n",
        "",
        "tests/store/test_consume_queue.py",
    ),
    Planted(
        "a cut queue keeps one entry too many",
        "store/consume_queue.py",
        "self.files.truncate(file.start + good * self.entry_size)",
        "self.files.truncate(file.start + (good + 1) * self.entry_size)",
        "tests/store/test_consume_queue.py",
    ),
    Planted(
        "entries before the first message of a queue look like messages",
        "store/consume_queue.py",
        '        blanks["size"] = PRE_BLANK_SIZE\n',
        "",
        "tests/store/test_consume_queue.py",
    ),
    Planted(
        "keys of one batch with the same slot are not linked",
        "store/index_file.py",
        "    previous[order[follows]] = numbers[order[follows - 1]]\n",
        "    pass\n",
        "tests/store/test_index_file.py",
    ),
    Planted(
        "a search by time leaves out its first second",
        "store/index_file.py",
        "if entry_hash == key_hash and begin_ms <= time_ms <= end_ms:",
        "if entry_hash == key_hash and begin_ms < time_ms <= end_ms:",
        "tests/store/test_index_file.py",
    ),
    Planted(
        "retention may delete the newest log file",
        "store/retention.py",
        "candidates = modified_ms[:-1]",
        "candidates = modified_ms",
        "tests/store/test_retention.py",
    ),
    Planted(
        "retention deletes scheduled messages",
        "store/retention.py",
        "if decision.forced or needed_from is None:",
        "if decision.forced or True:",
        "tests/store/test_retention.py",
    ),
    Planted(
        "readers see a message that the replicas do not have",
        "store/reader.py",
        "if confirmed is None or queue.max_log_end <= confirmed:",
        "if confirmed is None or queue.max_log_end >= confirmed:",
        "tests/store/test_confirmed.py",
    ),
    Planted(
        "readers get damaged bodies",
        "store/reader.py",
        "found = read_entries(self.log, entries, name, numbers, check_crcs=check_crcs)\n        if len(found.rows)",
        "found = read_entries(self.log, entries, name, numbers, check_crcs=False)\n        if len(found.rows)",
        "tests/store/test_damage.py",
    ),
    # --- the journal of tables
    Planted(
        "a change counts although the log lost its message",
        "store/table_journal.py",
        "needs = self._log.end if table.needs_log else 0",
        "needs = 0",
        "tests/store/test_table_journal.py tests/store/test_table_power_loss.py",
    ),
    Planted(
        "the folder of a new journal is not synced",
        "store/table_journal.py",
        "self._dirty += [file, FolderSync(self._disk, self._folder)]",
        "self._dirty += [file]",
        "tests/store/test_table_power_loss.py",
    ),
    Planted(
        "a clean stop does not write the changes of lazy tables",
        "store/table_journal.py",
        "            self.write(everything=True)\n            if names",
        "            self.write()\n            if names",
        "tests/store/test_table_journal.py",
    ),
    Planted(
        "a snapshot gets its name before its bytes are on disk",
        "store/table_snapshots.py",
        "        self._sync(self._file, self._rename)\n",
        "        self._rename()\n",
        "tests/store/test_table_power_loss.py",
    ),
    Planted(
        "the last frame of a journal is not replayed",
        "store/table_files.py",
        "        for frame, limit in zip(self._frames, self._limits, strict=True):\n            readings",
        "        for frame, limit in zip(self._frames[:-1], self._limits[:-1], strict=True):\n            readings",
        "tests/store/test_table_journal.py",
    ),
    Planted(
        "an ordered table continues after frames that are missing",
        "store/table_files.py",
        "if expected is not None and frame.sequence != expected:",
        "if False:",
        "tests/store/test_table_journal.py tests/store/test_table_power_loss.py",
    ),
    # --- offsets, leases, groups
    Planted(
        "offsets are saved before the log that they depend on",
        "broker/offsets.py",
        "return self._log is not None and self._log.flushed_offset < self._log_end",
        "return False",
        "tests/broker/test_offsets.py",
    ),
    Planted(
        "a consumer without a lease commits for a queue that has an owner",
        "broker/groups/lease_guard.py",
        "elif table.holder(group, key, now_ms) is not None:",
        "elif False:",
        "tests/broker/groups/test_lease_guard.py",
    ),
    Planted(
        "two owners of a queue get the same token",
        "broker/groups/lease_table.py",
        "fresh_token = max(self._last_token + 1, 0 if self._epoch else now_ms)",
        "fresh_token = max(self._last_token, 0 if self._epoch else now_ms)",
        "tests/broker/groups",
    ),
    Planted(
        "a failed message gets one retry too many",
        "broker/groups/retries.py",
        "if times >= (request.retry_max_times",
        "if times > (request.retry_max_times",
        "tests/broker/groups",
    ),
    # --- popping groups
    Planted(
        "a finished message is not finished in the journal",
        "broker/pop/table.py",
        "        self.parts.in_flight -= 1\n        self.parts.deliveries.note([finished(queue.key, entry.offset)])\n",
        "        self.parts.in_flight -= 1\n",
        "tests/broker/pop",
    ),
    Planted(
        "a message is delivered once more than the group allows",
        "broker/pop/table.py",
        "elif entry.attempt < rules.attempts_max:",
        "elif entry.attempt <= rules.attempts_max:",
        "tests/broker/pop",
    ),
    Planted(
        "an ordered group gets the next message of a group before the last one is acknowledged",
        "broker/pop/ordered_table.py",
        "if lane.held or (lane.batch and lane.turn != self.turn):",
        "if lane.held:",
        "tests/broker/pop",
    ),
    # --- timers, filters, transactions
    Planted(
        "a timer at the end of a wheel goes into its first bucket",
        "broker/timing/timing_wheel.py",
        "while deadline_ms >= wheel.end_ms:",
        "while deadline_ms > wheel.end_ms:",
        "tests/broker/timing",
    ),
    Planted(
        "timers of a higher wheel fire after later ones",
        "broker/timing/timing_wheel.py",
        "            due.sort(key=_by_deadline)\n",
        "",
        "tests/broker/timing",
    ),
    Planted(
        "a filter accepts other tags with the same hash",
        "broker/messages/filters.py",
        "found[rows] |= (lengths[rows] == len(tag)) & bytes_at(data, starts[rows], tag)",
        "found[rows] = True",
        "tests/broker/messages",
    ),
    Planted(
        "a transaction that was rolled back counts as unknown",
        "broker/transactions/outcomes.py",
        "return outcome or Outcome(False, topic)",
        "return outcome",
        "tests/broker/transactions",
    ),
    # --- producers
    Planted(
        "a producer that was replaced may still send",
        "broker/producers/sequences.py",
        "        if numbers.epoch < sequence.epoch:\n            raise ProducerFenced(",
        "        if False:\n            raise ProducerFenced(",
        "tests/broker/producers",
    ),
    Planted(
        "the last message of a batch is stored again if it is repeated",
        "broker/producers/sequences.py",
        "new = rows >= self.next\n",
        "new = rows >= self.next - 1\n",
        "tests/broker/producers",
    ),
    Planted(
        "a producer repeats a failed batch with new numbers",
        "client/producing/sequences.py",
        "        self._next[queue] = sequence\n        return True",
        "        return True",
        "tests/client/test_sequences.py",
    ),
    # --- replica sets
    Planted(
        "an old acknowledgement of a follower counts for a new master",
        "broker/replication/in_sync.py",
        "return epoch == self.epoch and link == follower.link",
        "return link == follower.link",
        "tests/broker/replication",
    ),
    Planted(
        "a message is acknowledged before the followers have synced it",
        "broker/replication/in_sync.py",
        "self.has(one, on_device=self._settings.acks_need_sync) for one in self.maximal_set",
        "self.has(one, on_device=False) for one in self.maximal_set",
        "tests/broker/replication tests/simulation/test_replicas.py",
    ),
    # --- users
    Planted(
        "any signature is accepted",
        "proto/access/users.py",
        "if not hmac.compare_digest(made, claim.signature) or found is None:",
        "if found is None:",
        "tests/proto/access",
    ),
    Planted(
        "an Allow decides before a Deny of the same resource",
        "proto/access/policies.py",
        "            self.allow,\n        )",
        "            not self.allow,\n        )",
        "tests/proto/access",
    ),
    Planted(
        "system topics need no more than other topics",
        "proto/access/policies.py",
        "        return of_all_messages(cluster, need.actions)\n    return (need,)",
        "        return (need,)\n    return (need,)",
        "tests/proto/access tests/integration/test_permissions.py",
    ),
    Planted(
        "a commit by force needs no permission to change the group",
        "proto/access/method_rules.py",
        "        yield policies.of_group(request.group, policies.UPDATE)\n        for topic in topics:  #",
        "        yield policies.of_group(request.group)\n        for topic in topics:  #",
        "tests/integration/test_permissions.py tests/proto/access",
    ),
    # --- consumers
    Planted(
        "a consumer commits a message that its listener has not finished",
        "client/pushing/process_queue.py",
        "            if index < lowest and index not in self.abandoned:\n                lowest = index\n",
        "            pass\n",
        "tests/client/test_process_queue.py",
    ),
    Planted(
        "the last member of a group gets one queue less",
        "client/allocation_strategies.py",
        "    return [queues[start:end] for start, end in pairwise(starts)]\n",
        "    return [queues[start : min(end, len(queues) - 1)] for start, end in pairwise(starts)]\n",
        "tests/client/allocation",
    ),
)
