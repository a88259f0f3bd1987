"""The pin that is held while something reads or uploads objects (R6, R7)."""

from __future__ import annotations

import asyncio
from uuid import UUID

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.maintenance.kept_pin import KeptPin
from streamhouse.metadata.contract import Pin

PIN = UUID(int=5)
TTL_MS = 30


class Pins:
    """The calls of the metadata store that concern pins; a test says what becomes of each."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.lapsed = False
        self.away = False

    async def create_pin(self, pin_id: UUID, *, owner: str, ttl_ms: int) -> Pin:
        self.calls.append("create")
        self.lapsed = False
        return Pin(pin_id=pin_id, owner=owner, created_at_ms=0, expires_at_ms=ttl_ms)

    async def renew_pins(self, pin_ids: list[UUID], *, ttl_ms: int) -> set[UUID]:
        self.calls.append("renew")
        if self.away:
            raise MetadataUnavailable("no answer")
        return set() if self.lapsed else set(pin_ids)

    async def release_pins(self, pin_ids: list[UUID]) -> int:
        self.calls.append("release")
        if self.away:
            raise MetadataUnavailable("no answer")
        return len(pin_ids)

    async def until(self, call: str, count: int) -> None:
        async with asyncio.timeout(60):
            while True:
                if self.calls.count(call) >= count:
                    return
                await asyncio.sleep(0.001)


def kept(pins: Pins) -> KeptPin:
    return KeptPin(pins, PIN, owner="a test", ttl_ms=TTL_MS)  # type: ignore[arg-type]


async def test_r7_a_pin_exists_from_the_beginning_is_renewed_and_ends() -> None:
    pins = Pins()
    async with kept(pins):
        assert pins.calls == ["create"]
        await pins.until("renew", 3)
    assert pins.calls[-1] == "release"


async def test_r7_a_pin_that_has_lapsed_is_taken_again_and_counted() -> None:
    pins = Pins()
    async with kept(pins) as pin:
        pins.lapsed = True
        await pins.until("create", 2)
        await pins.until("renew", 2)
    assert pin.lapses == 1


async def test_r7_a_store_that_is_away_neither_ends_the_renewals_nor_the_work() -> None:
    pins = Pins()
    async with kept(pins):
        pins.away = True
        await pins.until("renew", 3)
    assert pins.calls[-1] == "release"
