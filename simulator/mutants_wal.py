"""Broken variants of the write-ahead log: what it forgets too early, what it believes, what it does not sync."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import UUID

from simulator.anomalies import Kind
from simulator.errands import Errands
from simulator.mutant import Mutant
from simulator.run import replaced
from simulator.scenario import Mischief, Scenario
from simulator.world import World
from streamhouse.formats import wal_scan_v1
from streamhouse.formats.wal_frame_v1 import (
    F_LAST_SYNCED_LSN,
    F_LENGTH,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    Frame,
    intact_fields,
    payload_end,
    read_file_header,
    read_frame,
)
from streamhouse.formats.wal_scan_v1 import Ending, ScanResult
from streamhouse.log.leased.writing import Writing
from streamhouse.log.wal import recovery
from streamhouse.log.wal.files import WalFiles

_CRASHES = {Mischief.KILL, Mischief.POWER_CUT}


def _crashing(scenario: Scenario) -> bool:
    return not _CRASHES.isdisjoint(scenario.mischief)


def _power_cuts(scenario: Scenario) -> bool:
    return Mischief.POWER_CUT in scenario.mischief


def _settled_too_early(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def take(self: Writing, partition: Any, pending: Any) -> None:
            original(self, partition, pending)
            self._wal.settle([pending.lsn])

        return take

    stack.enter_context(replaced(Writing, "take", make))


def _recycled_frames_accepted(stack: ExitStack, world: World, errands: Errands) -> None:
    """Frames are told by their checksum alone and numbered by their place, as in a WAL without generations."""

    def believing_scan(view: memoryview, *, wal_id: UUID, name: str = "") -> ScanResult:
        header = read_file_header(view)
        position, lsn, synced = FILE_HEADER_BYTES, header.first_lsn, 0
        while (fields := intact_fields(view, position)) and (end := payload_end(view, position, fields)):
            synced = min(max(synced, fields[F_LAST_SYNCED_LSN]), lsn - 1)
            position, lsn = end, lsn + 1
        return ScanResult(
            name=name,
            header=header,
            ending=Ending.CLEAN,
            detail="",
            frame_count=lsn - header.first_lsn,
            next_lsn=lsn,
            end_position=position,
            highest_synced_lsn=synced,
            highest_stray_lsn=0,
        )

    def numbered(view: memoryview, scanned: ScanResult) -> Iterator[Frame]:
        assert scanned.header is not None
        position, lsn = FILE_HEADER_BYTES, scanned.header.first_lsn
        while position < scanned.end_position:
            yield replace(read_frame(view, position, check_payload=False), lsn=lsn)
            fields = intact_fields(view, position)
            assert fields is not None
            position, lsn = position + FRAME_HEADER_BYTES + fields[F_LENGTH], lsn + 1

    stack.enter_context(replaced(recovery, "scan", lambda original: believing_scan))
    stack.enter_context(replaced(recovery, "frames", lambda original: numbered))


def _torn_frames_accepted(stack: ExitStack, world: World, errands: Errands) -> None:
    def make(original: Any) -> Any:
        def end_of(view: memoryview, position: int, fields: Any) -> int | None:
            end: int = position + FRAME_HEADER_BYTES + fields[F_LENGTH]
            return end if end <= len(view) else None

        return end_of

    stack.enter_context(replaced(wal_scan_v1, "payload_end", make))


def _directory_not_synced(stack: ExitStack, world: World, errands: Errands) -> None:
    class Forgetful:
        def __init__(self, disk: Any) -> None:
            self._disk = disk

        def __getattr__(self, name: str) -> Any:
            return getattr(self._disk, name)

        def sync_directory(self) -> None:
            pass

    def make(original: Any) -> Any:
        def open_new(self: WalFiles, new: Any) -> None:
            disk = self._disk
            self._disk = Forgetful(disk)
            try:
                original(self, new)
            finally:
                self._disk = disk

        return open_new

    stack.enter_context(replaced(WalFiles, "open_new", make))


MUTANTS = (
    Mutant(
        name="WAL settled too early",
        rule="WAL cut",
        story="a frame counts as settled when it is written, not when it is committed",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET, Kind.PROBLEM}),
        breaks=_settled_too_early,
        applies=_crashing,
    ),
    Mutant(
        name="recycled frames accepted",
        rule="R12",
        story="recovery goes on into frames left from a recycled file's previous use",
        shows_as=frozenset({Kind.DUPLICATED, Kind.LOST, Kind.WRONG_OFFSET, Kind.PROBLEM}),
        breaks=_recycled_frames_accepted,
        applies=_crashing,
    ),
    Mutant(
        name="torn frames accepted",
        rule="R12",
        story="recovery trusts a frame's header and does not check its payload",
        shows_as=frozenset({Kind.BAD_OBJECT, Kind.PROBLEM, Kind.PHANTOM}),
        breaks=_torn_frames_accepted,
        applies=_power_cuts,
    ),
    Mutant(
        name="directory not synced",
        rule="R12",
        story="a new WAL file is used before its name is durable",
        shows_as=frozenset({Kind.LOST, Kind.WRONG_OFFSET, Kind.PROBLEM}),
        breaks=_directory_not_synced,
        applies=_power_cuts,
    ),
)
