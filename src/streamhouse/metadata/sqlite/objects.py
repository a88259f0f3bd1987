"""Objects and what refers to them (R6, R7, R24), and the horizon below which nothing may be committed any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from streamhouse.metadata import checks
from streamhouse.metadata.contract import DereferencedObject, ObjectRef
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Tx

_ADD: Final = """
    INSERT INTO objects (object_key, size_bytes, created_at, refs) VALUES (?, ?, ?, ?)
    ON CONFLICT (object_key) DO UPDATE SET refs = refs + excluded.refs, dereferenced_at = NULL"""

_DROP: Final = """
    UPDATE objects SET refs = refs - :count, dereferenced_at = CASE WHEN refs = :count THEN :now END
    WHERE object_key = :key"""


def add_references(tx: Tx, named: Iterable[ObjectRef]) -> None:
    """One more reference for each time an object is named."""
    count: Counter[str] = Counter()
    known: dict[str, ObjectRef] = {}
    for reference in named:
        count[reference.key] += 1
        known[reference.key] = reference
    tx.run_many(_ADD, [(key, known[key].size_bytes, known[key].created_at_ms, count[key]) for key in sorted(count)])


def drop_references(tx: Tx, keys: Iterable[str]) -> None:
    """One reference less for each time an object is named; grace counts from the last one's going (R7)."""
    count = Counter(keys)
    tx.run_many(_DROP, [{"key": key, "count": count[key], "now": tx.now_ms} for key in sorted(count)])


def gc_horizon_ms(tx: Tx) -> int:
    return int(tx.value("SELECT gc_horizon_ms FROM store_info"))


def raise_gc_horizon(tx: Tx, horizon_ms: int) -> int:
    reached_ms = min(horizon_ms, tx.now_ms)
    tx.run("UPDATE store_info SET gc_horizon_ms = max(gc_horizon_ms, ?)", (reached_ms,))
    tx.run("UPDATE partitions SET gc_horizon_ms = ? WHERE gc_horizon_ms < ?", (reached_ms, reached_ms))
    return gc_horizon_ms(tx)


def vacuum_horizon_ms(tx: Tx) -> int:
    """The horizon that stands in every partition: one transaction raises it in all of them."""
    return gc_horizon_ms(tx)


def find_unreferenced(tx: Tx, stamps: Mapping[str, int]) -> set[str]:
    """An object has a row from its first reference until it is forgotten, whatever refers to it."""
    horizon_ms = vacuum_horizon_ms(tx)
    return {
        key
        for key, created_ms in stamps.items()
        if created_ms < horizon_ms and tx.value("SELECT 1 FROM objects WHERE object_key = ?", (key,)) is None
    }


def list_dereferenced(tx: Tx, *, grace_ms: int, limit: int) -> list[DereferencedObject]:
    rows = tx.rows(
        """
        SELECT object_key, size_bytes, dereferenced_at FROM objects
        WHERE dereferenced_at IS NOT NULL AND dereferenced_at < :now - :grace AND created_at < :horizon
            AND dereferenced_at < (SELECT coalesce(min(created_at), :now) FROM read_pins WHERE expires_at > :now)
        ORDER BY dereferenced_at, object_key LIMIT :limit""",
        {"now": tx.now_ms, "grace": grace_ms, "limit": limit, "horizon": vacuum_horizon_ms(tx)},
    )
    return [DereferencedObject(key=key, size_bytes=size, dereferenced_at_ms=at) for key, size, at in rows]


def forget_objects(tx: Tx, keys: Sequence[str]) -> set[str]:
    forget = "DELETE FROM objects WHERE object_key = ? AND refs = 0 AND created_at < ?"
    horizon_ms = vacuum_horizon_ms(tx)
    return {key for key in set(keys) if tx.run(forget, (key, horizon_ms))}


class ObjectCalls(Shell):
    async def raise_gc_horizon(self, horizon_ms: int) -> int:
        checks.check_duration(horizon_ms, "a GC horizon")
        return await self._write(raise_gc_horizon, horizon_ms)

    async def find_unreferenced(self, stamps: Mapping[str, int]) -> set[str]:
        checks.check_stamps(stamps)
        return await self._read(find_unreferenced, dict(stamps))

    async def list_dereferenced(self, *, grace_ms: int, limit: int) -> list[DereferencedObject]:
        checks.check_duration(grace_ms, "a grace")
        checks.check_sweep_limit(limit)
        return await self._read(list_dereferenced, grace_ms=grace_ms, limit=limit)

    async def forget_objects(self, keys: Sequence[str]) -> set[str]:
        checks.check_keys(keys, "objects")
        return await self._write(forget_objects, tuple(keys))
