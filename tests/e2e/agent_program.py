"""An agent process with a door: what `streamhouse agent` and `dev` run, and a loopback port that takes JSON lines.

    python agent_program.py PORT            settings from STREAMHOUSE_* variables, as the command line reads them

    → {"id": 1, "op": "produce", "topic_id": "…", "partition": 0, "acks": -1, "batch": "base64"}
    ← {"id": 1, "offset": 17, "epoch": 3}          or          {"id": 1, "error": "NotLeader", "message": "…"}

Requests of one connection are begun in the order they come, so appends keep it; answers come when they are ready. The
operations are the methods of ``Door`` named ``op_…``. The door stays open while the agent stops.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from e2e_traps import TRAP_VARIABLE, Traps

from streamhouse.app.platform import StreamHouse
from streamhouse.app.process import run_until_stopped
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey, parse_topic_id, topic_id_text
from streamhouse.core.settings import load_settings
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.records import decode_records

MAX_LINE_BYTES: Final = 4 * 1024 * 1024

Answer = dict[str, Any]


class Door:
    def __init__(self, sh: StreamHouse, traps: Traps) -> None:
        self._sh = sh
        self._traps = traps
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._client, "127.0.0.1", port, limit=MAX_LINE_BYTES)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                while line := await reader.readline():
                    request = json.loads(line)
                    task = asyncio.create_task(_answer(writer, request.pop("id"), self._begin(request)))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        except Exception:
            say(f"the door broke: {traceback.format_exc()}")
        finally:
            writer.close()

    def _begin(self, request: dict[str, Any]) -> Awaitable[Answer]:
        """Runs up to the operation's first wait before the next request is looked at."""
        operation: Callable[..., Awaitable[Answer]] = getattr(self, f"op_{request.pop('op')}")
        return operation(**request)

    def op_produce(self, topic_id: str, partition: int, acks: int, batch: str) -> Awaitable[Answer]:
        key = PartitionKey(parse_topic_id(topic_id), partition)
        log = self._sh.agent.log
        try:
            append = log.append(key, base64.b64decode(batch), acks=acks)
        except StreamHouseError as error:
            return _raises(error)
        led = log.partition(key)
        assert led is not None
        return _acknowledged(append.done, {"offset": append.base_offset, "epoch": led.epoch})

    async def op_read(self, topic_id: str, partition: int, offset: int, max_bytes: int) -> Answer:
        key = PartitionKey(parse_topic_id(topic_id), partition)
        found = await self._sh.agent.reader.read(key, offset, max_bytes=max_bytes)
        records = [
            [record.offset, (record.value or b"").decode()]
            for batch in found.batches
            for position, _ in iter_batches(batch)
            for record in decode_records(batch, position)
            if record.offset >= offset
        ]
        return {"records": records, "high_watermark": found.high_watermark}

    async def op_create(self, topic: str, partitions: int) -> Answer:
        created = await self._sh.create_topic(topic, partitions, configs={"retention.ms": "-1"})
        return {"topic_id": topic_id_text(created.topic_id)}

    async def op_flush(self) -> Answer:
        await self._sh.flush()
        return {}

    async def op_describe(self) -> Answer:
        agent = self._sh.agent
        view = agent.member.describe()
        partitions = [lease for lease in view.leases if isinstance(lease.key, PartitionKey)]
        return {
            "agent_id": view.agent_id,
            "health": view.health.state.value,
            "reason": view.health.reason,
            "leases": [
                {
                    "topic": lease.topic,
                    "topic_id": topic_id_text(lease.key.topic_id),
                    "partition": lease.key.partition,
                    "epoch": lease.epoch,
                    "stage": lease.stage,
                    "valid": lease.valid,
                }
                for lease in partitions
                if isinstance(lease.key, PartitionKey)
            ],
            "slots": len(view.leases) - len(partitions),
            "member": asdict(view.stats),
            "log": asdict(agent.log.stats),
            "recovered": agent.recovery(),
            "wal_unsettled_bytes": agent.wal.unsettled_bytes,
        }

    async def op_trap(self, point: str, count: int, signal: str) -> Answer:
        self._traps.arm(point, count=count, signal_name=signal)
        return {}

    async def op_slow_disk(self, ms: int) -> Answer:
        self._traps.slow_disk_s = ms / 1000
        return {}

    async def op_stop(self) -> Answer:
        os.kill(os.getpid(), signal.SIGTERM)
        return {}


async def _answer(writer: asyncio.StreamWriter, request_id: int, work: Awaitable[Answer]) -> None:
    try:
        answer = await work
    except Exception as error:
        if not isinstance(error, StreamHouseError):
            say(f"a defect: {traceback.format_exc()}")
        answer = {"error": type(error).__name__, "message": str(error)}
    with suppress(ConnectionError):
        writer.write(json.dumps({"id": request_id, **answer}).encode() + b"\n")
        await writer.drain()


async def _raises(error: StreamHouseError) -> Answer:
    raise error


async def _acknowledged(done: asyncio.Future[None], answer: Answer) -> Answer:
    await done
    return answer


def say(line: str) -> None:
    """Print the line at once: the next thing may be a kill."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main(port: int) -> int:
    traps = Traps()
    traps.install()
    if TRAP_VARIABLE in os.environ:
        point, count, signal_name = os.environ[TRAP_VARIABLE].split(":")
        traps.arm(point, count=int(count), signal_name=signal_name)
    doors: list[asyncio.Server] = []

    async def ready(sh: StreamHouse) -> None:
        say(sh.agent.recovery())
        doors.append(await Door(sh, traps).open(port))
        say(f"door open on port {port}")

    try:
        failure = asyncio.run(run_until_stopped(load_settings().settings, ready=ready)).failure
    except StreamHouseError as error:
        failure = error
    if failure is not None:
        say(f"error: {type(failure).__name__}: {failure}")
        return 1
    say("stopped in order")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
