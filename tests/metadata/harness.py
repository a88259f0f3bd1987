"""One contract suite, every backend: the store under test, a clock in the test's hands, and the usual first steps.

A backend joins the suite with a ``Place``: where its data lies, how another process would open it, how its clock is
moved. It imports its backend itself, so that one backend's tests run without the other's packages. The clock stands
still unless a test advances it, on every backend, so no test depends on how fast it runs.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from builders import START_MS, TTL_MS, leased_slice

from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import (
    AgentInfo,
    BatchRun,
    Entry,
    EntryKind,
    Holder,
    Lease,
    LeaseKey,
    MetadataStore,
    NewTopic,
    ObjectRef,
    PartitionState,
    RegisteredAgent,
    ScanRange,
    SliceOutcome,
    Topic,
    Verdict,
    WriteMode,
)

BACKENDS = ("sqlite", "postgres")

# The store's one source of time, replaced by one that shows what the test says; and a way back to the freshly migrated
# state that takes milliseconds, where another database from a template takes a third of a second.
POSTGRES_TEST_KIT = f"""
CREATE TABLE test_clock (now_ms bigint NOT NULL);
INSERT INTO test_clock VALUES ({START_MS});
CREATE OR REPLACE FUNCTION sh_clock_ms() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT now_ms FROM test_clock';
UPDATE store_clock SET now_ms = {START_MS}, clock_ms = {START_MS};
CREATE SCHEMA fresh;
DO $$
DECLARE found text;
BEGIN
    FOR found IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE format('CREATE TABLE fresh.%1$I AS TABLE public.%1$I', found);
    END LOOP;
END $$;
CREATE FUNCTION test_reset() RETURNS void LANGUAGE plpgsql AS $$
DECLARE found text; filled boolean;
BEGIN
    PERFORM set_config('session_replication_role', 'replica', true);
    FOR found IN SELECT tablename FROM pg_tables WHERE schemaname = 'fresh' LOOP
        EXECUTE format('DELETE FROM public.%I', found);
        EXECUTE format('SELECT EXISTS (SELECT FROM fresh.%I)', found) INTO filled;
        IF filled THEN
            EXECUTE format('INSERT INTO public.%1$I SELECT * FROM fresh.%1$I', found);
        END IF;
    END LOOP;
END $$;
"""


class Place(ABC):
    """Where one test's data lies."""

    name: str

    @abstractmethod
    def new_store(self, seed: int) -> MetadataStore:
        """An unopened store on this place, as another process would make it."""

    @abstractmethod
    async def set_clock(self, now_ms: int) -> None:
        """Time passes until the machine's clock shows ``now_ms``."""

    @abstractmethod
    async def step_clock(self, ms: int) -> None:
        """The machine's clock is set, forward or back; no time passes."""


class SqlitePlace(Place):
    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = ManualClock(wall_ms=START_MS)

    def new_store(self, seed: int) -> MetadataStore:
        from streamhouse.metadata.sqlite.store import SqliteMetadata

        return SqliteMetadata(self._path, clock=self._clock, randomness=SeededRandomness(seed))

    async def set_clock(self, now_ms: int) -> None:
        self._clock.advance(now_ms - self._clock.wall_ms())

    async def step_clock(self, ms: int) -> None:
        self._clock.jump_wall(ms)


class PostgresPlace(Place):
    name = "postgres"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def new_store(self, seed: int) -> MetadataStore:
        from streamhouse.metadata.postgres.store import PostgresMetadata

        return PostgresMetadata(self._dsn, randomness=SeededRandomness(seed))

    async def set_clock(self, now_ms: int) -> None:
        await self._run("UPDATE test_clock SET now_ms = $1", now_ms)

    async def step_clock(self, ms: int) -> None:
        await self._run("UPDATE test_clock SET now_ms = now_ms + $1", ms)

    async def _run(self, statement: str, value: int) -> None:
        import asyncpg

        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute(statement, value)
        finally:
            await connection.close()


class Backend:
    """What a test of the contract gets."""

    def __init__(self, place: Place, store: MetadataStore) -> None:
        self.name = place.name
        self.store = store
        self.now_ms = START_MS
        self.ids = SeededRandomness(1)
        self._place = place
        self._opened = 1
        self._others: list[MetadataStore] = []

    async def open_another(self) -> MetadataStore:
        """A second instance on the same data, as another process would have."""
        self._opened += 1
        other = self._place.new_store(self._opened)
        await other.open()
        self._others.append(other)
        return other

    async def reopen(self) -> MetadataStore:
        """Close the store and open it again: what only lived in memory is gone."""
        await self.store.close()
        self.store = await self.open_another()
        return self.store

    async def advance(self, ms: int) -> None:
        self.now_ms += ms
        await self._place.set_clock(self.now_ms)

    async def step_clock(self, ms: int) -> None:
        """The machine's clock is set; ``now_ms`` is what it shows, no longer what the store's clock shows."""
        self.now_ms += ms
        await self._place.step_clock(ms)

    async def close(self) -> None:
        for store in (self.store, *self._others):
            await store.close()

    # Names.

    def uuid(self) -> UUID:
        return self.ids.uuid()

    def append_id(self) -> AppendId:
        return AppendId(self.ids.uuid())

    def holder(self, agent_id: str = "agent-1", *, wal_id: UUID | None = None) -> Holder:
        """A new incarnation of the agent."""
        return Holder(agent_id=agent_id, incarnation=self.uuid(), wal_id=wal_id or self.uuid())

    def object(self, *, created_at_ms: int | None = None, size: int = 1000) -> ObjectRef:
        """A fresh upload, stamped with the present."""
        stamp = self.now_ms if created_at_ms is None else created_at_ms
        return ObjectRef(key=f"objects/{self.uuid()}", size_bytes=size, created_at_ms=stamp)

    # Vacuum.

    async def raise_horizon(self) -> None:
        """Nothing that was uploaded before now can be committed any more."""
        await self.store.raise_gc_horizon(await self.store.now_ms())

    async def unreferenced(self, *keys: str) -> set[str]:
        """Those of ``keys`` that nothing names, taken for old ones; the horizon is raised to now."""
        await self.raise_horizon()
        return await self.store.find_unreferenced(dict.fromkeys(keys, 0))

    async def garbage(self, *, grace_ms: int = 0) -> list[str]:
        """The keys of the dereferenced objects, up to the youngest: the horizon is raised to now."""
        await self.raise_horizon()
        return [one.key for one in await self.store.list_dereferenced(grace_ms=grace_ms, limit=10_000)]

    # First steps.

    async def topic(
        self,
        name: str = "orders",
        partitions: int = 1,
        *,
        leaderless: bool = False,
        configs: Mapping[str, str] | None = None,
    ) -> Topic:
        return await self.store.create_topic(
            NewTopic(
                topic_id=TopicId(self.uuid()),
                name=name,
                partition_count=partitions,
                configs=configs or {},
                write_mode=WriteMode.LEADERLESS if leaderless else WriteMode.LEASED,
            )
        )

    async def partition(self, name: str = "orders", *, leaderless: bool = False) -> PartitionKey:
        """Partition 0 of a new topic."""
        return (await self.topic(name, leaderless=leaderless)).partition_keys()[0]

    async def register(self, holder: Holder) -> RegisteredAgent:
        return await self.store.register_agent(
            AgentInfo(
                agent_id=holder.agent_id, incarnation=holder.incarnation, listeners={"kafka": f"{holder.agent_id}:9092"}
            )
        )

    async def lead(self, key: LeaseKey, holder: Holder | None = None, *, ttl_ms: int = TTL_MS) -> Lease:
        return await self.store.acquire_partition_lease(key, holder or self.holder(), ttl_ms=ttl_ms)

    async def led(self, name: str = "orders", *, holder: Holder | None = None) -> LedPartition:
        """A new topic's only partition, led by ``holder`` (agent-1)."""
        leader = holder or self.holder()
        key = await self.partition(name)
        lease = await self.lead(key, leader)
        return LedPartition(backend=self, key=key, holder=leader, epoch=lease.epoch)

    # Looking.

    async def state(self, key: PartitionKey) -> PartitionState:
        (found,) = await self.store.get_partitions([key])
        return found

    async def entries(self, key: PartitionKey, store: MetadataStore | None = None) -> tuple[Entry, ...]:
        (page,) = await (store or self.store).scan_entries([ScanRange(key=key, from_offset=0)], limit=10_000)
        assert not page.more
        return page.entries

    async def watermark(self, key: PartitionKey) -> int:
        return (await self.state(key)).high_watermark


@dataclasses.dataclass(slots=True, kw_only=True)
class LedPartition:
    """A partition, its leader and where it goes on."""

    backend: Backend
    key: PartitionKey
    holder: Holder
    epoch: int
    next_offset: int = 0

    async def append(
        self, *batches: BatchRun, ref: ObjectRef | None = None, kind: EntryKind = EntryKind.SEGMENT
    ) -> SliceOutcome:
        """Commit at the next offset, which must succeed."""
        piece = leased_slice(
            self.key, ref or self.backend.object(), *batches, epoch=self.epoch, base=self.next_offset, kind=kind
        )
        (outcome,) = await self.backend.store.commit_leased(self.backend.append_id(), [piece])
        assert outcome.verdict is Verdict.COMMITTED, outcome
        self.next_offset = outcome.end_offset + 1
        return outcome
