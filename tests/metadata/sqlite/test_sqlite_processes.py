"""Several processes on one file, and processes that die."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import sqlite_worker
from builders import assert_dense

from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import ChangeKind, NewTopic, ScanRange, Topic, Verdict, WriteMode
from streamhouse.metadata.sqlite.store import SqliteMetadata

WORKER = Path(sqlite_worker.__file__)


def start(command: str, path: Path, *numbers: int) -> subprocess.Popen[str]:
    arguments = [sys.executable, str(WORKER), command, str(path), *map(str, numbers)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def new_store(path: Path | str, seed: int = 99) -> SqliteMetadata:
    return SqliteMetadata(path, clock=SystemClock(), randomness=SeededRandomness(seed))


async def create_orders(store: SqliteMetadata, partitions: int = 3) -> Topic:
    return await store.create_topic(
        NewTopic(
            topic_id=TopicId(SeededRandomness(7).uuid()),
            name="orders",
            partition_count=partitions,
            configs={},
            write_mode=WriteMode.LEADERLESS,
        )
    )


async def test_two_processes_commit_to_one_file(tmp_path: Path) -> None:
    """Every offset is given once, none is left out, nothing is lost, whichever process it came from."""
    path = tmp_path / "metadata.db"
    async with new_store(path) as store:
        topic = await create_orders(store)
        workers = [start("append", path, seed, 40) for seed in (1, 2)]
        ours = [await sqlite_worker.append(store, topic.partition_keys(), 3, turn) for turn in range(40)]
        lines = [line for worker in workers for line in await asyncio.to_thread(finish, worker)]
        given = [(partition, base, end) for _, partition, base, end in lines] + [
            (outcome.key.partition, outcome.base_offset, outcome.end_offset) for turn in ours for outcome in turn
        ]
        pages = await store.scan_entries(
            [ScanRange(key=key, from_offset=0) for key in topic.partition_keys()], limit=1000
        )
        for page in pages:
            assert page.partition.high_watermark == 3 * 40 * 2
            assert_dense(page.entries, log_start=0, watermark=page.partition.high_watermark)
        stored = [(page.partition.key.partition, e.base_offset, e.end_offset) for page in pages for e in page.entries]
        assert sorted(given) == sorted(stored)


async def test_r5_a_process_killed_inside_a_commit_leaves_one_outcome(tmp_path: Path) -> None:
    """kill -9 before each statement in turn: all of the commit is there or nothing, and sending it again settles it."""
    path = tmp_path / "metadata.db"
    async with new_store(path) as store:
        keys = (await create_orders(store)).partition_keys()
    deaths = await asyncio.to_thread(finish, start("die", path, 1))
    assert [died_of for _, died_of in deaths] == [signal.SIGKILL] * (len(deaths) - 1) + [0]
    assert len(deaths) > 10, "a commit of three partitions and a producer takes more statements than that"
    for copy, died_of in deaths:
        async with new_store(copy) as store:
            states = await store.get_partitions(keys)
            assert {state.high_watermark for state in states} == {0 if died_of else 2}
            outcomes = await sqlite_worker.append(store, keys, 1, 0)
            again = await sqlite_worker.append(store, keys, 1, 0)
            assert [outcome.repeated for outcome in outcomes] == [not died_of] * 3
            assert [(one.verdict, one.base_offset, one.end_offset, one.repeated) for one in again] == [
                (Verdict.COMMITTED, 0, 1, True)
            ] * 3


async def test_r5_a_process_killed_at_any_moment_loses_no_answered_commit(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with new_store(path) as store:
        keys = (await create_orders(store)).partition_keys()
        for seed in range(1, 4):
            worker = start("append", path, seed, 100_000)
            assert worker.stdout is not None
            answered = [await asyncio.to_thread(worker.stdout.readline) for _ in range(30 * seed)]
            worker.kill()
            out, _ = worker.communicate(timeout=60)
            whole = [line for line in [*answered, *out.splitlines(keepends=True)] if line.endswith("\n")]
            turns = {turn for turn, *_ in map(json.loads, whole)}
            outcomes = [
                outcome for turn in sorted(turns) for outcome in await sqlite_worker.append(store, keys, seed, turn)
            ]
            offsets = {(turn, o.key.partition): o.base_offset for turn, o in zip(_thrice(turns), outcomes, strict=True)}
            assert all(outcome.repeated for outcome in outcomes)
            assert all(offsets[turn, partition] == base for turn, partition, base, _ in map(json.loads, whole))
        for page in await store.scan_entries([ScanRange(key=key, from_offset=0) for key in keys], limit=10_000):
            assert_dense(page.entries, log_start=0, watermark=page.partition.high_watermark)


def _thrice(turns: set[int]) -> list[int]:
    return [turn for turn in sorted(turns) for _ in range(3)]


async def test_processes_that_start_together_share_one_new_file(tmp_path: Path) -> None:
    workers = [start("open", tmp_path / "metadata.db", seed) for seed in range(1, 7)]
    answers = [await asyncio.to_thread(finish, worker) for worker in workers]
    assert len({str(answer) for answer in answers}) == 1
    async with new_store(tmp_path / "metadata.db") as store:
        assert [(await store.cluster_info()).cluster_id.hex] == answers[0]


async def test_another_process_s_commit_wakes_a_subscriber(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with new_store(path) as store:
        await create_orders(store)
        async with store.subscribe() as changes:
            worker = start("append", path, 1, 1)
            async with asyncio.timeout(60):
                change = await anext(changes)
            assert change.kind is ChangeKind.ANY
            await asyncio.to_thread(finish, worker)
