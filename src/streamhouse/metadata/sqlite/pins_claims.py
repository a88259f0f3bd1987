"""Read pins and claims: small rows that expire by the store's clock. The expired ones are cleared as new ones come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from streamhouse.metadata import checks
from streamhouse.metadata.contract import Claim, Pin
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Row, Tx

_PIN: Final = "SELECT pin_id, owner, created_at, expires_at FROM read_pins"
_CLAIM: Final = "SELECT name, owner, claimed_at, expires_at FROM claims"


def create_pin(tx: Tx, pin_id: UUID, *, owner: str, ttl_ms: int) -> Pin:
    tx.run("DELETE FROM read_pins WHERE expires_at <= ?", (tx.now_ms,))
    tx.run(
        "INSERT INTO read_pins (pin_id, owner, created_at, expires_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (pin_id) DO UPDATE SET expires_at = max(expires_at, excluded.expires_at)",
        (pin_id.bytes, owner, tx.now_ms, tx.now_ms + ttl_ms),
    )
    (row,) = tx.rows(f"{_PIN} WHERE pin_id = ?", (pin_id.bytes,))
    return _pin_of(row)


def renew_pins(tx: Tx, pin_ids: Sequence[UUID], *, ttl_ms: int) -> set[UUID]:
    renew = "UPDATE read_pins SET expires_at = max(expires_at, ?) WHERE pin_id = ? AND expires_at > ?"
    return {pin_id for pin_id in pin_ids if tx.run(renew, (tx.now_ms + ttl_ms, pin_id.bytes, tx.now_ms))}


def release_pins(tx: Tx, pin_ids: Sequence[UUID]) -> int:
    return tx.run_many("DELETE FROM read_pins WHERE pin_id = ?", [(pin_id.bytes,) for pin_id in pin_ids])


def list_pins(tx: Tx) -> list[Pin]:
    return [_pin_of(row) for row in tx.rows(f"{_PIN} WHERE expires_at > ? ORDER BY created_at, pin_id", (tx.now_ms,))]


def acquire_claim(tx: Tx, name: str, *, owner: str, ttl_ms: int) -> Claim:
    tx.run("DELETE FROM claims WHERE expires_at <= ?", (tx.now_ms,))
    tx.run(
        "INSERT INTO claims (name, owner, claimed_at, expires_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET expires_at = max(expires_at, excluded.expires_at) "
        "WHERE owner = excluded.owner",
        (name, owner, tx.now_ms, tx.now_ms + ttl_ms),
    )
    (row,) = tx.rows(f"{_CLAIM} WHERE name = ?", (name,))
    return _claim_of(row)


def release_claim(tx: Tx, name: str, *, owner: str) -> bool:
    return tx.run("DELETE FROM claims WHERE name = ? AND owner = ?", (name, owner)) > 0


def list_claims(tx: Tx, prefix: str) -> list[Claim]:
    rows = tx.rows(
        f"{_CLAIM} WHERE expires_at > ? AND substr(name, 1, length(?)) = ? ORDER BY name", (tx.now_ms, prefix, prefix)
    )
    return [_claim_of(row) for row in rows]


def _pin_of(row: Row) -> Pin:
    pin_id, owner, created_at, expires_at = row
    return Pin(pin_id=UUID(bytes=pin_id), owner=owner, created_at_ms=created_at, expires_at_ms=expires_at)


def _claim_of(row: Row) -> Claim:
    name, owner, claimed_at, expires_at = row
    return Claim(name=name, owner=owner, claimed_at_ms=claimed_at, expires_at_ms=expires_at)


class PinClaimCalls(Shell):
    async def create_pin(self, pin_id: UUID, *, owner: str, ttl_ms: int) -> Pin:
        checks.check_text(owner, "a pin's owner")
        checks.check_ttl(ttl_ms, "a pin")
        return await self._write(create_pin, pin_id, owner=owner, ttl_ms=ttl_ms)

    async def renew_pins(self, pin_ids: Sequence[UUID], *, ttl_ms: int) -> set[UUID]:
        checks.check_keys(pin_ids, "pins")
        checks.check_ttl(ttl_ms, "a pin")
        return await self._write(renew_pins, tuple(pin_ids), ttl_ms=ttl_ms)

    async def release_pins(self, pin_ids: Sequence[UUID]) -> int:
        checks.check_keys(pin_ids, "pins")
        return await self._write(release_pins, tuple(pin_ids))

    async def list_pins(self) -> list[Pin]:
        return await self._read(list_pins)

    async def acquire_claim(self, name: str, *, owner: str, ttl_ms: int) -> Claim:
        checks.check_text(name, "a claim's name")
        checks.check_text(owner, "a claim's owner")
        checks.check_ttl(ttl_ms, "a claim")
        return await self._write(acquire_claim, name, owner=owner, ttl_ms=ttl_ms)

    async def release_claim(self, name: str, *, owner: str) -> bool:
        checks.check_text(name, "a claim's name")
        checks.check_text(owner, "a claim's owner")
        return await self._write(release_claim, name, owner=owner)

    async def list_claims(self, prefix: str = "") -> list[Claim]:
        checks.check_text(prefix, "a prefix", may_be_empty=True)
        return await self._read(list_claims, prefix)
