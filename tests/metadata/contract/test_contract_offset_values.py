"""Committed offsets are kept as they are given, as in Apache Kafka 4.2: negative ones, and any text beside them."""

from __future__ import annotations

import pytest
from harness import Backend

from streamhouse.core.limits import MAX_OFFSET_METADATA_BYTES
from streamhouse.metadata.contract import OffsetCommit, SlotFence, slot_of

GROUP = "payments"


async def coordinate(backend: Backend) -> SlotFence:
    lease = await backend.lead(slot_of(GROUP), backend.holder())
    return SlotFence(slot=slot_of(GROUP), epoch=lease.epoch)


@pytest.mark.parametrize("offset", [-1, -2, -1001, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("leader_epoch", [-1, -2, 7])
async def test_any_offset_is_kept_as_it_was_committed(backend: Backend, offset: int, leader_epoch: int) -> None:
    key = await backend.partition()
    fence = await coordinate(backend)
    for earlier in (OffsetCommit(key=key, offset=100), OffsetCommit(key=key, offset=offset, leader_epoch=leader_epoch)):
        assert await backend.store.commit_offsets(GROUP, fence, [earlier]) == []
    store = await backend.reopen()
    found = (await store.fetch_offsets(GROUP))[key]
    assert (found.offset, found.leader_epoch) == (offset, leader_epoch)
    assert await store.fetch_offsets(GROUP, [key]) == {key: found}
    assert await store.delete_offsets(GROUP, fence, [key]) == [key]
    assert await store.fetch_offsets(GROUP) == {}


@pytest.mark.parametrize(
    "note", ["\0", "a\0b", "\0" * MAX_OFFSET_METADATA_BYTES, "\x01", "\x01AA==", "\x01\0", "ü\0😀"]
)
async def test_any_text_is_kept_as_the_metadata_of_an_offset(backend: Backend, note: str) -> None:
    key = await backend.partition()
    await backend.store.commit_offsets_simple(GROUP, [OffsetCommit(key=key, offset=1, metadata=note)])
    store = await backend.reopen()
    assert (await store.fetch_offsets(GROUP))[key].metadata == note
