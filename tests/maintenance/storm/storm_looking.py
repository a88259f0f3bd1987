"""What a storm's log and its bucket hold: read as a consumer reads, and compared with what the metadata refers to."""

from __future__ import annotations

from storm_place import Stores, StormPlace

from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SystemRandomness
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.reader import LogReader
from streamhouse.log.tail import TailCache
from streamhouse.maintenance.verify import Finding, Verifier
from streamhouse.metadata.contract import ScanRange
from streamhouse.objectstore.keys import CLUSTER_ID_KEY, metadata_progress_of


async def read_log(stores: Stores, key: PartitionKey, offset: int) -> bytes:
    """The log from ``offset`` to its end, as a consumer gets it from a reader of its own."""
    reader = LogReader(
        metadata=stores.metadata,
        store=stores.objects,
        tail=TailCache(1 << 20),
        leading=None,
        clock=stores.clock,
        options=ReaderOptions(read_ahead_bytes=0),
    )
    found = bytearray()
    try:
        while True:
            result = await reader.read(key, offset, max_bytes=1 << 20)
            if result.next_offset == offset:
                return bytes(found)
            for batch in result.batches:
                found += batch
            offset = result.next_offset
    finally:
        await reader.close()


async def referenced(stores: Stores) -> set[str]:
    """What the entries of all topics name."""
    found: set[str] = set()
    for topic in await stores.metadata.list_topics():
        for key in topic.partition_keys():
            offset, more = 0, True
            while more:
                (page,) = await stores.metadata.scan_entries([ScanRange(key=key, from_offset=offset)], limit=1_000)
                found.update(entry.object_key for entry in page.entries)
                more = page.more
                offset = page.entries[-1].end_offset + 1 if page.entries else offset
    return found


async def what_is_inexact(place: StormPlace, stores: Stores) -> list[str]:
    """After the last vacuum: what verify finds, and where bucket, rows of objects and references differ."""
    findings: list[Finding] = []
    verifier = Verifier(
        metadata=stores.metadata,
        store=stores.objects,
        randomness=SystemRandomness(),
        tell=lambda item: findings.append(item) if isinstance(item, Finding) else None,
    )
    await verifier.run()
    wanted = await referenced(stores)
    bucket = {info.key async for info in stores.objects.list() if not _is_mark(info.key)}
    rows = await place.object_rows()
    return [
        *map(str, findings),
        *(f"lost: {key} is referenced and not in the bucket" for key in sorted(wanted - bucket)),
        *(f"left: {key} is in the bucket and not referenced" for key in sorted(bucket - wanted)),
        *(f"the row of {key} has no entry" for key in sorted(rows - wanted)),
        *(f"{key} has entries and no row" for key in sorted(wanted - rows)),
    ]


def _is_mark(key: str) -> bool:
    """Agents leave two kinds of marks in the bucket: whose it is, and how far the metadata was."""
    return key == CLUSTER_ID_KEY or metadata_progress_of(key) is not None
