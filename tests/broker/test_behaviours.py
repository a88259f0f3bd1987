"""One table of behaviours, the same through every front end: the Python API, the Kafka port, and the broker itself.

The behaviours are in behaviours_of_*.py, one file for each kind of call; behaviour_table.py says what a behaviour is. A
new front end is one more adapter in front_end_adapters.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import behaviours_of_fetch
import behaviours_of_offsets
import behaviours_of_produce
import behaviours_of_topics
import behaviours_of_waiting
import pytest
from behaviour_table import Scene, Table, outcome
from front_end_adapters import FRONT_ENDS

from streamhouse.testing.plugin import RunningStreamHouse, running

PARTS = {
    part.__name__: part.TABLE
    for part in (
        behaviours_of_topics,
        behaviours_of_produce,
        behaviours_of_waiting,
        behaviours_of_fetch,
        behaviours_of_offsets,
    )
}
TABLE = Table()
for part in PARTS.values():
    for name, row in part.items():
        TABLE.put(name, row)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStreamHouse]:
    home: Path = tmp_path_factory.mktemp("behaviours")
    options = {"kafka_enabled": True, "kafka_listen": "127.0.0.1:0", "wal_file_bytes": "1MiB"}
    with running({"data_dir": str(home), **options}) as started:
        yield started


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", TABLE)
def test_every_front_end_behaves_the_same(platform: RunningStreamHouse, name: str, front_end: str) -> None:
    expected, story = TABLE[name]

    async def run() -> Any:
        on = Scene(platform.api, FRONT_ENDS[front_end](platform.api))
        async with asyncio.timeout(60):
            return await outcome(story(on))

    assert platform.run(run(), timeout_s=90) == expected


def test_the_table_has_at_least_40_behaviours_and_two_front_ends_with_clients() -> None:
    assert len(TABLE) >= 40
    assert {"python", "kafka"} <= FRONT_ENDS.keys()


def test_the_table_has_the_behaviours_of_every_file() -> None:
    assert {path.stem for path in Path(__file__).parent.glob("behaviours_of_*.py")} == PARTS.keys()
    assert all(PARTS.values()), "a file without behaviours"
