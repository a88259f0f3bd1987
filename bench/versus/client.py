"""One client of a benchmark, as a process of its own: librdkafka against whatever listens at --bootstrap.

    produce     as fast as it goes for --seconds            {"records", "bytes", "wall_s", "cpu_s"}
    consume     the whole topic once, from the start        {"records", "bytes", "wall_s", "cpu_s"}
    latency     --rate records a second for --seconds       {"p50_ms", "p99_ms", "p999_ms"}

Payloads are half random, half text: repetitive ones would compress 45:1 and measure nothing. With --keys, records of
`latency` have so many keys, one after the other. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

_PAYLOADS = 512


def payloads(size: int) -> list[bytes]:
    source = random.Random(7)
    text = b"lorem ipsum dolor sit amet " * (size // 27 + 1)
    return [(source.randbytes(size // 2) + text)[:size] for _ in range(_PAYLOADS)]


def producer_of(arguments: argparse.Namespace) -> Producer:
    return Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "acks": arguments.acks,
            "compression.type": arguments.codec,
            "enable.idempotence": arguments.idempotent,
            "linger.ms": arguments.linger_ms,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )


def produce(arguments: argparse.Namespace) -> dict[str, float]:
    producer = producer_of(arguments)
    values = payloads(arguments.size)
    failed: list[KafkaError] = []
    delivered = 0

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        nonlocal delivered
        if error is not None:
            failed.append(error)
        delivered += 1

    began, cpu = time.perf_counter(), cpu_s()
    until = began + arguments.seconds
    sent = 0
    while time.perf_counter() < until:
        for value in values:
            while True:
                try:
                    producer.produce(arguments.topic, value, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.01)
        sent += len(values)
        producer.poll(0)
    producer.flush(120)
    wall = time.perf_counter() - began
    if failed or delivered != sent:
        raise SystemExit(f"{len(failed)} of {sent} records were not delivered: {failed[:1]}")
    return {"records": sent, "bytes": sent * arguments.size, "wall_s": wall, "cpu_s": cpu_s() - cpu}


def consume(arguments: argparse.Namespace) -> dict[str, float]:
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    partitions = consumer.list_topics(arguments.topic, 10).topics[arguments.topic].partitions
    began, cpu = time.perf_counter(), cpu_s()
    consumer.assign([TopicPartition(arguments.topic, each, 0) for each in partitions])
    open_partitions, records, size = set(partitions), 0, 0
    while open_partitions:
        for message in consumer.consume(10_000, 1.0):
            error = message.error()
            if error is None:
                records += 1
                size += len(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            else:
                raise SystemExit(str(error))
    wall = time.perf_counter() - began
    result = {"records": records, "bytes": size, "wall_s": wall, "cpu_s": cpu_s() - cpu}
    consumer.close()
    return result


def latency(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure the time from produce() to the delivery report."""
    producer = producer_of(arguments)
    values = payloads(arguments.size)
    taken: list[float] = []
    producer.produce(arguments.topic, values[0], b"first" if arguments.keys else None)
    producer.flush(30)
    began = time.perf_counter()
    sent, total = 0, int(arguments.seconds * arguments.rate)
    while sent < total:
        due = min(total, int((time.perf_counter() - began) * arguments.rate))
        for number in range(sent, due):
            at = time.perf_counter()

            def on_delivery(error: KafkaError | None, _: Message, at: float = at) -> None:
                if error is not None:
                    raise SystemExit(str(error))
                taken.append(time.perf_counter() - at)

            key = b"key-%d" % (number % arguments.keys) if arguments.keys else None
            producer.produce(arguments.topic, values[number % _PAYLOADS], key, on_delivery=on_delivery)
        sent = due
        producer.poll(0.0005)
    producer.flush(30)
    taken.sort()
    at = {name: taken[min(len(taken) - 1, int(len(taken) * share))] * 1000 for name, share in _SHARES.items()}
    return {**at, "records": len(taken)}


_SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=["produce", "consume", "latency"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--linger-ms", type=float, default=5)
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--idempotent", action="store_true")
    arguments = parser.parse_args()
    work = {"produce": produce, "consume": consume, "latency": latency}[arguments.work]
    print(json.dumps(work(arguments)))


if __name__ == "__main__":
    main()
