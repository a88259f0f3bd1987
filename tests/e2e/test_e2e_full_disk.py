"""R11: a real disk runs full under a real process, which refuses writes, serves reads, and goes on when there is room.

The disk is a tmpfs of a few MiB with the WAL, the objects and SQLite on it, as a single node has them. Where a test run
may not mount one, tests/log/wal/test_wal_no_room.py shows the same of the WAL alone.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_clients import Refused
from e2e_fleet import SMALL_FILES, Agent, Stage, single_stage, stop_in_order
from e2e_processes import eventually

from streamhouse.core.ids import PartitionKey, topic_id_text

DISK_BYTES = 24 * 1024 * 1024
RECORD_BYTES = 40_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.fail(f"this test needs a small file system of its own; mounting a tmpfs failed: {error}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)


def use_up(disk: Path) -> Path:
    """Write a file that takes all the room that is left, as another program might."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


def has_a_spare(disk: Path) -> bool:
    return any(disk.rglob("*.spare"))


def value(number: int) -> str:
    return f"record {number} ".ljust(RECORD_BYTES, "x") + "|"


async def refusal(stage: Stage, node: Agent, key: PartitionKey, number: int, *, acks: int) -> str:
    """Why this record was not taken; empty when it was, at the offset of its number."""
    try:
        offset = await stage.write(node, key, value(number), acks=acks)
    except Refused as refused:
        if refused.error != "BackPressureRejected":
            raise
        return str(refused)
    assert offset == number
    return ""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("durability", "compiled"), [("wal", True), ("wal", False), ("object", True)], ids=["wal", "wal-pure", "object"]
)
async def test_r11_a_full_disk_refuses_writes_serves_reads_and_goes_on_without_a_restart(
    small_disk: Path, durability: str, compiled: bool
) -> None:
    acks = -1 if durability == "wal" else 1  # the commit of acks=all would need the disk, too
    async with single_stage(small_disk, {**SMALL_FILES, "durability": durability}) as stage:
        node = stage.agent("node")
        await node.up(compiled=compiled)
        (key,) = await stage.create_topics(node, {"orders": 1})
        for number in range(5):
            assert await stage.write(node, key, value(number)) == number

        async def next_file_is_there() -> bool:
            return has_a_spare(small_disk)

        # Frames that have a place in a file that is being made wait for room; only later ones are refused.
        await eventually("the next file of the WAL is there", next_file_is_there)
        filler = use_up(small_disk)
        refused = 5
        while not (why := await refusal(stage, node, key, refused, acks=acks)):
            refused += 1
        assert f"no room for the next file of the write-ahead log in {small_disk}" in why
        assert "1048576 bytes (1MiB)" in why
        assert "free space on that disk" in why
        assert await refusal(stage, node, key, refused, acks=acks) == why

        described = await node.ask("describe")
        assert described["health"] == "degraded"
        assert "no room for the next file of the write-ahead log" in described["reason"]
        found = await node.ask(
            "read", topic_id=topic_id_text(key.topic_id), partition=0, offset=0, max_bytes=4 * RECORD_BYTES
        )
        assert found["records"][0] == [0, value(0)]
        if durability == "wal":
            assert found["high_watermark"] == refused, "everything acknowledged can be read"

        os.unlink(filler)

        async def takes_writes() -> bool:
            return not await refusal(stage, node, key, refused, acks=-1)

        await eventually("writes are taken again, at the offset of the first that was refused", takes_writes)

        async def is_well() -> bool:
            return bool((await node.ask("describe"))["health"] == "ok")

        await eventually("the agent's health is good again", is_well)
        await stop_in_order([node])
        assert (await stage.logs())[key].values == tuple(value(number) for number in range(refused + 1))
