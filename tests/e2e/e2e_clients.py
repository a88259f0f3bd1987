"""Clients as Kafka's are: they find a leader in the metadata, send to it, and ask again when it is not one any more.

Every write is a ``Write`` in a ``Ledger``, with what became of it; e2e_judge.py compares that with the log.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from agent_program import MAX_LINE_BYTES

from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import MetadataStore

ANSWER_TIMEOUT_S: Final = 60.0
"""Longer than any lease here: a client that waits gets its answer or loses its connection."""

PADDING: Final = "."
"""Makes records larger on their way; no value ends with it, and none is compared with it."""


class Unreachable(Exception):
    """Nothing was sent."""


class Unanswered(Exception):
    """It was sent, and the connection ended: what became of it is not known."""


class Refused(Exception):
    """An answer, and it was an error of StreamHouse's tree."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error


FAILURES: Final = (Unreachable, Unanswered, Refused)


class Connection:
    """A connection to one agent's door. Requests are sent in the order of the calls."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._listener = asyncio.create_task(self._listen())
        self.broken = False

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        try:
            return cls(*await asyncio.open_connection(host, int(port), limit=MAX_LINE_BYTES))
        except OSError as error:
            raise Unreachable(f"{address}: {error}") from error

    def send(self, op: str, **fields: Any) -> asyncio.Future[dict[str, Any]]:
        """Its answer is for ``answer``. Raises Unreachable."""
        if self.broken:
            raise Unreachable("the connection is gone")
        self._next_id += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting[self._next_id] = future
        self._writer.write(json.dumps({"id": self._next_id, "op": op, **fields}).encode() + b"\n")
        return future

    async def ask(self, op: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        return await answer(self.send(op, **fields), timeout_s=timeout_s)

    async def close(self) -> None:
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _listen(self) -> None:
        try:
            with suppress(OSError):
                while line := await self._reader.readline():
                    reply = json.loads(line)
                    future = self._waiting.pop(reply.pop("id"))
                    if future.done():
                        continue
                    if "error" in reply:
                        future.set_exception(Refused(reply["error"], reply["message"]))
                    else:
                        future.set_result(reply)
        finally:
            self.broken = True
            self._writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(Unanswered("the connection ended"))


async def answer(future: asyncio.Future[dict[str, Any]], *, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
    try:
        async with asyncio.timeout(timeout_s):
            return await future
    except TimeoutError:
        raise Unanswered(f"no answer in {timeout_s:.0f} s") from None


class Router:
    """Leaders as the metadata names them; connections kept per client."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._connections: dict[str, Connection] = {}

    async def leader(self, key: PartitionKey) -> tuple[str, Connection]:
        """The agent that holds the lease and a connection to it. Raises Unreachable."""
        try:
            (lease,) = await self._metadata.list_leases(keys=[key]) or (None,)
            addresses = {agent.agent_id: agent.listeners["kafka"] for agent in await self._metadata.list_agents()}
        except StreamHouseError as error:
            raise Unreachable(str(error)) from error
        if lease is None or lease.expired or lease.agent_id not in addresses:
            raise Unreachable(f"no agent leads {key}")
        return lease.agent_id, await self._connected(addresses[lease.agent_id])

    async def _connected(self, address: str) -> Connection:
        found = self._connections.get(address)
        if found is None or found.broken:
            if found is not None:
                await found.close()
            found = self._connections[address] = await Connection.open(address)
        return found

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


@dataclass(slots=True, kw_only=True, eq=False)
class Write:
    """One batch, from its first sending on."""

    producer: str
    key: PartitionKey
    values: tuple[str, ...]
    acks: int
    sequence: int | None
    """None without idempotence; such a write is sent once."""
    attempts: int = 0
    offset: int | None = None
    """Set when it is acknowledged."""
    acked_s: float = 0.0
    agent: str = ""
    epoch: int = 0
    error: str = ""

    @property
    def idempotent(self) -> bool:
        return self.sequence is not None

    def acknowledged(self, reply: dict[str, Any], agent: str) -> None:
        self.offset, self.epoch, self.agent = reply["offset"], reply["epoch"], agent
        self.acked_s = asyncio.get_running_loop().time()


@dataclass(slots=True)
class Ledger:
    """Everything that clients wrote, were told and saw."""

    writes: list[Write] = field(default_factory=list)
    seen: dict[tuple[PartitionKey, int], str] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    """A reader saw something else at an offset than before, or a producer was told what cannot be."""

    def acknowledged(self) -> list[Write]:
        return [write for write in self.writes if write.offset is not None]

    def saw(self, key: PartitionKey, offset: int, value: str) -> None:
        before = self.seen.setdefault((key, offset), value)
        if before != value:
            self.contradictions.append(f"{key}: offset {offset} read {before!r} and then {value!r}")

    def longest_gaps_s(self, *, since_s: float) -> dict[PartitionKey, float]:
        """Return, for each partition, the longest time without any acknowledgement from ``since_s`` on."""
        times: defaultdict[PartitionKey, list[float]] = defaultdict(lambda: [since_s])
        for write in sorted(self.acknowledged(), key=lambda write: write.acked_s):
            if write.acked_s >= since_s:
                times[write.key].append(write.acked_s)
        return {key: max(b - a for a, b in pairwise(at)) for key, at in times.items() if len(at) > 1}
