"""Sends frames to a server in another process and watches it: alive, quick for others, no larger than before."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from streamhouse.gateway.kafka.wire.headers import has_flexible_response, request_frame
from streamhouse.gateway.kafka.wire.message import Message
from streamhouse.gateway.kafka.wire.schema import read_response, write_request

HANG_S: Final = 20.0
"""A server that does not answer a good client for so long hangs."""
WITNESS_EVERY: Final = 50
SENTINEL_ID: Final = 0x5E47_1E01
SENTINEL: Final = request_frame(18, 0, SENTINEL_ID, None, b"")


class Hung(AssertionError):
    pass


@dataclass(slots=True, kw_only=True)
class Report:
    frames: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """answered: the next request on the connection was served; closed; left: we closed it."""
    rss_start_bytes: int = 0
    rss_end_bytes: int = 0


class Victim:
    """Where a server listens, and the process it is."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def connect(self, timeout_s: float) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), HANG_S)
        made.settimeout(timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def ask(victim: Victim, key: int, version: int, **fields: Any) -> Message:
    """One good request on a connection of its own."""
    with victim.connect(HANG_S) as client:
        client.sendall(request_frame(key, version, 1, "fuzz", write_request(key, version, fields)))
        response = _read_response(client)
    assert response is not None, "the connection was closed"
    return read_response(key, version, memoryview(response)[5 if has_flexible_response(key, version) else 4 :])


def fuzz(victim: Victim, frames: Iterable[bytes], *, warm_up: int, wait_s: float = HANG_S) -> Report:
    """``wait_s``: how long a frame may be without an answer before we leave, where long polls are in order."""
    report = Report()
    witness = victim.connect(HANG_S)
    attacker = victim.connect(wait_s)
    with witness:
        for frame in frames:
            report.frames += 1
            outcome = _send(attacker, frame)
            report.outcomes[outcome] += 1
            if outcome == "unanswered" and wait_s >= HANG_S:
                raise Hung(f"no answer and no end to {frame.hex()}")
            if outcome != "answered":
                attacker.close()
                attacker = victim.connect(wait_s)
            if report.frames % WITNESS_EVERY == 0:
                _ask_as_a_good_client(witness, frame)
            if report.frames == warm_up:
                report.rss_start_bytes = victim.rss_bytes()
        attacker.close()
        _ask_as_a_good_client(witness, b"")
    report.rss_end_bytes = victim.rss_bytes()
    return report


def _send(attacker: socket.socket, frame: bytes) -> str:
    """Send it with a good request behind it, and see what becomes of that."""
    try:
        attacker.sendall(frame + SENTINEL)
        if not _ends_where_it_says(frame):
            return "left"
        while True:
            response = _read_response(attacker)
            if response is None:
                return "closed"
            if response[:4] == SENTINEL_ID.to_bytes(4, "big"):
                return "answered"
    except TimeoutError:
        return "unanswered"
    except ConnectionError:
        return "closed"


def _ends_where_it_says(frame: bytes) -> bool:
    size = int.from_bytes(frame[:4], "big", signed=True)
    return size < 8 or size > 100 << 20 or size == len(frame) - 4


def _ask_as_a_good_client(witness: socket.socket, frame: bytes) -> None:
    witness.sendall(SENTINEL)
    try:
        response = _read_response(witness)
    except TimeoutError:
        raise Hung(f"a good client waited {HANG_S} s, after {frame.hex()}") from None
    if response is None or response[:4] != SENTINEL_ID.to_bytes(4, "big"):
        raise AssertionError(f"a good client lost its connection after {frame.hex()}")


def _read_response(source: socket.socket) -> bytes | None:
    """Return a response without its size; None where the connection ended."""
    size = _read_exactly(source, 4)
    return None if size is None else _read_exactly(source, int.from_bytes(size, "big"))


def _read_exactly(source: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        chunk = source.recv(count - len(data))
        if not chunk:
            return None
        data += chunk
    return data
