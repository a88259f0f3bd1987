"""Pins: while a pin exists, objects that compaction or retention dereference after its creation are kept (R7).

A pin expires unless it is renewed, so a killed query does not keep objects for long. A stream takes a new pin for each
micro-batch: one pin for the whole life of a stream would keep every object that is replaced meanwhile.
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
    """The time of the pin, by the driver's clock. It is only used to skip the first renewal of a new pin."""


async def pin(connection: Connection, *, owner: str, ttl_ms: int) -> PinTicket:
    """Pin a snapshot. A query must pin first and list entries afterwards."""
    ticket = PinTicket(pin_id=connection.randomness.uuid(), ttl_ms=ttl_ms, pinned_at_ms=connection.clock.wall_ms())
    await (await connection.metadata()).create_pin(ticket.pin_id, owner=owner, ttl_ms=ttl_ms)
    return ticket


async def release(connection: Connection, ticket: PinTicket) -> None:
    """Logs an error and goes on: a pin that is not released expires."""
    try:
        await (await connection.metadata()).release_pins([ticket.pin_id])
    except StreamHouseError as error:
        LOG.warning("a pin was not released and will expire: %s", error)


async def keep_renewed(connection: Connection, ticket: PinTicket) -> None:
    """Renews until cancelled. A failed renewal is tried again before the pin expires. An expired pin cannot be renewed;
    then tasks look a missing object up again.
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
