"""Pins: while one lives, what compaction and retention let go of after its making is not deleted (R7).

A pin expires by itself when nobody renews it, so a query that was killed holds nothing up for long. A stream takes a
new one for each micro-batch: one pin for a stream's whole life would keep every object that was replaced meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from streamhouse.core.errors import StreamHouseError
from streamhouse.spark.connection import Connection

LOG: Final = logging.getLogger("streamhouse.spark")
_RENEWALS_PER_TTL: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PinTicket:
    """What a task needs to keep its query's pin alive."""

    pin_id: UUID
    ttl_ms: int
    pinned_at_ms: int
    """By the driver's clock, and only to save young queries a call."""


async def pin(connection: Connection, *, owner: str, ttl_ms: int) -> PinTicket:
    """Pin first, list entries afterwards."""
    ticket = PinTicket(pin_id=connection.randomness.uuid(), ttl_ms=ttl_ms, pinned_at_ms=connection.clock.wall_ms())
    await (await connection.metadata()).create_pin(ticket.pin_id, owner=owner, ttl_ms=ttl_ms)
    return ticket


async def release(connection: Connection, ticket: PinTicket) -> None:
    """As far as it can be: a pin that stays expires."""
    try:
        await (await connection.metadata()).release_pins([ticket.pin_id])
    except StreamHouseError as error:
        LOG.warning("a pin was not released and will expire: %s", error)


async def keep_renewed(connection: Connection, ticket: PinTicket) -> None:
    """Until cancelled. A failed renewal is tried again in time; an expired pin cannot come back, and then an object
    that is gone is looked up anew.
    """
    pause_ms = ticket.ttl_ms // _RENEWALS_PER_TTL
    age_ms = connection.clock.wall_ms() - ticket.pinned_at_ms
    await asyncio.sleep(max(0, pause_ms - max(0, age_ms)) / 1000)
    while True:
        try:
            await (await connection.metadata()).renew_pins([ticket.pin_id], ttl_ms=ticket.ttl_ms)
        except StreamHouseError as error:
            LOG.warning("a pin was not renewed: %s", error)
        await asyncio.sleep(pause_ms / 1000)
