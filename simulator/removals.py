"""Records what maintenance takes away, at the very moment it does: records, references and objects.

It reads tables and objects itself and judges nothing; checker_removals.py does. The state of a partition is kept before
and after each call that may take records away, so that what is gone at the end can be compared with what was there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from simulator.checker import logged_records
from simulator.evidence import gc_horizon_ms, pins_since_ms, raw_partition, referenced_objects, store_ms, stored_objects
from simulator.history import DeletedObject, Key, LogSpan, RefusedObject, Replaced, SimHistory, Trimmed
from simulator.loop import SimClock
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import CompactionVerdict, Verdict
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.memory import MemoryStore

_TAKE_RECORDS: Final = frozenset({"apply_compaction", "advance_log_start"})
_TAKE_REFERENCES: Final = frozenset({*_TAKE_RECORDS, "abort_compaction", "purge_deleted_topics", "adopt_intent"})


_STAMP: Final = re.compile(r"(\d{13})-[0-9a-f]{8}-[0-9a-f-]{27}\.[a-z0-9]+$")


class WatchedObjects(MemoryStore):
    """A bucket that tells which objects are about to be deleted."""

    def __init__(self, *, clock: SimClock) -> None:
        super().__init__(clock=clock)
        self.on_delete: Callable[[str], None] = lambda name: None

    def put_ms(self, name: str) -> int:
        """When an object came into the bucket; 0 if it is not there."""
        stored = self._objects.get(name)
        return 0 if stored is None else stored.info.modified_ms

    async def _delete(self, keys: Sequence[str]) -> None:
        for name in keys:
            if name in self._objects:
                self.on_delete(name)
        await super()._delete(keys)


class Removals:
    def __init__(
        self,
        sqlite: SqliteMetadata,
        objects: WatchedObjects,
        history: SimHistory,
        *,
        now_ms: Callable[[], float],
        note: Callable[[str], None],
    ) -> None:
        self.asked_offsets: dict[Key, int] = {}
        """Up to where operators have asked for records to be deleted."""
        self._sqlite = sqlite
        self._objects = objects
        self._history = history
        self._now_ms = now_ms
        self._note = note
        self._before: LogSpan | None = None
        self._referenced: set[str] = set()
        self._dereferenced_ms: dict[str, int] = {}
        objects.on_delete = self._object_goes

    def before_call(self, name: str, args: tuple[Any, ...]) -> None:
        if name in _TAKE_REFERENCES:
            self._referenced = referenced_objects(self._sqlite)
        self._before = self._state(args[0]) if name in _TAKE_RECORDS else None

    def after_call(self, name: str, args: tuple[Any, ...], answer: Any) -> None:
        if name in _TAKE_REFERENCES:
            self.references_went(self._referenced)
        if name == "commit_leased":
            self._note_refused(args, answer)
        before = self._before
        if name not in _TAKE_RECORDS or before is None:
            return
        after = self._state(args[0])
        assert after is not None
        if name == "advance_log_start":
            self._trimmed(_key_of(args[0]), before, after)
        elif answer is CompactionVerdict.APPLIED or before != after:
            self._replaced(_key_of(args[0]), before, after)

    def tidied(self, keys: Sequence[PartitionKey]) -> None:
        """Maintenance has come to its end."""
        for key in keys:
            state = self._state(key)
            assert state is not None
            self._history.tidied[_key_of(key)] = state
        self._history.is_tidied = True

    def references_went(self, before: set[str]) -> None:
        for name in before - referenced_objects(self._sqlite):
            self._dereferenced_ms[name] = store_ms(self._sqlite)

    def _trimmed(self, key: Key, before: LogSpan, after: LogSpan) -> None:
        if before == after:
            return
        self._note(f"the log of {key[0][:4]}/{key[1]} starts at {after.partition.log_start}")
        gone = {at: each.value for at, each in before.records.items() if at not in after.records}
        self._history.trimmed.setdefault(key, {}).update(gone)
        self._history.cut.append(
            Trimmed(
                key=key,
                at_ms=self._now_ms(),
                store_ms=store_ms(self._sqlite),
                before=before,
                after=after,
                asked_offset=self.asked_offsets.get(key, 0),
            )
        )

    def _replaced(self, key: Key, before: LogSpan, after: LogSpan) -> None:
        gone = len(before.records) - len(after.records)
        entries = len(before.partition.entries) - len(after.partition.entries)
        self._note(f"a compaction of {key[0][:4]}/{key[1]} takes {entries} entries and {gone} records")
        self._history.replaced.append(
            Replaced(key=key, at_ms=self._now_ms(), store_ms=store_ms(self._sqlite), before=before, after=after)
        )

    def _note_refused(self, args: tuple[Any, ...], outcomes: Any) -> None:
        for piece, outcome in zip(args[1], outcomes, strict=True):
            if outcome.verdict is Verdict.STALE_OBJECT:
                self._history.refused.append(
                    RefusedObject(
                        object_key=piece.object.key,
                        at_ms=self._now_ms(),
                        store_ms=store_ms(self._sqlite),
                        stamp_ms=piece.object.created_at_ms,
                        put_ms=self._objects.put_ms(piece.object.key),
                        horizon_ms=gc_horizon_ms(self._sqlite),
                    )
                )

    def _object_goes(self, name: str) -> None:
        now_ms = store_ms(self._sqlite)
        self._note(f"object {name[-12:]} goes")
        self._history.deleted.append(
            DeletedObject(
                object_key=name,
                at_ms=self._now_ms(),
                store_ms=now_ms,
                stamp_ms=_stamp_ms(name),
                is_referenced=name in referenced_objects(self._sqlite),
                dereferenced_ms=self._dereferenced_ms.get(name),
                pinned_since_ms=pins_since_ms(self._sqlite, now_ms),
            )
        )

    def _state(self, key: PartitionKey) -> LogSpan | None:
        partition = raw_partition(self._sqlite, _key_of(key))
        if partition is None:
            return None
        records, unreadable = logged_records(partition, self._stored())
        return LogSpan(partition=partition, records=records, unreadable=tuple(unreadable))

    def _stored(self) -> Mapping[str, bytes]:
        return stored_objects(self._objects)


def _stamp_ms(object_key: str) -> int:
    """Every key has its stamp before the UUID at its end."""
    found = _STAMP.search(object_key)
    assert found is not None, object_key
    return int(found[1])


def _key_of(key: PartitionKey) -> Key:
    return (key.topic_id.hex, key.partition)
