"""A loader without a client library, for a server's own ceiling: prepared requests through one plain socket.

    produce     batches of --batch-kb to the partitions in turn, --window requests under way     {"bytes", "wall_s"}
    idle        --connections that have said hello and stay; prints when all are there, ends with its input
    slow        asks for records again and again and never reads an answer; the same

Apache Kafka and StreamHouse get the same bytes: the requests are written from the table of protocol messages.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import socket
import struct
import sys
import time
from contextlib import ExitStack

from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.schema import read_response, write_request
from streamhouse.wire.records import Record, build_batch

PRODUCE, PRODUCE_VERSION = 0, 9
FETCH, FETCH_VERSION = 1, 11
API_VERSIONS, API_VERSIONS_VERSION = 18, 0


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=60)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def read_answer(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", read_exactly(connection, 4))
    return read_exactly(connection, size)


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            sys.exit("the server hung up")
        data += piece
    return bytes(data)


def batch_of(kilobytes: int) -> bytes:
    source = random.Random(3)
    text = b"lorem ipsum dolor sit amet " * 19
    values = [(source.randbytes(500) + text)[:1000] for _ in range(kilobytes)]
    now_ms = int(time.time() * 1000)
    return build_batch([Record(value=value, timestamp_ms=now_ms) for value in values])


NOT_ENOUGH_REPLICAS = 19
REFUSED_PAUSE_S = 0.1


def produce_frame(topic: str, partition: int, batch: bytes, acks: int) -> bytes:
    body = write_request(
        PRODUCE,
        PRODUCE_VERSION,
        {
            "transactional_id": None,
            "acks": acks,
            "timeout": 30_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        },
    )
    return request_frame(PRODUCE, PRODUCE_VERSION, correlation_id=1, client_id="raw", body=body)


def produce(arguments: argparse.Namespace) -> None:
    batch = batch_of(arguments.batch_kb)
    frames = [produce_frame(arguments.topic, partition, batch, arguments.acks) for partition in range(4)]
    with connect(arguments.bootstrap) as connection:
        for frame in frames:
            connection.sendall(frame)
            while not was_taken(read_answer(connection)):
                connection.sendall(frame)
        began = time.perf_counter()
        under_way = sent = taken = 0
        while time.perf_counter() - began < arguments.seconds:
            connection.sendall(frames[sent % len(frames)])
            sent += 1
            under_way += 1
            if under_way == arguments.window:
                taken += was_taken(read_answer(connection))
                under_way -= 1
        for _ in range(under_way):
            taken += was_taken(read_answer(connection))
        wall = time.perf_counter() - began
    print(json.dumps({"bytes": taken * len(batch), "requests": sent, "refused": sent - taken, "wall_s": wall}))


def was_taken(answer: bytes) -> bool:
    """False when the server has no room just now, which every client answers by sending again a little later."""
    response = read_response(PRODUCE, PRODUCE_VERSION, memoryview(answer)[5:])
    code = response.responses[0].partition_responses[0].error_code
    if code not in (0, NOT_ENOUGH_REPLICAS):
        sys.exit(f"the server answers a produce with error {code}")
    if code:
        time.sleep(REFUSED_PAUSE_S)
    return not code


def idle(arguments: argparse.Namespace) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, arguments.connections + 100)), hard))
    hello = request_frame(API_VERSIONS, API_VERSIONS_VERSION, correlation_id=1, client_id="idle", body=b"")
    with ExitStack() as stack:
        for _ in range(arguments.connections):
            connection = stack.enter_context(connect(arguments.bootstrap))
            connection.sendall(hello)
            read_answer(connection)
        print("there", flush=True)
        sys.stdin.read()


def slow(arguments: argparse.Namespace) -> None:
    partitions = [
        {"partition": number, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        for number in range(4)
    ]
    body = write_request(
        FETCH,
        FETCH_VERSION,
        {
            "replica_id": -1,
            "max_wait": 500,
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "session_epoch": -1,
            "topics": [{"topic": arguments.topic, "partitions": partitions}],
        },
    )
    frame = request_frame(FETCH, FETCH_VERSION, correlation_id=1, client_id="slow", body=body)
    with connect(arguments.bootstrap) as connection:
        connection.sendall(frame * 100)
        print("there", flush=True)
        sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["produce", "idle", "slow"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--batch-kb", type=int, default=256)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--acks", type=int, default=-1)
    parser.add_argument("--connections", type=int, default=1000)
    arguments = parser.parse_args()
    {"produce": produce, "idle": idle, "slow": slow}[arguments.work](arguments)


if __name__ == "__main__":
    main()
