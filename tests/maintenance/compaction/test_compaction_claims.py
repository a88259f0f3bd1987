"""The claim on a partition: taken, renewed in time, lost, given back (S2.13)."""

from __future__ import annotations

import pytest
from compaction_faults import LossyMetadata
from compaction_ground import Ground

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction.claims import PartitionClaim

TTL_MS = 10_000


def claim(ground: Ground, key: PartitionKey, owner: str, metadata: object = None) -> PartitionClaim:
    return PartitionClaim(
        key,
        metadata=metadata or ground.metadata,  # type: ignore[arg-type]
        clock=ground.clock,
        owner=owner,
        ttl_ms=TTL_MS,
    )


async def test_s2_13_one_process_has_it_until_it_gives_it_back(ground: Ground) -> None:
    key = await ground.backend.partition()
    mine, theirs = claim(ground, key, "me"), claim(ground, key, "them")
    assert (await mine.hold(), await theirs.hold()) == (True, False)
    await theirs.release()
    assert await theirs.hold() is False, "what it does not have it cannot give back"
    await mine.release()
    assert (await theirs.hold(), await mine.hold()) == (True, False)


async def test_s2_13_it_is_renewed_once_half_of_its_time_has_passed(ground: Ground) -> None:
    key = await ground.backend.partition()
    mine, theirs = claim(ground, key, "me"), claim(ground, key, "them")
    await mine.hold()
    for _ in range(5):
        await ground.advance(TTL_MS // 2)
        assert await mine.hold()
    assert await theirs.hold() is False
    await ground.advance(TTL_MS + 1)
    assert (await theirs.hold(), await mine.hold()) == (True, False), "expired"


async def test_s2_13_while_the_store_is_away_it_counts_until_it_expires(sqlite_ground: Ground) -> None:
    ground = sqlite_ground
    key = await ground.backend.partition()
    lossy = LossyMetadata(ground.metadata, {})
    mine = claim(ground, key, "me", lossy)
    lossy.losses["acquire_claim"] = 1
    with pytest.raises(MetadataUnavailable):
        await mine.hold()
    assert await mine.hold()
    lossy.losses = {"acquire_claim": 9, "release_claim": 9}
    await ground.advance(TTL_MS - 1)
    assert await mine.hold()
    await ground.advance(1)
    assert await mine.hold() is False
    await mine.release()
