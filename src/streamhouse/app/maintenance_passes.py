"""Maintenance of a cluster in a process without an agent: what `streamhouse compact`, `retain` and so on run.

The stores are opened by the function that agents use (stores.py). So the object store of another cluster is refused,
and metadata that is an older copy. One thing differs: an agent creates what is missing, and so begins a cluster. A
mistyped URL must not begin one here. Therefore ``open_maintenance`` first looks whether a cluster is there.

Agents may run meanwhile. All that the passes change goes through the metadata contract, as it does for an agent; they
take no lease, and not the lock of the write-ahead log. On SQLite this process has to run on the same machine.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streamhouse.app.log_parts import upkeep_options
from streamhouse.app.stores import Stores, open_stores
from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataMisconfigured, StoreMisconfigured, StreamHouseError, TopicNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import Settings
from streamhouse.core.suggest import closest
from streamhouse.core.urls import local_path, mask_url, scheme_of
from streamhouse.log.offload import Offload, ThreadOffload
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.compaction.policy import compacted_logs, small_object_logs
from streamhouse.maintenance.compaction.recovery import RecoveryOutcome, recover_compaction
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor
from streamhouse.maintenance.key_compaction.stats import KeyPassResult
from streamhouse.maintenance.metadata_progress import check_wal_directory
from streamhouse.maintenance.repair import Repairer, TellRepair
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import OnProgress, Vacuum
from streamhouse.maintenance.verify import Tell, TellDamaged, Verifier, VerifyOptions
from streamhouse.metadata.contract import Topic
from streamhouse.metadata.opening import open_metadata

__all__ = [
    "KeyPassResult",
    "MaintenancePasses",
    "PassEnd",
    "compact_once",
    "compaction_rules",
    "open_maintenance",
    "run_pass",
]

_BINDING: Final = "object-store"  # the kind of definition that store_binding.py leaves when a cluster begins
_OFFLOAD_THREADS: Final = 2  # checksums and decompression; the reads and writes beside them take a core too
_NAMED: Final = 10  # topics in an error
_RETRY_DEADLINE_MS: Final = 30_000  # as long as the metadata store itself tries
_HINT: Final = "check data_dir, metadata.url and store.url; the first agent of a cluster creates its stores"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePasses:
    """The passes over the two stores, which stay open as long as the context that made this."""

    stores: Stores
    offload: Offload
    clock: Clock
    randomness: Randomness

    async def topics(self, names: Iterable[str] | None = None) -> list[Topic]:
        """The named topics, each once, or all. Raises TopicNotFound."""
        existing = await self.stores.metadata.list_topics()
        if names is None:
            return existing
        by_name = {topic.name: topic for topic in existing}
        wanted = list(dict.fromkeys(names))
        if unknown := [name for name in wanted if name not in by_name]:
            raise _no_such_topics(unknown, sorted(by_name))
        return [by_name[name] for name in wanted]

    def retention(self) -> Retention:
        return Retention(metadata=self.stores.metadata)

    def compactor(self, rules: CompactionRules) -> Compactor:
        return Compactor(
            metadata=self.stores.metadata,
            store=self.stores.objects,
            offload=self.offload,
            clock=self.clock,
            randomness=self.randomness,
            owner=f"pass-{self.randomness.uuid().hex[:12]}",
            options=CompactorOptions(rules=rules),
        )

    def key_compactor(self) -> KeyCompactor:
        return KeyCompactor(
            metadata=self.stores.metadata,
            store=self.stores.objects,
            offload=self.offload,
            clock=self.clock,
            randomness=self.randomness,
            owner=f"pass-{self.randomness.uuid().hex[:12]}",
        )

    def vacuum(self, options: VacuumOptions, *, on_progress: OnProgress | None = None) -> Vacuum:
        return Vacuum(
            metadata=self.stores.metadata, objects=self.stores.objects, options=options, on_progress=on_progress
        )

    def verifier(self, options: VerifyOptions, *, tell: Tell, tell_damaged: TellDamaged | None = None) -> Verifier:
        return Verifier(
            metadata=self.stores.metadata,
            store=self.stores.objects,
            randomness=self.randomness,
            tell=tell,
            options=options,
            offload=self.offload,
            tell_damaged=tell_damaged,
        )

    def repairer(self, options: VerifyOptions, *, tell: TellRepair, plan_only: bool) -> Repairer:
        return Repairer(
            metadata=self.stores.metadata,
            store=self.stores.objects,
            offload=self.offload,
            clock=self.clock,
            randomness=self.randomness,
            owner=f"pass-{self.randomness.uuid().hex[:12]}",
            tell=tell,
            options=options,
            plan_only=plan_only,
        )

    async def finish_compactions(self, keys: Collection[PartitionKey]) -> int:
        """Finish what a compactor that was stopped has begun in these partitions. Returns how many it has finished.

        One that another process is about to finish may be among them: finishing it twice is harmless (recovery.py).
        """
        finished = 0
        for compaction in await self.stores.metadata.list_compactions():
            if compaction.key in keys:
                outcome = await recover_compaction(compaction, metadata=self.stores.metadata, store=self.stores.objects)
                finished += outcome is RecoveryOutcome.APPLIED
        return finished


def _no_such_topics(unknown: Sequence[str], known: Sequence[str]) -> TopicNotFound:
    what = "is no topic" if len(unknown) == 1 else "are no topics"
    near = dict.fromkeys(name for each in unknown if (name := closest(each, known)) is not None)
    hint = f"did you mean {_some(list(near))}?" if near else f"this cluster has {_some(known) or 'no topics'}"
    return TopicNotFound(f"there {what} {_some([f'{name!r:.260}' for name in unknown])}", hint=hint)


def _some(names: Sequence[str]) -> str:
    left = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {left:,} more" if left > 0 else "")


def compaction_rules(settings: Settings) -> CompactionRules:
    """The rules by which an agent with these settings compacts."""
    return upkeep_options(settings).compactor.rules


async def compact_once(
    settings: Settings, stores: Stores, names: Iterable[str] | None, *, clock: Clock, randomness: Randomness
) -> KeyPassResult:
    """One pass of compaction over these topics, or over all: of small objects, and of keys where the topic's policy
    says so. Raises TopicNotFound, MetadataError."""
    offload = ThreadOffload(_OFFLOAD_THREADS)
    try:
        maintenance = MaintenancePasses(stores=stores, offload=offload, clock=clock, randomness=randomness)
        topics = await maintenance.topics(names)
        compactor = maintenance.compactor(compaction_rules(settings))
        small = await compactor.compact_once(small_object_logs(topics))
        return (await maintenance.key_compactor().compact_once(compacted_logs(topics))).plus(small)
    finally:
        await offload.close()


# A process that does one pass.


@asynccontextmanager
async def open_maintenance(
    settings: Settings, *, clock: Clock, randomness: Randomness
) -> AsyncIterator[MaintenancePasses]:
    """Open the stores of a cluster that exists. Raises MetadataMisconfigured or StoreMisconfigured where there is none,
    and what an agent's start raises."""
    await _check_that_it_exists(settings, clock=clock, randomness=randomness)
    async with AsyncExitStack() as parts:
        stores = await parts.enter_async_context(open_stores(settings, clock=clock, randomness=randomness))
        if scheme_of(settings.metadata.url) == "sqlite":
            await check_wal_directory(stores.metadata, settings.wal.dir)
        offload = ThreadOffload(_OFFLOAD_THREADS)
        parts.push_async_callback(offload.close)
        yield MaintenancePasses(stores=stores, offload=offload, clock=clock, randomness=randomness)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassEnd:
    interrupted: bool
    """A signal has ended the pass before its time."""
    error: StreamHouseError | None
    """The error that has ended the pass before its time."""
    request_cost_usd: float
    """What all requests to the object store cost, those of the checks at the start included."""


async def run_pass(
    settings: Settings,
    names: Iterable[str] | None,
    work: Callable[[MaintenancePasses, list[Topic]], Awaitable[None]],
    *,
    clock: Clock,
    randomness: Randomness,
) -> PassEnd:
    """Open the stores, do ``work`` on these topics, and close the stores.

    SIGINT and SIGTERM cancel the work; a second one ends the process at once. Raises what stands in the way before the
    work begins. What ends the work itself is in the result, so that the caller can say what was done until then.
    """
    running, stopping = asyncio.current_task(), asyncio.Event()
    assert running is not None

    def on_signal(number: int) -> None:
        if stopping.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stopping.set()
        running.cancel()

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    error, cost_usd = None, 0.0
    try:
        async with open_maintenance(settings, clock=clock, randomness=randomness) as maintenance:
            topics = await maintenance.topics(names)
            try:
                await work(maintenance, topics)
            except StreamHouseError as failure:
                error = failure
            finally:
                cost_usd = maintenance.stores.meter.read().request_cost_usd
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise
        running.uncancel()
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    return PassEnd(interrupted=stopping.is_set(), error=error, request_cost_usd=cost_usd)


async def _check_that_it_exists(settings: Settings, *, clock: Clock, randomness: Randomness) -> None:
    """Creates nothing."""
    _check_local_places(settings)
    url = settings.metadata.url
    metadata = open_metadata(url, clock=clock, randomness=randomness)
    if scheme_of(url) != "sqlite":
        await _check_tables(url, randomness)
    async with metadata:
        if not await metadata.list_definitions(_BINDING):
            raise MetadataMisconfigured(
                f"the metadata store {mask_url(url)} has no object store yet: no agent has run on it", hint=_HINT
            )


def _check_local_places(settings: Settings) -> None:
    if scheme_of(settings.metadata.url) == "sqlite":
        file = Path(local_path(settings.metadata.url))
        if not file.is_file() or file.stat().st_size == 0:
            raise MetadataMisconfigured(f"there is no metadata in {file}", hint=_HINT)
    if scheme_of(settings.store.url) == "file":
        directory = Path(local_path(settings.store.url))
        if not directory.is_dir():
            raise StoreMisconfigured(f"there is no object store in {directory}", hint=_HINT)


async def _check_tables(url: str, randomness: Randomness) -> None:
    """Look into PostgreSQL. To open the store would make the tables that are missing."""
    from streamhouse.metadata.postgres.database import Database  # an extra, as in metadata/opening.py

    async def look(connection: Any) -> None:
        found = await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_tables"
            " WHERE schemaname = current_schema() AND tablename = 'store_info')"
        )
        if not found:
            raise MetadataMisconfigured(f"there is no metadata in the database at {database.where}", hint=_HINT)

    database = Database(url, randomness=randomness, retry_deadline_ms=_RETRY_DEADLINE_MS, max_connections=1)
    try:
        await database.open(look)
    finally:
        await database.close()
