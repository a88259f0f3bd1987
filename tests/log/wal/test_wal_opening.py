"""Opening a directory: whose it is, what is in it, and everything that is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wal_fake_disk import FakeDisk
from wal_harness import SMALL, a_wal, add, add_many, contents, opened

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import WalFailed, WalInUse
from streamhouse.core.limits import KIB
from streamhouse.core.randomness import SeededRandomness
from streamhouse.core.settings import resolve
from streamhouse.log.wal import TaskPump, WalOptions, open_wal


def names(directory: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in directory.glob(f"*.{suffix}"))


def sizes(directory: Path) -> set[int]:
    return {(directory / name).stat().st_size for suffix in ("wal", "spare") for name in names(directory, suffix)}


async def test_lsn_and_generation_go_on_over_restarts(tmp_path: Path) -> None:
    last_lsn = last_generation = 0
    for _ in range(4):
        async with a_wal(tmp_path) as (wal, recovered):
            lsn = add(wal)
            await wal.wait_synced(lsn)
            assert lsn > last_lsn
            generation = max(int(name[:20]) for name in names(tmp_path, "wal"))
            assert generation > last_generation
            last_lsn, last_generation = lsn, generation
            wal.settle([*contents(recovered), lsn])


async def test_an_emptied_wal_keeps_its_place_in_the_sequence(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        lsns = add_many(wal, 60)
        await wal.wait_synced(lsns[-1])
        wal.settle(lsns)
    for _ in range(3):
        async with a_wal(tmp_path) as (wal, recovered):
            wal.settle(contents(recovered))
    async with a_wal(tmp_path) as (wal, recovered):
        assert contents(recovered) == {}
        assert add(wal) > lsns[-1]


async def test_settled_files_of_an_earlier_run_are_removed_and_not_recycled(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        add_many(wal, 30)
    before = set(names(tmp_path, "wal"))
    async with a_wal(tmp_path) as (wal, recovered):
        wal.settle(contents(recovered))
        assert wal.metrics.files_removed == len(before)
    assert not before & set(names(tmp_path, "wal"))


async def test_r2_two_opens_of_one_directory_are_refused(tmp_path: Path) -> None:
    async with a_wal(tmp_path):
        with pytest.raises(WalInUse, match=rf"in use by process {os.getpid()}.*--data-dir"):
            await opened(tmp_path)
    async with a_wal(tmp_path):
        pass


async def test_leftovers_of_an_unfinished_file_are_swept_up(tmp_path: Path) -> None:
    async with a_wal(tmp_path):
        pass
    (tmp_path / "00000000000000000009.spare.new").write_bytes(bytes(77))
    (tmp_path / "00000000000000000009.wal.new").write_bytes(bytes(77))
    (tmp_path / "00000000000000000033.spare").write_bytes(bytes(77))
    async with a_wal(tmp_path) as (wal, _):
        await wal.wait_synced(add_many(wal, 60)[-1])
    assert names(tmp_path, "new") == []
    assert sizes(tmp_path) == {SMALL.file_bytes}


async def test_another_file_size_is_taken_up_at_the_next_start(tmp_path: Path) -> None:
    async with a_wal(tmp_path) as (wal, _):
        lsns = add_many(wal, 30)
    larger = WalOptions(file_bytes=64 * KIB, max_bytes=256 * KIB)
    async with a_wal(tmp_path, options=larger) as (wal, recovered):
        assert list(contents(recovered)) == lsns
        wal.settle(lsns)
    assert sizes(tmp_path) == {64 * KIB}


async def test_the_settings_are_its_options(tmp_path: Path) -> None:
    found = resolve(flags={"wal.file_bytes": "2MiB", "wal.max_bytes": "1GiB", "wal.max_batch_age": "3ms"}).require()
    options = WalOptions.of(found.settings.wal)
    assert (options.file_bytes, options.max_bytes, options.max_batch_age_ms) == (2 << 20, 1 << 30, 3)
    wal, _ = await open_wal(tmp_path / "w", clock=ManualClock(), randomness=SeededRandomness(1), options=options)
    await wal.close()


async def test_a_directory_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WalFailed, match=r"write-ahead log in .*file/wal cannot be opened"):
        await opened(tmp_path / "file" / "wal")


async def test_a_failed_open_frees_the_directory() -> None:
    disk = FakeDisk()
    disk.fail("sync_directory")
    with pytest.raises(WalFailed, match="cannot be opened"):
        await opened(disk, pump=TaskPump())
    assert not disk.locked
