"""Logs with keys, compactors on them, and what Kafka's cleaner would leave: a model in plain Python."""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from compaction_ground import START_MS, Batch, Ground, WrittenLog

from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.core.topic_config import TopicConfig, effective
from streamhouse.log.offload import InlineOffload
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor, KeyCompactorOptions
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.metadata.contract import MetadataStore
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Header, Record, decode_records

DAY_MS = 86_400_000
Kept = tuple[int, bytes | None, bytes | None, int, tuple[Header, ...]]
"""Offset, key, value, time and headers of a record: all that a consumer sees of it."""


def compacted(**configs: Any) -> TopicConfig:
    """Configs of a topic that is compacted whatever the share of what is dirty."""
    stored = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    stored |= {name.replace("_", "."): str(value) for name, value in configs.items()}
    return effective(stored)


def keyed(
    *pairs: tuple[bytes | None, bytes | None], codec: Codec = Codec.NONE, at_ms: int = START_MS, **more: Any
) -> Batch:
    """One batch of (key, value); a value of None is a tombstone."""
    records = [Record(key=key, value=value, timestamp_ms=at_ms + n) for n, (key, value) in enumerate(pairs)]
    return {"records": records, "codec": codec, **more}


def random_batch(rng: random.Random, *, keys: int, keyless: float = 0.0, producer: bool = True) -> Batch:
    """Any codec, keys from a small set, tombstones, headers, times in any order."""
    records = []
    for _ in range(rng.randrange(1, 8)):
        key = None if rng.random() < keyless else b"key-%d" % rng.randrange(keys)
        value = None if rng.random() < 0.25 else rng.choice([b"", b"again " * rng.randrange(30), rng.randbytes(40)])
        headers = tuple(Header(f"h{n}", rng.choice([None, b"v"])) for n in range(rng.randrange(3)))
        time_ms = START_MS + rng.randrange(-5_000, 5_000)
        records.append(Record(key=key, value=value, timestamp_ms=time_ms, headers=headers))
    batch: Batch = {"records": records, "codec": rng.choice(list(Codec))}
    if producer and rng.random() < 0.5:
        batch |= {"producer_id": rng.randrange(9), "producer_epoch": 1, "base_sequence": rng.randrange(99)}
    return batch


def seen(log: bytes) -> list[Kept]:
    return [
        (record.offset, record.key, record.value, record.timestamp_ms, record.headers)
        for position, _ in iter_batches(log, allow_compacted=True)
        for record in decode_records(log, position)
    ]


@dataclass(slots=True)
class CleanerModel:
    """Kafka's cleaner on a list of records, which it knows by offset."""

    records: dict[int, Kept] = field(default_factory=dict)
    horizons: dict[int, int] = field(default_factory=dict)
    """By the base offset of the batch, which is what has a horizon."""
    batch_of: dict[int, int] = field(default_factory=dict)

    def written(self, log: bytes) -> None:
        """All batches ever written, at their places."""
        for position, header in iter_batches(log):
            for record in decode_records(log, position):
                if record.offset not in self.batch_of:
                    self.batch_of[record.offset] = header.base_offset
                    self.records[record.offset] = (
                        record.offset,
                        record.key,
                        record.value,
                        record.timestamp_ms,
                        record.headers,
                    )

    def clean(self, *, below: int, now_ms: int, delete_retention_ms: int) -> None:
        newest = {kept[1]: offset for offset, kept in sorted(self.records.items()) if offset < below}
        for offset in sorted(offset for offset in self.records if offset < below):
            _, key, value, *_ = self.records[offset]
            batch = self.batch_of[offset]
            is_past = self.horizons.get(batch, now_ms + 1) <= now_ms
            if key is None or newest[key] > offset or (value is None and is_past):
                del self.records[offset]
        for offset, kept in self.records.items():
            if offset < below and kept[2] is None:
                self.horizons.setdefault(self.batch_of[offset], now_ms + delete_retention_ms)

    def from_offset(self, offset: int) -> list[Kept]:
        return [kept for at, kept in sorted(self.records.items()) if at >= offset]


class KeyGround(Ground):
    def key_compactor(
        self,
        *,
        rules: KeyRules | None = None,
        metadata: Any = None,
        store: Any = None,
        owner: str | None = None,
        **options: Any,
    ) -> KeyCompactor:
        """A key compactor as another process would make it."""
        self._owners += 1
        return KeyCompactor(
            metadata=metadata or self.metadata,
            store=store or self.memory,
            offload=InlineOffload(),
            clock=self.clock,
            randomness=SeededRandomness(2_000 + self._owners),
            owner=owner or f"key-compactor-{self._owners}",
            options=KeyCompactorOptions(rules=rules or KeyRules(), **options),
        )

    def reader(self) -> LogReader:
        return LogReader(
            metadata=self.metadata,
            store=self.memory,
            tail=TailCache(1 << 20),
            leading=None,
            clock=self.clock,
            options=ReaderOptions(read_ahead_bytes=0),
        )

    async def seen_from(self, key: PartitionKey, offset: int) -> list[Kept]:
        """What a consumer gets that begins at ``offset``."""
        return [kept for kept in seen(await self.read(key, offset)) if kept[0] >= offset]


async def compact(ground: KeyGround, log: WrittenLog, *, config: TopicConfig | None = None, **options: Any) -> Any:
    """One pass by a process of its own, which must not fail."""
    done = await ground.key_compactor(**options).compact_once({log.key: config or compacted()})
    assert done.failures == (), done.failures
    return done


async def keyed_log(
    ground: Ground, *objects: Sequence[tuple[bytes | None, bytes | None]], name: str = "table", **more: Any
) -> WrittenLog:
    """Each object with one batch."""
    log = await ground.log(name)
    for pairs in objects:
        await log.write(keyed(*pairs, **more))
    await ground.advance(1)
    return log


def pairs_of(kept: Sequence[Kept]) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(offset, key, value) for offset, key, value, *_ in kept]


def loops_twin(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"streamhouse.maintenance.key_compaction.{name}")
    except ModuleNotFoundError:
        pytest.fail(f"{name} is not built: install a C compiler, then pip install -e . again")


class Unclaimed:
    """A metadata store where every process gets every claim."""

    def __init__(self, inner: MetadataStore, owner: str) -> None:
        self._inner = inner
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        if name != "acquire_claim":
            return getattr(self._inner, name)

        async def acquire(claim: str, *, owner: str, ttl_ms: int) -> Any:
            return await self._inner.acquire_claim(f"{self._owner}/{claim}", owner=owner, ttl_ms=ttl_ms)

        return acquire
