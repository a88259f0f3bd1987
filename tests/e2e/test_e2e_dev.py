"""The single node as a person runs it: the installed `streamhouse dev`, stopped, killed, started twice.

What is written goes through an agent with a door on the same directory; what is judged is what `streamhouse dev` itself
makes of that directory.
"""

from __future__ import annotations

import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from e2e_fleet import Agent, Stage, single_stage, stop_in_order
from e2e_processes import Process, eventually

from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import SystemRandomness
from streamhouse.log.wal import WalOptions, open_wal

NO_FLUSHES_BY_AGE = {"segment.max_age": "1h"}


async def written(stage: Stage, node: Agent, count: int) -> list[str]:
    """So many single records, acks=all and acks=1 in turn, all acknowledged, and nothing of them flushed."""
    (key,) = stage.keys
    values = [f"record {number}" for number in range(count)]
    for number, value in enumerate(values):
        assert await stage.write(node, key, value, acks=(-1, 1)[number % 2]) == number
    assert await stage.high_watermark(key) == 0
    return values


def dev(stage: Stage, name: str = "dev") -> Process:
    return stage.command(name, "dev", "--data-dir", stage.settings["data_dir"], "--kafka-listen", "127.0.0.1:0")


async def runs(process: Process) -> None:
    def ready() -> bool:
        assert process.alive(), f"{process.name} ended while it started"
        return "\nready; " in process.output()

    await eventually(f"{process.name} is ready", ready)


async def unsettled_records(stage: Stage) -> int:
    """Records in the write-ahead log that lie above the watermark of their partition: what a start would replay."""
    wal, recovered = await open_wal(
        Path(stage.settings["data_dir"]) / "wal",
        clock=SystemClock(),
        randomness=SystemRandomness(),
        options=WalOptions(file_bytes=1 << 20, max_bytes=1 << 28),
    )
    try:
        watermarks = {key: await stage.high_watermark(key) for key in stage.keys}
        return sum(
            frame.base_offset >= watermarks[PartitionKey(frame.topic_id, frame.partition)]
            for frame in recovered.frames()
        )
    finally:
        await wal.close()


async def test_r23_a_metadata_store_that_does_not_fit_the_wal_ends_the_start_and_says_what_would_be_lost(
    tmp_path: Path,
) -> None:
    """Neither store is changed, so that the right metadata store can be brought back."""
    async with single_stage(tmp_path, NO_FLUSHES_BY_AGE) as stage:
        node = stage.agent("node")
        await node.up()
        (key,) = await stage.create_topics(node, {"orders": 1})
        assert await stage.write(node, key, "a", "b", "c") == 0
        await node.kill()
        database = Path(stage.settings["data_dir"]) / "metadata.db"
        set_watermark(database, 1)
        process = dev(stage)
        process.start()
        assert await process.exited() == 4
        (error,) = [line for line in process.output().splitlines() if line.startswith("error: ")]
        assert "orders/0: the metadata store says that the log ends at offset 1" in error
        assert "3 records at offsets 0 to 2" in error
        assert "restore the metadata store" in process.output()

        set_watermark(database, 0)
        await node.up()
        assert (await node.ask("describe"))["log"]["replayed_batches"] == 1
        await stop_in_order([node])
        assert (await stage.logs())[key].values == ("a", "b", "c")


def set_watermark(database: Path, high_watermark: int) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE partitions SET high_watermark = ?", (high_watermark,))


async def test_s3_17_sigterm_brings_everything_out_and_the_next_start_replays_nothing(tmp_path: Path) -> None:
    async with single_stage(tmp_path, NO_FLUSHES_BY_AGE) as stage:
        node = stage.agent("node")
        await node.up()
        (key,) = await stage.create_topics(node, {"orders": 1})
        values = await written(stage, node, 20)
        await stop_in_order([node])
        assert await stage.high_watermark(key) == 20
        assert (await stage.logs())[key].values == tuple(values)
        assert await unsettled_records(stage) == 0
        await node.up()
        described = await node.ask("describe")
        assert described["log"]["replayed_batches"] == 0
        assert described["wal_unsettled_bytes"] == 0
        await stop_in_order([node])


async def test_dev_killed_and_started_again_replays_what_was_acknowledged(tmp_path: Path) -> None:
    async with single_stage(tmp_path, NO_FLUSHES_BY_AGE) as stage:
        node = stage.agent("node")
        await node.up()
        (key,) = await stage.create_topics(node, {"orders": 1})
        values = await written(stage, node, 20)
        await node.kill()
        assert await stage.high_watermark(key) == 0

        command = dev(stage)
        command.start()
        await runs(command)
        assert re.search(
            r"^write-ahead log recovered: 20 batches \(\w+\) in 1 file, 20 replayed$", command.output(), re.M
        )
        assert await command.stopped_by(signal.SIGTERM) == 0
        assert command.output().endswith("stopped: everything acknowledged is in the log\n")
        assert (await stage.logs())[key].values == tuple(values)

        command.start()
        await runs(command)
        assert "write-ahead log recovered: " in command.output()
        assert "replayed" not in command.output().replace("none replayed", "")
        assert await command.stopped_by(signal.SIGINT) == 0
        assert await stage.high_watermark(key) == 20
        assert await unsettled_records(stage) == 0


async def test_r2_a_second_dev_on_the_same_directory_is_refused_with_one_clear_line(tmp_path: Path) -> None:
    async with single_stage(tmp_path) as stage:
        first, second = dev(stage, "first"), dev(stage, "second")
        first.start()
        await runs(first)
        second.start()
        assert await second.exited() not in (0, -9)
        greeting, *told = second.output().splitlines()
        assert greeting == "streamhouse dev starts"
        assert len(told) == 1, told
        assert re.match(rf"error: .*{stage.settings['data_dir']}.* process {first.pid}\b", told[0])
        assert await first.stopped_by(signal.SIGTERM) == 0
        assert first.output().endswith("stopped: everything acknowledged is in the log\n")
