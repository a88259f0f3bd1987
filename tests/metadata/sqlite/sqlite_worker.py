"""Run as a process of its own by the tests beside it: another user of the same metadata file.

    append PATH SEED COUNT   COUNT leaderless commits to every partition of "orders"
    die PATH SEED            one commit on each of PATH-1, PATH-2, … by a process that is killed before its n-th
                             statement runs, until one survives
    open PATH SEED           open, tell the cluster id, close

Tells one JSON document per line. Identical arguments send identical commits.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence

from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import KAFKA_BATCHES, BatchRun, LeaderlessSlice, ObjectRef, SliceOutcome
from streamhouse.metadata.sqlite.store import SqliteMetadata

OBJECT_STAMP_MS = 4_000_000_000_000


async def append(store: SqliteMetadata, keys: Sequence[PartitionKey], seed: int, turn: int) -> list[SliceOutcome]:
    """The commit number ``turn`` of the process ``seed``: it is the same commit from every sender."""
    ids = SeededRandomness(seed * 1_000_000 + turn)
    blob = ObjectRef(key=f"blob-{seed}-{turn}", size_bytes=1000, created_at_ms=OBJECT_STAMP_MS)
    batch = BatchRun(
        record_count=2,
        byte_length=100,
        min_timestamp_ms=turn,
        max_timestamp_ms=turn,
        producer_id=seed,
        producer_epoch=0,
        base_sequence=2 * turn,
    )
    slices = [
        LeaderlessSlice(key=key, byte_offset=0, byte_length=100, encoding=KAFKA_BATCHES, batches=(batch,))
        for key in keys
    ]
    return await store.commit_leaderless(AppendId(ids.uuid()), blob, slices)


def tell(document: object) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def die_at_every_statement(path: str, seed: int) -> None:
    """Forks, because a fresh interpreter for each death would take most of the time."""
    for statement in itertools.count(1):
        copy = f"{path}-{statement}"
        shutil.copyfile(path, copy)
        child = os.fork()
        if child == 0:
            asyncio.run(main("commit", copy, seed, statement))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        tell([copy, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0])
        if os.WIFEXITED(status):
            return


def die_before(store: SqliteMetadata, statement: int) -> None:
    """kill -9 at an exact point inside the transaction."""
    seen = 0

    def count(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    connection = store._engine._connection
    assert connection is not None
    connection.set_trace_callback(count)


async def main(command: str, path: str, seed: int, number: int) -> None:
    store = SqliteMetadata(path, clock=SystemClock(), randomness=SeededRandomness(seed))
    async with store:
        if command == "open":
            tell((await store.cluster_info()).cluster_id.hex)
            return
        keys = (await store.get_topic("orders")).partition_keys()
        if command == "commit":
            die_before(store, number)
            await append(store, keys, seed, 0)
            return
        for turn in range(number):
            for outcome in await append(store, keys, seed, turn):
                tell([turn, outcome.key.partition, outcome.base_offset, outcome.end_offset])


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == "die":
        die_at_every_statement(arguments[1], int(arguments[2]))
    else:
        asyncio.run(main(arguments[0], arguments[1], int(arguments[2]), int(arguments[3]) if arguments[3:] else 0))
