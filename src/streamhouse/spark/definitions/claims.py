"""Which runner runs a definition, when several runners read the same definitions.

A claim is scheduling, not safety: the targets themselves make sure that no batch is written twice. A claim expires when
its owner is killed. Then another runner takes over. A runner on the same machine need not wait: the owner's id contains
its process id, so it can see that the process has ended.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from streamhouse.core.clock import Clock
from streamhouse.core.errors import Conflict, StreamHouseError
from streamhouse.core.randomness import Randomness
from streamhouse.spark.connection import Connection
from streamhouse.spark.definitions.catalog import Stored

LOG: Final = logging.getLogger("streamhouse.definitions")

_TTL_MS: Final = 15_000
_RENEW_MS: Final = 3_000


def claim_name(kind: str, definition_id: UUID) -> str:
    return f"{kind}/{definition_id.hex}"


def check_unclaimed(connection: Connection, kind: str, stored: Stored[Any]) -> None:
    """Raises Conflict while a runner may still write for a definition that is about to be deleted."""

    async def owners() -> list[str]:
        claims = await (await connection.metadata()).list_claims(claim_name(kind, stored.definition_id))
        return [claim.owner for claim in claims if not is_surely_gone(claim.owner)]

    found = connection.run(owners())
    if found:
        raise Conflict(
            f"a runner ({found[0].partition('/')[0]}) still has the {kind} {stored.name}",
            hint="it releases it when the query has stopped; try again in a moment",
        )


class Claims:
    """The claims of one runner, whose id is ``owner``."""

    def __init__(self, connection: Connection, *, owner: str, clock: Clock) -> None:
        self._connection = connection
        self._owner = owner
        self._clock = clock
        self._until_ms: dict[str, int] = {}
        """How long each claim is valid at least, by the boot clock."""

    def hold(self, name: str) -> bool:
        """Take or renew a claim; True while it is ours. If the store does not answer, it counts until it expires."""
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
        """Returns the owner. A claim of a process of this machine that has ended is released first."""
        metadata = await self._connection.metadata()
        owner = (await metadata.acquire_claim(name, owner=self._owner, ttl_ms=_TTL_MS)).owner
        if owner != self._owner and is_surely_gone(owner):
            await metadata.release_claim(name, owner=owner)
            owner = (await metadata.acquire_claim(name, owner=self._owner, ttl_ms=_TTL_MS)).owner
        return owner

    async def _release(self, name: str) -> None:
        await (await self._connection.metadata()).release_claim(name, owner=self._owner)


def runner_id(randomness: Randomness) -> str:
    """``host/pid/where/random``. ``where`` is the boot and the process namespace: containers may share a host name."""
    return f"{socket.gethostname()}/{os.getpid()}/{_where()}/{randomness.uuid().hex[:8]}"


def is_surely_gone(runner: str) -> bool:
    """True if the process of a runner id has ended. False if that cannot be seen from here."""
    parts = runner.split("/")
    where = _where()
    if len(parts) != 4 or not where or parts[0] != socket.gethostname() or parts[2] != where or not parts[1].isdigit():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _where() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:12]
    except OSError:
        return ""
