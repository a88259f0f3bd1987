"""The Kafka server without a broker behind it: what a request costs before any handler has done anything.

The client is a blocking socket in another process, so that the figures are the server's own CPU time.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Callable

from report import heading, measure, row
from streamhouse.gateway.kafka.api import Api, Buffers, Call, apis
from streamhouse.gateway.kafka.handlers import api_18_api_versions as _registers_it  # noqa: F401
from streamhouse.gateway.kafka.server import KafkaServer, Listener
from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.schema import read_request, write_request, write_response

FETCH, PRODUCE = 1, 0
ROUNDS = 5
MB = 1_000_000


def swallow(call: Call, body: memoryview) -> Buffers:
    return (b"\0\0",)


def served() -> dict[int, Api]:
    blob = memoryview(bytes(MB))

    def give(call: Call, body: memoryview) -> Buffers:
        return (b"\0\0", blob)

    return {
        18: apis()[18],
        PRODUCE: Api(key=PRODUCE, min_version=0, max_version=3, advertised_min_version=0, hot=swallow, pipelined=True),
        FETCH: Api(key=FETCH, min_version=0, max_version=3, advertised_min_version=0, hot=give),
    }


async def cpu_of(load: Callable[[int], None]) -> float:
    """CPU seconds the server takes while ``load`` runs against it in another process."""
    listener = Listener(name="bench", host="127.0.0.1", port=0, advertised_host="127.0.0.1", advertised_port=0)
    server = KafkaServer(broker=None, listeners=[listener], served=served())  # type: ignore[arg-type]
    await server.bind()
    await server.open()
    client = multiprocessing.get_context("spawn").Process(target=load, args=(server.listeners[0].port,))
    client.start()
    while server.stats.requests == 0:  # noqa: ASYNC110 - the client's start-up is not part of the figure
        await asyncio.sleep(0.001)
    before = time.process_time()
    while client.is_alive():  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    spent = time.process_time() - before
    await server.close()
    return spent


def ping_pong(port: int, count: int = 20_000) -> None:
    frame = request_frame(18, 0, 1, "bench", b"")
    with socket.create_connection(("127.0.0.1", port)) as peer:
        for _ in range(count):
            peer.sendall(frame)
            peer.recv(65536)


def pipelined(port: int, count: int = 100_000, window: int = 50) -> None:
    frames = request_frame(18, 0, 1, "bench", b"") * window
    with socket.create_connection(("127.0.0.1", port)) as peer:
        size: int | None = None
        for _ in range(count // window):
            peer.sendall(frames)
            head = peer.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL)
            size = size or int.from_bytes(head, "big") + 4
            _drain(peer, size * window)


def large_in(port: int, body_bytes: int, count: int) -> None:
    frame = request_frame(PRODUCE, 0, 1, "bench", bytes(body_bytes))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        for _ in range(count):
            peer.sendall(frame)
            _drain(peer, 10)


def large_out(port: int, count: int = 500) -> None:
    frame = request_frame(FETCH, 0, 1, "bench", b"")
    with socket.create_connection(("127.0.0.1", port)) as peer:
        for _ in range(count):
            peer.sendall(frame)
            _drain(peer, MB + 10)


def large_in_256k(port: int) -> None:
    large_in(port, 256_000, 2000)


def large_in_1m(port: int) -> None:
    large_in(port, MB, 500)


def large_in_10m(port: int) -> None:
    large_in(port, 10 * MB, 50)


_SINK = bytearray(1 << 20)


def _drain(peer: socket.socket, count: int) -> None:
    while count:
        count -= peer.recv_into(_SINK, min(count, len(_SINK)))


def median_cpu(load: Callable[[int], None]) -> float:
    return sorted(asyncio.run(cpu_of(load)) for _ in range(ROUNDS))[ROUNDS // 2]


def bench_schema() -> None:
    topics = [{"name": f"topic-{index}", "partition_indexes": list(range(10))} for index in range(10)]
    body = memoryview(write_request(9, 7, {"group_id": "g", "topics": topics}))
    one = {"error_code": 0, "member_id": "m", "generation_id": 1}
    read_us = measure(lambda: [read_request(9, 7, body) for _ in range(1000)]).cpu_s * 1000
    write_us = measure(lambda: [write_response(11, 9, one) for _ in range(1000)]).cpu_s * 1000
    row("read an OffsetFetch of 10 topics × 10 partitions", f"{read_us:.1f} µs")
    row("write a JoinGroup answer", f"{write_us:.1f} µs")


def main() -> None:
    heading("kafka wire: the server alone")
    row("small request, ping-pong", f"{median_cpu(ping_pong) / 20_000 * 1e6:.1f} µs", target="≤ 25–35 µs")
    row("small request, 50 in one read", f"{median_cpu(pipelined) / 100_000 * 1e6:.1f} µs")
    for name, load, total_mb in (
        ("256 KB", large_in_256k, 512),
        ("1 MB", large_in_1m, 500),
        ("10 MB", large_in_10m, 500),
    ):
        row(f"requests of {name}", f"{median_cpu(load) / total_mb * 1e3:.2f} ms/MB", target="≤ 0.5 ms/MB")
    row("answers of 1 MB", f"{median_cpu(large_out) / 500 * 1e3:.2f} ms/MB")
    bench_schema()


if __name__ == "__main__":
    main()
