"""Which process runs a definition, where several look at the same ones.

It is scheduling: that no batch is written twice is for the targets to see to. A claim expires when its holder is
killed, and another takes over; where both are on one machine, at once.
"""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from streamhouse.core.clock import Clock
from streamhouse.core.errors import Conflict, StreamHouseError
from streamhouse.spark.connection import Connection
from streamhouse.spark.pipelines.identity import is_surely_gone
from streamhouse.spark.pipelines.supervised import Stored

LOG: Final = logging.getLogger("streamhouse.pipelines")

_TTL_MS: Final = 15_000
_RENEW_MS: Final = 3_000


def claim_name(kind: str, definition_id: UUID) -> str:
    return f"{kind}/{definition_id.hex}"


def check_unclaimed(connection: Connection, kind: str, stored: Stored) -> None:
    """What is deleted must not be written to any more. Raises Conflict."""

    async def owners() -> list[str]:
        claims = await (await connection.metadata()).list_claims(claim_name(kind, stored.definition_id))
        return [claim.owner for claim in claims if not is_surely_gone(claim.owner)]

    found = connection.run(owners())
    if found:
        raise Conflict(
            f"a runner ({found[0].partition('/')[0]}) still has the {kind} {stored.name}",
            hint="it lets go when it has stopped it; try again in a moment",
        )


class Claims:
    """Of one runner, whose id is ``owner``."""

    def __init__(self, connection: Connection, *, owner: str, clock: Clock) -> None:
        self._connection = connection
        self._owner = owner
        self._clock = clock
        self._until_ms: dict[str, int] = {}
        """Until when each is surely ours, on the boot clock."""

    def hold(self, name: str) -> bool:
        """Renewed well before it expires; what the store does not confirm counts as long as it surely holds."""
        now_ms = self._clock.boot_ms()
        until_ms = self._until_ms.get(name, 0)
        if until_ms - now_ms > _TTL_MS - _RENEW_MS:
            return True
        try:
            owner = self._connection.run(self._acquire(name))
        except StreamHouseError as error:
            LOG.warning("%s", error)
            return until_ms > now_ms
        if owner == self._owner:
            self._until_ms[name] = now_ms + _TTL_MS
            return True
        self._until_ms.pop(name, None)
        return False

    def release(self, name: str) -> None:
        if self._until_ms.pop(name, None) is not None:
            self._connection.run(self._release(name))

    async def _acquire(self, name: str) -> str:
        """The owner. What a process of this machine held that has ended need not expire first."""
        metadata = await self._connection.metadata()
        owner = (await metadata.acquire_claim(name, owner=self._owner, ttl_ms=_TTL_MS)).owner
        if owner != self._owner and is_surely_gone(owner):
            await metadata.release_claim(name, owner=owner)
            owner = (await metadata.acquire_claim(name, owner=self._owner, ttl_ms=_TTL_MS)).owner
        return owner

    async def _release(self, name: str) -> None:
        await (await self._connection.metadata()).release_claim(name, owner=self._owner)
