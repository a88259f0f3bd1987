"""Damaged logs that are repaired: one run as a process does it, and all that a repair must not change."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from verify_damages import Fleet
from verify_world import SqliteRows, Told, World, Written

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.offload import InlineOffload
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.maintenance.repair import DamageList, EntryRepair, Repairer, RepairOutcome, RepairSummary
from streamhouse.maintenance.verify import Finding, Verifier, VerifyDepth, VerifyOptions, VerifyProgress
from streamhouse.metadata.contract import Entry, ScanRange

Place = tuple[str, int]
"""A partition and the base offset of an entry: ("orders/0", 6)."""


@dataclass
class Repaired:
    """What a verification has found, and what a repair has said of it."""

    told: Told
    damages: DamageList
    summary: RepairSummary = field(default_factory=RepairSummary)
    repairs: list[EntryRepair] = field(default_factory=list)

    def places(self, outcome: RepairOutcome) -> set[Place]:
        return {place_of(repair) for repair in self.repairs if repair.outcome is outcome}

    @property
    def outcomes(self) -> dict[Place, RepairOutcome]:
        return {place_of(repair): repair.outcome for repair in self.repairs}

    @property
    def reasons(self) -> dict[Place, str]:
        return {place_of(repair): repair.reason for repair in self.repairs}


def place_of(repair: EntryRepair) -> Place:
    judged = repair.judged
    return f"{judged.topic}/{judged.key.partition}", judged.entry.base_offset


async def find_damage(world: World, *, depth: VerifyDepth = VerifyDepth.DEEP) -> Repaired:
    findings: list[Finding] = []
    damages = DamageList()

    def tell(told: Finding | VerifyProgress) -> None:
        if isinstance(told, Finding):
            findings.append(told)
            damages.hear(told)

    verifier = Verifier(
        metadata=world.metadata,
        store=world.store,
        randomness=world.randomness,
        tell=tell,
        options=VerifyOptions(depth=depth, partitions_at_a_time=1, entries_at_a_time=1),
        tell_damaged=damages.add,
    )
    return Repaired(Told(await verifier.run(), findings), damages)


async def repair(
    world: World,
    *,
    plan_only: bool = False,
    depth: VerifyDepth = VerifyDepth.DEEP,
    owner: str = "repair-1",
    metadata: Any = None,
    store: Any = None,
    seed: int = 9,
) -> Repaired:
    """Verify, and repair what was found. ``metadata`` and ``store`` are those that the repair sees."""
    found = await find_damage(world, depth=depth)
    repairer = Repairer(
        metadata=metadata or world.metadata,
        store=store or world.store,
        offload=InlineOffload(),
        clock=ManualClock(),
        randomness=SeededRandomness(seed),
        owner=owner,
        tell=found.repairs.append,
        options=VerifyOptions(depth=depth),
        plan_only=plan_only,
    )
    found.summary = repairer.summary
    await repairer.run(found.damages)
    return found


@dataclass
class Snapshot:
    """All that consumers and vacuum can see of a fleet."""

    logs: dict[tuple[str, int], bytes]
    """Each batch that a consumer gets, by the offset that it asked for."""
    entries: dict[Place, Entry]
    objects: dict[str, bytes]
    rows: list[str]
    """Every row of the store but its clock, on SQLite."""

    @staticmethod
    async def of(fleet: Fleet) -> Snapshot:
        world = fleet.world
        logs, entries = {}, {}
        for log in (fleet.left, fleet.right, fleet.clicks):
            name = f"{log.topic.name}/{log.key.partition}"
            logs |= {(name, offset): data for offset, data in (await read_all(world, log)).items()}
            entries |= {(name, entry.base_offset): entry for entry in await entries_of(world, [log])}
        return Snapshot(logs, entries, await objects_of(world), rows_of(world))


async def read_all(world: World, log: Written, reader: LogReader | None = None) -> dict[int, bytes]:
    """The batches of a log by their offsets, those left out that a consumer cannot get."""
    own = reader or new_reader(world)
    found, offset = {}, 0
    while offset < log.next_offset:
        try:
            result = await own.read(log.key, offset, max_bytes=1)
        except StreamHouseError:
            offset += 1
            continue
        if result.batches:
            found[offset] = b"".join(map(bytes, result.batches))
        offset = max(result.next_offset, offset + 1)
    if reader is None:
        await own.close()
    return found


def new_reader(world: World) -> LogReader:
    return LogReader(
        metadata=world.metadata,
        store=world.store,
        tail=TailCache(1 << 20),
        leading=None,
        clock=ManualClock(),
        options=ReaderOptions(read_ahead_bytes=0),
    )


async def entries_of(world: World, logs: Iterable[Written]) -> list[Entry]:
    """Also of a partition whose row is missing: then there are none."""
    found = []
    for log in logs:
        for page in await world.metadata.scan_entries([ScanRange(key=log.key, from_offset=0)], limit=1_000):
            found += page.entries
    return found


async def objects_of(world: World) -> dict[str, bytes]:
    keys = [info.key async for info in world.store.list()]
    return {key: bytes(await world.store.get(key)) for key in keys}


def rows_of(world: World) -> list[str]:
    if not isinstance(world.rows, SqliteRows):
        return []
    with closing(sqlite3.connect(world.rows.path)) as database:
        return [line for line in database.iterdump() if not line.startswith('INSERT INTO "store_info"')]
