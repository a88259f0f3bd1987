"""Whether the metadata is as new as the WAL and the objects beside it (R23). Only for SQLite: a file can be put back.

A restored older copy of the metadata ends below records that were acknowledged. Their WAL frames may be gone already,
and their objects are garbage to it: it would give their offsets to other records, and vacuum would delete them.

    metadata       a definition of kind ``metadata-progress``; its version is the progress, and grows when watermarks
                   have moved
    WAL directory  the file ``metadata.progress``: the progress, and the watermarks of that moment
    object store   an object ``metadata-progress/{progress}``: the same

The progress is committed in the metadata first, and marked beside it afterwards. So wherever a process crashes, no mark
is ahead of the metadata, unless the metadata was replaced by an older copy. A mark that is ahead is refused at the
start, before anything is written. A copy younger than the last mark is not recognised: marks follow after seconds in
the WAL directory, after a minute in the object store, and when the process stops.

Marks that are missing or cannot be read refuse nothing: the first start, a former version, a new WAL directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    DefinitionChanged,
    DefinitionExists,
    MetadataTooOld,
    ObjectExists,
    ObjectNotFound,
    StreamHouseError,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_KEYS_PER_CALL, MAX_MARKED_PARTITIONS
from streamhouse.core.randomness import Randomness
from streamhouse.log.leased.recovery import HeldFrame
from streamhouse.maintenance.background import Background, Report, unheard
from streamhouse.metadata.contract import Definition, MetadataStore, WantedState
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import METADATA_PROGRESS_PREFIX, metadata_progress_key, metadata_progress_of

MARK_FILE: Final = "metadata.progress"
_KIND: Final = "metadata-progress"
_NAME: Final = "records"
_FORMAT: Final = "streamhouse metadata progress 1"
_FILE_INTERVAL_S: Final = 5.0
_OBJECT_INTERVAL_MS: Final = 60_000  # forty thousand PUTs a month
_MOST_OF_THE_TIME: Final = 50  # looking at all partitions takes at most 2% of one core
_STOP_TIMEOUT_S: Final = 5.0
_NAMED: Final = 10  # partitions in a message

_log = logging.getLogger(__name__)

Watermarks = Mapping[tuple[str, int], int]
"""The watermark of each partition, by topic name and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A mark: how far the metadata was, as it was written down beside it."""

    progress: int
    cluster_id: UUID
    at_ms: int
    watermarks: Watermarks = field(default_factory=dict)
    """Has the first MAX_MARKED_PARTITIONS partitions, in the order of topic names and partition numbers."""

    def to_bytes(self) -> bytes:
        named = [[topic, partition, offset] for (topic, partition), offset in self.watermarks.items()]
        fields = {"format": _FORMAT, "progress": self.progress, "cluster": str(self.cluster_id), "at_ms": self.at_ms}
        return json.dumps({**fields, "watermarks": named}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Mark | None:
        """Parse a mark. Returns None for bytes that are no mark."""
        try:
            fields: Any = json.loads(data)
            if fields["format"] != _FORMAT:
                return None
            return cls(
                progress=int(fields["progress"]),
                cluster_id=UUID(fields["cluster"]),
                at_ms=int(fields["at_ms"]),
                watermarks={(str(topic), int(part)): int(offset) for topic, part, offset in fields["watermarks"]},
            )
        except (ValueError, KeyError, TypeError):
            return None


# At the start.


async def check_object_store(metadata: MetadataStore, objects: ObjectStore) -> None:
    """Raises MetadataTooOld where the object store has seen newer metadata."""
    found = [
        progress
        async for info in objects.list(METADATA_PROGRESS_PREFIX)
        if (progress := metadata_progress_of(info.key)) is not None
    ]
    if not found:
        return
    cluster_id = (await metadata.cluster_info()).cluster_id
    newest = Mark(progress=max(found), cluster_id=cluster_id, at_ms=0)
    with contextlib.suppress(ObjectNotFound):
        newest = Mark.from_bytes(bytes(await objects.get(metadata_progress_key(newest.progress)))) or newest
    await _check(
        metadata,
        newest,
        where=f"the object store {objects.url}",
        undo=f"delete the objects under {METADATA_PROGRESS_PREFIX} in it",
    )


async def check_wal_directory(metadata: MetadataStore, wal_dir: Path) -> None:
    """Raises MetadataTooOld where the WAL directory has seen newer metadata of this cluster."""
    path = wal_dir / MARK_FILE
    try:
        mark = Mark.from_bytes(await asyncio.to_thread(path.read_bytes))
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("%s cannot be read, and is ignored: %s", path, error)
        return
    if mark is None:
        _log.warning("%s is damaged, and is ignored; the next one replaces it", path)
        return
    await _check(metadata, mark, where=f"the write-ahead log in {wal_dir}", undo=f"delete {path}")


async def check_frames_follow(metadata: MetadataStore, held: Mapping[PartitionKey, Sequence[HeldFrame]]) -> None:
    """Check a node with ``durability=wal``, where every frame was acknowledged. Raises MetadataTooOld when frames
    begin above the watermark: those between were settled, and so they had been committed, in newer metadata than
    this (R2)."""
    names = {topic.topic_id: topic.name for topic in await metadata.list_topics()}
    gaps: list[str] = []
    for state in [one for part in _chunks(sorted(held)) for one in await metadata.get_partitions(part)]:
        ahead = (frame.base_offset for frame in held[state.key] if frame.next_offset > state.high_watermark)
        first = min(ahead, default=state.high_watermark)
        if first > state.high_watermark:
            name = names.get(state.key.topic_id, str(state.key.topic_id))
            gaps.append(f"{name}/{state.key.partition} offsets {state.high_watermark} to {first - 1}")
    if gaps:
        raise MetadataTooOld(
            "the metadata ends before the write-ahead log begins: it is an older copy. It would lose" + _named(gaps),
            hint="bring the newer metadata back",
        )


async def _check(metadata: MetadataStore, mark: Mark, *, where: str, undo: str) -> None:
    known = await metadata.get_definition(_KIND, _NAME)
    progress = 0 if known is None else known.version
    if mark.progress <= progress or mark.cluster_id != (await metadata.cluster_info()).cluster_id:
        return
    present = await read_watermarks(metadata)
    lost = [
        f"{topic}/{partition} offsets {present.get((topic, partition), 0)} to {offset - 1}"
        for (topic, partition), offset in mark.watermarks.items()
        if offset > present.get((topic, partition), 0)
    ]
    told = "" if mark.at_ms == 0 else f" of {datetime.fromtimestamp(mark.at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    what = f"It would lose{_named(lost)}" if lost else "It is not known which records it would lose"
    raise MetadataTooOld(
        f"the metadata is an older copy: {where} has seen newer metadata{told} (progress"
        f" {mark.progress}; this copy has {progress}). {what}",
        hint=f"bring the newer metadata back. To give up what was written since: back everything up, then {undo}",
    )


def _named(lost: Sequence[str]) -> str:
    more = "" if len(lost) <= _NAMED else f", and of {len(lost) - _NAMED} more partitions"
    return f" {', '.join(lost[:_NAMED])}{more}"


def _chunks(keys: Sequence[PartitionKey]) -> Iterable[Sequence[PartitionKey]]:
    return (keys[start : start + MAX_KEYS_PER_CALL] for start in range(0, len(keys), MAX_KEYS_PER_CALL))


async def read_watermarks(metadata: MetadataStore) -> dict[tuple[str, int], int]:
    topics = await metadata.list_topics()
    names = {topic.topic_id: topic.name for topic in topics}
    keys = [key for topic in topics for key in topic.partition_keys()]
    states = [state for part in _chunks(keys) for state in await metadata.get_partitions(part)]
    return {(names[state.key.topic_id], state.key.partition): state.high_watermark for state in states}


# While it runs.


class MetadataProgress:
    """Lets the progress grow and leaves the marks. ``close`` leaves the last ones."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        wal_dir: Path,
        cluster_id: UUID,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._metadata = metadata
        self._objects = objects
        self._path = wal_dir / MARK_FILE
        self._cluster_id = cluster_id
        self._clock = clock
        self._randomness = randomness
        self._counted = ""
        self._in_file = 0
        self._in_store = 0
        self._stored_boot_ms: int | None = None
        self._loops = Background(unheard)
        self._started = False

    def start(self, report: Report) -> None:
        self._loops = Background(report)
        self._loops.start("metadata progress", self._step)
        self._started = True

    async def close(self) -> None:
        """Does not wait for a store that does not answer: the next start leaves the marks."""
        await self._loops.close()
        if not self._started:
            return  # the start was refused: nothing is changed
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self.leave_marks(last=True)
        except (StreamHouseError, OSError) as error:  # TimeoutError is an OSError
            _log.warning("the progress of the metadata was not marked at the stop: %s", error or "no answer in time")

    async def _step(self) -> None:
        began_ms = self._clock.boot_ms()
        await self.leave_marks()
        took_s = (self._clock.boot_ms() - began_ms) / 1000
        await asyncio.sleep(max(_FILE_INTERVAL_S, took_s * _MOST_OF_THE_TIME))

    async def leave_marks(self, *, last: bool = False) -> None:
        """``last``: in the object store too, however short ago the former one was left there."""
        watermarks = await read_watermarks(self._metadata)
        counted = json.dumps({"partitions": len(watermarks), "records": sum(watermarks.values())})
        known = await self._metadata.get_definition(_KIND, _NAME)
        if known is None and not any(watermarks.values()):
            return  # nothing could be lost yet
        if known is None or counted != self._counted:
            known = await self._grow(known, counted)
            self._counted = counted
        mark = Mark(
            progress=known.version,
            cluster_id=self._cluster_id,
            at_ms=known.updated_at_ms,
            watermarks=dict(sorted(watermarks.items())[:MAX_MARKED_PARTITIONS]),
        )
        if mark.progress > self._in_file:
            await asyncio.to_thread(_write_durably, self._path, mark.to_bytes())
            self._in_file = mark.progress
        if mark.progress > self._in_store and (last or self._store_mark_is_due()):
            await self._mark_store(mark)

    async def _grow(self, known: Definition | None, counted: str) -> Definition:
        """Another process may be quicker: what it has committed is this metadata's progress too."""
        try:
            if known is None:
                return await self._metadata.create_definition(
                    _KIND,
                    _NAME,
                    definition_id=self._randomness.uuid(),
                    document=counted,
                    wanted=WantedState.STOPPED,
                )
            return await self._metadata.update_definition(
                _KIND, _NAME, expected_version=known.version, document=counted
            )
        except (DefinitionExists, DefinitionChanged):
            found = await self._metadata.get_definition(_KIND, _NAME)
            assert found is not None
            return found

    def _store_mark_is_due(self) -> bool:
        return self._stored_boot_ms is None or self._clock.boot_ms() - self._stored_boot_ms >= _OBJECT_INTERVAL_MS

    async def _mark_store(self, mark: Mark) -> None:
        self._stored_boot_ms = self._clock.boot_ms()
        with contextlib.suppress(ObjectExists):
            await self._objects.put(metadata_progress_key(mark.progress), mark.to_bytes())
        self._in_store = mark.progress
        listed = [info.key async for info in self._objects.list(METADATA_PROGRESS_PREFIX)]
        await self._objects.delete(
            [key for key in listed if (metadata_progress_of(key) or mark.progress) < mark.progress]
        )


def _write_durably(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f"{path.name}.new")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
