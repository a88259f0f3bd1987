"""What people are told of the write-ahead log at a start: what was found, and nothing that is not known."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from uuid import UUID

import pytest

from streamhouse import StreamHouse
from streamhouse.app.log_parts import recovery_line
from streamhouse.log.wal.recovery import Recovered

MESSAGES = (Path(__file__).parents[2] / "docs" / "wal.md").read_text().partition("\n## Messages\n")[2]


def found(*, frames: int = 0, size: int = 0, files: int = 1, torn: int = 0, discarded: int = 0) -> Recovered:
    return Recovered(
        wal_id=UUID(int=1),
        frame_count=frames,
        batch_bytes=size,
        file_count=files,
        torn_bytes=torn,
        discarded_file_count=discarded,
        _files={},
    )


@pytest.mark.parametrize(
    ("recovered", "replayed", "line"),
    [
        (found(files=0), 0, "a new write-ahead log"),
        (found(), 0, "write-ahead log recovered: no batches in 1 file"),
        (found(frames=1, size=9), 1, "write-ahead log recovered: 1 batch (9B) in 1 file, 1 replayed"),
        (found(frames=2, size=99, files=2), 0, "write-ahead log recovered: 2 batches (99B) in 2 files, none replayed"),
        (found(frames=2, size=99, torn=404), None, "…2 batches (99B) in 1 file, a torn end of 404B cut off"),
        (
            found(torn=404, discarded=1),
            0,
            "…no batches in 1 file, a torn end of 404B cut off, 1 file behind it discarded",
        ),
        (found(torn=4, discarded=2), 0, "…no batches in 1 file, a torn end of 4B cut off, 2 files behind it discarded"),
    ],
)
def test_the_line(recovered: Recovered, replayed: int | None, line: str) -> None:
    assert recovery_line(recovered, replayed=replayed) == line.replace("…", "write-ahead log recovered: ")


@pytest.mark.parametrize(
    "line",
    [
        recovery_line(found(files=0), replayed=0),
        recovery_line(found(frames=120, size=1 << 20, files=2), replayed=20),
        recovery_line(found(frames=120, size=1 << 20, files=2), replayed=None),
        "… a torn end of 404B cut off",
        "… 2 files behind it discarded",
    ],
)
def test_the_page_on_the_wal_explains_it_in_the_same_words(line: str) -> None:
    told = recovery_line(found(torn=404, discarded=2), replayed=0)
    assert f"\n| `{line}` |" in MESSAGES
    assert not line.startswith("… ") or line.removeprefix("… ") in told


WRITE_AND_DIE = textwrap.dedent("""
    import asyncio, os, sys
    from streamhouse import StreamHouse

    async def main():
        async with StreamHouse.open(data_dir=sys.argv[1], flush_interval="1m", segment_max_age="1m") as sh:
            await sh.create_topic("orders", 1)
            await sh.produce("orders", b"hello")
            os._exit(9)

    asyncio.run(main())
    """)


async def test_a_single_node_tells_what_it_found_and_what_came_back(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", WRITE_AND_DIE, data], check=False, timeout=60)
    assert died.returncode == 9
    async with StreamHouse.open(data_dir=data) as sh:
        assert re.fullmatch(
            r"write-ahead log recovered: 1 batch \(\d+B\) in 1 file, 1 replayed(, a torn end of \w+ cut off)?",
            sh.agent.recovery(),
        )


async def test_an_agent_of_a_fleet_does_not_say_that_nothing_was_replayed(tmp_path: Path) -> None:
    fleet = {"data_dir": str(tmp_path / "data"), "durability": "object"}
    async with StreamHouse.open(**fleet) as sh:
        assert sh.agent.recovery() == "a new write-ahead log"
    async with StreamHouse.open(**fleet) as sh:
        assert sh.agent.recovery() == "write-ahead log recovered: no batches in 1 file"
