"""Objects and what refers to them (R6, R7, R24), and the horizon below which nothing may be committed any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from streamhouse.metadata import checks
from streamhouse.metadata.contract import ObjectRef, Pin
from streamhouse.metadata.rows.objects import to_pin
from streamhouse.metadata.sqlite.transactions import Tx

_ADD: Final = """
    INSERT INTO objects (object_key, size_bytes, created_at, refs) VALUES (?, ?, ?, ?)
    ON CONFLICT (object_key) DO UPDATE SET refs = refs + excluded.refs, dereferenced_at = NULL"""

_DROP: Final = """
    UPDATE objects SET refs = refs - :count, dereferenced_at = CASE WHEN refs = :count THEN :now END
    WHERE object_key = :key"""


def add_references(tx: Tx, named: Iterable[ObjectRef]) -> None:
    """Add one reference for each time that an object is named."""
    count: Counter[str] = Counter()
    known: dict[str, ObjectRef] = {}
    for reference in named:
        count[reference.key] += 1
        known[reference.key] = reference
    tx.run_many(_ADD, [(key, known[key].size_bytes, known[key].created_at_ms, count[key]) for key in sorted(count)])


def drop_references(tx: Tx, keys: Iterable[str]) -> None:
    """Drop one reference for each time that an object is named. Grace counts from the last one (R7)."""
    count = Counter(keys)
    tx.run_many(_DROP, [{"key": key, "count": count[key], "now": tx.now_ms} for key in sorted(count)])


def gc_horizon_ms(tx: Tx) -> int:
    return int(tx.value("SELECT gc_horizon_ms FROM store_info"))


def raise_gc_horizon(tx: Tx, horizon_ms: int) -> int:
    """One transaction raises it in every partition, so the store's horizon is theirs too (R24)."""
    checks.check_duration(horizon_ms, "a GC horizon")
    reached_ms = min(horizon_ms, tx.now_ms)
    tx.run("UPDATE store_info SET gc_horizon_ms = max(gc_horizon_ms, ?)", (reached_ms,))
    tx.run("UPDATE partitions SET gc_horizon_ms = ? WHERE gc_horizon_ms < ?", (reached_ms, reached_ms))
    return gc_horizon_ms(tx)


def create_pin(tx: Tx, pin_id: UUID, *, owner: str, ttl_ms: int) -> Pin:
    checks.check_text(owner, "a pin's owner")
    checks.check_ttl(ttl_ms, "a pin")
    tx.run("DELETE FROM read_pins WHERE expires_at <= ?", (tx.now_ms,))
    (row,) = tx.rows(
        "INSERT INTO read_pins (pin_id, owner, created_at, expires_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (pin_id) DO UPDATE SET expires_at = max(expires_at, excluded.expires_at) "
        "RETURNING pin_id, owner, created_at, expires_at",
        (pin_id.bytes, owner, tx.now_ms, tx.now_ms + ttl_ms),
    )
    return to_pin(row)
