"""The pump of a real process: two threads, what each waits for, and how both end."""

from __future__ import annotations

import threading
from pathlib import Path

from wal_fake_disk import FakeDisk
from wal_harness import Gate, a_wal, add, add_many


async def test_no_thread_outlives_its_wal(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with a_wal(tmp_path) as (wal, _):
        await wal.wait_synced(add(wal))
        assert {thread.name for thread in set(threading.enumerate()) - before} >= {"wal-writer", "wal-tidier"}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("wal-")]


async def test_appending_never_blocks_on_a_disk_that_hangs() -> None:
    disk, gate = FakeDisk(), Gate()
    async with a_wal(disk) as (wal, _):
        for operation in ("fdatasync", "create", "rename"):
            disk.before[operation] = gate.block
        lsns = add_many(wal, 100)
        wal.settle(lsns[:50])
        assert (wal.synced_lsn, len(lsns), wal.health.ok) == (0, 100, True)
        gate.opened.set()
        await wal.wait_synced(lsns[-1])
