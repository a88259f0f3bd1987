"""A thousand producers in one process: each has its own connection and sends one record at a time, at random moments.

Raw requests and one selector, because a thousand client libraries would take more CPU than the server under test.
Prints one JSON line with the latencies from each record's planned moment until its answer.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import selectors
import socket
import struct
import time

from confluent_kafka.admin import AdminClient

from streamhouse.gateway.kafka.wire.headers import request_frame
from streamhouse.gateway.kafka.wire.schema import write_request
from streamhouse.wire.records import Record, build_batch

PRODUCE, VERSION = 0, 9
WINDOW = 5


class Producer:
    def __init__(self, sock: socket.socket, frame: bytes) -> None:
        self.sock = sock
        self.frame = frame
        self.planned: list[float] = []
        self.under_way = 0
        self.read = b""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--producers", type=int, default=1000)
    arguments = parser.parse_args()
    host, port = arguments.bootstrap.rsplit(":", 1)
    partitions = len(
        AdminClient({"bootstrap.servers": arguments.bootstrap})
        .list_topics(timeout=10)
        .topics[arguments.topic]
        .partitions
    )
    selector = selectors.DefaultSelector()
    producers = [
        connect(host, int(port), frame_for(arguments.topic, number % partitions), selector)
        for number in range(arguments.producers)
    ]
    print(json.dumps(run(producers, selector, arguments.rate, arguments.seconds)))


def frame_for(topic: str, partition: int) -> bytes:
    batch = build_batch([Record(value=b"x" * 100, timestamp_ms=int(time.time() * 1000))])
    body = write_request(
        PRODUCE,
        VERSION,
        {
            "transactional_id": None,
            "acks": -1,
            "timeout": 30_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
        },
    )
    return request_frame(PRODUCE, VERSION, 1, "crowd", body)


def connect(host: str, port: int, frame: bytes, selector: selectors.BaseSelector) -> Producer:
    sock = socket.create_connection((host, port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    producer = Producer(sock, frame)
    selector.register(sock, selectors.EVENT_READ, producer)
    return producer


def run(producers: list[Producer], selector: selectors.BaseSelector, rate: float, seconds: float) -> dict[str, float]:
    dice = random.Random(1)
    began = time.perf_counter()
    due = [(began + dice.random() / rate, number) for number in range(len(producers))]
    heapq.heapify(due)
    until, taken = began + seconds, []
    while True:
        now = time.perf_counter()
        while due and due[0][0] <= now:
            at, number = heapq.heappop(due)
            producers[number].planned.append(at)
            send(producers[number])
            if at < until:
                heapq.heappush(due, (at + dice.expovariate(rate), number))
        if not due and not any(producer.planned for producer in producers):
            break
        if now > until + 60:
            raise SystemExit("answers are missing a minute after the end")
        wait_s = max(0.0, due[0][0] - time.perf_counter()) if due else 0.1
        for key, _ in selector.select(wait_s):
            answered(key.data, taken)
    taken.sort()
    wall = time.perf_counter() - began
    at = {f"p{share}_ms": taken[min(int(len(taken) * share / 100), len(taken) - 1)] * 1000 for share in (50, 99)}
    return {**at, "records": len(taken), "wall_s": wall}


def send(producer: Producer) -> None:
    """As many as the window allows; the others wait for answers."""
    while producer.under_way < min(WINDOW, len(producer.planned)):
        producer.sock.send(producer.frame)
        producer.under_way += 1


def answered(producer: Producer, taken: list[float]) -> None:
    data = producer.sock.recv(65536)
    if not data:
        raise SystemExit("the server closed a connection")
    producer.read += data
    while len(producer.read) >= 4 and len(producer.read) >= 4 + (size := struct.unpack(">i", producer.read[:4])[0]):
        answer, producer.read = producer.read[4 : 4 + size], producer.read[4 + size :]
        code = error_code(answer)
        if code:
            raise SystemExit(f"a write was answered with error {code}")
        taken.append(time.perf_counter() - producer.planned.pop(0))
        producer.under_way -= 1
        send(producer)


def error_code(answer: bytes) -> int:
    """The error code of the only partition in a Produce answer of version 9.

    The answer begins with the correlation id, tags, the count of topics, the topic's name, and the count of partitions.
    """
    at = 4 + 1 + 1
    at += answer[at]  # the length of a compact string, plus one
    at += 1 + 4
    code: int = struct.unpack(">h", answer[at : at + 2])[0]
    return code


if __name__ == "__main__":
    main()
