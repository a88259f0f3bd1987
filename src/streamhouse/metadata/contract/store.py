"""The store as a whole: identity, clock, durability binding, change notifications, opening and closing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract.agents import Agents
from streamhouse.metadata.contract.definitions import Definitions
from streamhouse.metadata.contract.groups import Groups
from streamhouse.metadata.contract.leases import Leases
from streamhouse.metadata.contract.log import Log
from streamhouse.metadata.contract.maintenance import Maintenance
from streamhouse.metadata.contract.pipeline import Pipeline
from streamhouse.metadata.contract.topics import Topics


class Durability(StrEnum):
    """Where a record is when ``acks=all`` is answered: on the local disk (WAL), or in the object store (OBJECT)."""

    WAL = "wal"
    OBJECT = "object"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    cluster_id: UUID
    """The id that Kafka clients see. It is made once, at the first start."""
    durability: Durability | None
    """The durability that the store is bound to; None until the first bind."""
    wal_id: UUID | None
    """The id of the WAL, if the durability is WAL; else None."""
    gc_horizon_ms: int
    schema_version: int
    backend: str
    """The name that people read: "SQLite 3.45.1", "PostgreSQL 15.18"."""


class ChangeKind(StrEnum):
    COMMIT = "commit"
    """Watermarks moved; ``keys`` are the partitions."""
    TOPICS = "topics"
    """A topic was created, deleted or altered; ``name`` is its name."""
    LEASES = "leases"
    """Leaders changed (renewals do not count); ``keys`` are the partitions, empty for slots."""
    TRANSFERS = "transfers"
    """``name`` is the agent concerned."""
    GROUPS = "groups"
    """Offsets changed by a simple commit; ``name`` is the group."""
    FLUSH = "flush"
    """A flush was asked for, or done, on ``keys``."""
    INTENTS = "intents"
    """An intent was registered for ``keys``."""
    DEFINITIONS = "definitions"
    """One was created, changed or deleted; ``name`` is its kind. Reports do not count."""
    ANY = "any"
    """Something may have changed; look again at whatever you wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    kind: ChangeKind
    keys: tuple[PartitionKey, ...] = ()
    name: str = ""


class MetadataStore(Topics, Log, Leases, Agents, Groups, Maintenance, Pipeline, Definitions, ABC):
    """The whole contract. One instance serves one process and may be used from many tasks of one event loop.

    Every method either returns, or raises an error of the tree. A call that makes no sense is InvalidRequest or
    LimitExceeded before anything is sent; ``metadata/checks.py`` decides, for every backend alike. MetadataUnavailable
    means that retries ran out *and the outcome is unknown*: sending the identical call again is always safe. A
    cancelled call has an unknown outcome too.
    """

    @abstractmethod
    async def open(self) -> None:
        """Connect and migrate, under a lock that makes concurrent starts wait for each other.

        Raises SchemaTooNew, MetadataUnavailable.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the store. Calls under way end or are cancelled, and subscriptions end. A second call does nothing."""

    @abstractmethod
    async def cluster_info(self) -> ClusterInfo: ...

    @abstractmethod
    async def now_ms(self) -> int:
        """The clock that every expiry uses. Never goes back."""

    @abstractmethod
    async def bind_durability(self, durability: Durability, wal_id: UUID | None) -> ClusterInfo:
        """The first call binds the store; later ones must agree (R2). ``wal_id`` is required for WAL, absent else.

        Raises DurabilityMismatch, and InvalidRequest for a ``wal_id`` missing or in the way.
        """

    @abstractmethod
    async def unbind_durability(self, wal_id: UUID | None) -> ClusterInfo:
        """Undo the binding after an offline drain to an empty WAL, expiring every lease that never would.

        The caller vouches that the WAL is empty; ``wal_id`` must be the bound one (None for OBJECT), else
        DurabilityMismatch. An unbound store stays unbound, whatever ``wal_id``: that is a repeat.
        """

    @abstractmethod
    def subscribe(self) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """Changes by this and every other process, from entering the context on.

        Delivery is best effort: a waiter must also recheck on an interval. A subscriber that falls behind its bounded
        queue, or whose connection was lost for a while, gets one ANY instead of what it missed.
        """

    async def __aenter__(self) -> MetadataStore:
        await self.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()
