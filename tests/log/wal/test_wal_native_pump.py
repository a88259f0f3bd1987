"""What is particular to the compiled lane: its thread, its hold on buffers, its failures. All else is the same for
every pump, in test_wal_wal.py."""

from __future__ import annotations

import asyncio
import os
import select
from pathlib import Path

import pytest
from wal_harness import SMALL, a_wal, add, add_many, contents, opened

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import WalFailed, WalOutcomeUnknown
from streamhouse.core.limits import KIB, MAX_WAL_IOVECS
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.wal import NativePump, Wal, WalOptions, open_wal
from streamhouse.log.wal.files import WalFiles
from streamhouse.log.wal.local_disk import LocalFile
from streamhouse.log.wal.native_pump import has_lanes

LARGE = WalOptions(file_bytes=8 * 1024 * KIB, max_bytes=64 * 1024 * KIB)


def test_the_lane_is_compiled_here() -> None:
    """Else the tests of this file, and a good part of test_wal_wal.py, would show nothing."""
    assert has_lanes()


async def test_a_path_alone_means_the_compiled_lane(tmp_path: Path) -> None:
    clock, randomness = ManualClock(), SeededRandomness(1)
    wal, _ = await open_wal(tmp_path / "wal", clock=clock, randomness=randomness, options=SMALL)
    assert isinstance(wal._pump, NativePump)
    await wal.close()


@pytest.mark.parametrize("options", [SMALL, LARGE])
async def test_more_buffers_than_one_call_takes_and_files_in_between(tmp_path: Path, options: WalOptions) -> None:
    """All of it is queued before the thread can have written any."""
    batches = [os.urandom(number * 37 % 300) for number in range(1, 3 * MAX_WAL_IOVECS // 2)]
    async with a_wal(tmp_path / "wal", pump=NativePump(), options=options) as (wal, _):
        for batch in batches[:200]:
            add(wal, batch)
        wal.settle(range(1, 101))
        await wal.wait_synced(200)
        if options is LARGE:
            for batch in batches[200:]:
                add(wal, batch)
    kept = batches if options is LARGE else batches[:200]
    async with a_wal(tmp_path / "wal", pump=NativePump(), options=options) as (_, recovered):
        found = contents(recovered)
    assert [found[lsn] for lsn in range(101, len(kept) + 1)] == kept[100:]


async def test_a_buffer_is_held_until_it_is_synced_and_not_longer(tmp_path: Path) -> None:
    async with a_wal(tmp_path / "wal", pump=NativePump(), options=LARGE) as (wal, _):
        batch = bytearray(os.urandom(8 * KIB))
        lsn = add(wal, batch)
        with pytest.raises(BufferError):
            batch.append(1)
        await wal.wait_synced(lsn)
        batch.append(1)


async def test_every_sync_is_counted_however_many_are_heard_of_at_once(tmp_path: Path) -> None:
    heard: list[int] = []
    async with a_wal(tmp_path / "wal", pump=NativePump(), options=LARGE) as (wal, _):
        wal.on_synced(heard.append)
        for _ in range(50):
            add(wal, bytes(100))
            await asyncio.sleep(0)
        await wal.wait_synced(50)
        assert heard == sorted(heard)
        assert heard[-1] == 50
        metrics = wal.metrics
        assert len(heard) <= metrics.syncs <= 50
        assert 0 < metrics.sync_seconds_max <= metrics.sync_seconds_total


def break_file(wal: Wal) -> None:
    """From now on the disk refuses to be written, as far as this process can see."""
    file = wal._files.active
    assert isinstance(file, LocalFile)
    readable = os.open(os.devnull, os.O_RDONLY)
    os.dup2(readable, file.fileno())
    os.close(readable)


async def test_r11_a_write_that_fails_is_final_and_what_was_synced_before_stays_so(tmp_path: Path) -> None:
    wal, _ = await opened(tmp_path / "wal", pump=NativePump(), options=LARGE)
    heard: list[int] = []
    failures: list[WalFailed] = []
    wal.on_synced(heard.append)
    wal.on_failed(failures.append)
    await wal.wait_synced(add_many(wal, 5)[-1])
    break_file(wal)
    lsn = add(wal)
    with pytest.raises(WalOutcomeUnknown, match="Bad file descriptor"):
        await wal.wait_synced(lsn)
    with pytest.raises(WalFailed):
        add(wal)
    assert (heard[-1], wal.synced_lsn, len(failures)) == (5, 5, 1)
    assert not wal.health.ok
    await wal.close()
    async with a_wal(tmp_path / "wal", pump=NativePump(), options=LARGE) as (_, recovered):
        assert sorted(contents(recovered)) == [1, 2, 3, 4, 5]


async def test_r11_when_the_tidying_lane_fails_the_sleeping_writer_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: WalFiles, chore: object) -> None:
        raise OSError(5, "Input/output error")

    wal, _ = await opened(tmp_path / "wal", pump=NativePump())
    failed = asyncio.Event()
    wal.on_failed(lambda _: failed.set())
    monkeypatch.setattr(WalFiles, "do_chore", refuse)
    lsns: list[int] = []
    while wal.health.ok and not wal.is_full(4 * KIB):
        lsns.append(add(wal, bytes(4 * KIB)))
        wal.settle(lsns)
        await asyncio.sleep(0.001)
    await asyncio.wait_for(failed.wait(), 10)
    assert "Input/output error" in (wal.health.reason or "")
    await asyncio.wait_for(wal.close(), 10)


async def test_closing_at_once_loses_nothing(tmp_path: Path) -> None:
    for round_number in range(20):
        wal, recovered = await opened(tmp_path / "wal", pump=NativePump(), options=LARGE)
        found = sorted(contents(recovered).values())
        assert found == sorted(bytes([number]) * 100 for number in range(round_number))
        add(wal, bytes([round_number]) * 100)
        await wal.close()


async def test_r11_a_sync_that_the_loop_has_not_heard_of_counts_when_the_next_write_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NativePump, "_collect", lambda self: None)
    pump = NativePump()
    wal, _ = await opened(tmp_path / "wal", pump=pump, options=LARGE)
    first = asyncio.create_task(wal.wait_synced(add(wal)))
    readable, _, _ = await asyncio.to_thread(select.select, [pump._told], [], [], 30)
    assert readable, "the lane has synced it"
    assert wal.synced_lsn == 0
    break_file(wal)
    with pytest.raises(WalOutcomeUnknown):
        await wal.wait_synced(add(wal))
    await first
    assert wal.synced_lsn == 1
    await wal.close()
