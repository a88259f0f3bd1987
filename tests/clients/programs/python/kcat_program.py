"""kcat behind the common command line of the client programs: one or more runs of the real tool for each scenario.

Whatever may meet a broker that is away gets -E: without it kcat ends at the first moment when no broker is connected.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from protocol import (
    Request,
    Unsupported,
    in_order,
    rebalance,
    record_read,
    run_steps,
    say,
    serve,
    unpack,
    wait_for,
)

TIMEOUT_S = 60
END = b"\x1e\n"  # no header of the tests has this byte
FORMAT = "%t %p %o %T %K %S\x1e%k%s%h\x1e\n"
GROUP_EVENT = re.compile(r"rebalanced.*? (?:incremental )?(assign|revo)(?:ed|ment|ked|ke|cation)\b[^:]*: ?(.*)")
SPECIAL_TIMES = {"latest": -1, "earliest": -2}


def kcat(*arguments: str, stdin: bytes | None = None) -> bytes:
    ran = subprocess.run(["kcat", *arguments], input=stdin or b"", capture_output=True, timeout=TIMEOUT_S)
    if ran.returncode != 0:
        raise RuntimeError(f"kcat ended with {ran.returncode}: {ran.stderr.decode(errors='replace').strip()[-300:]}")
    return ran.stdout


def version(_request: Request) -> dict[str, str]:
    told = subprocess.run(["kcat", "-V"], capture_output=True, text=True).stdout
    tool, library = re.search(r"Version (\S+)", told), re.search(r"librdkafka (\S+)", told)
    assert tool
    assert library
    return {"client": "kcat", "version": f"{tool[1]}, librdkafka {library[1]}"}


def _settings(**settings: Any) -> list[str]:
    return [word for name, value in settings.items() for word in ("-X", f"{name.replace('_', '.')}={value}")]


def produce(request: Request) -> dict[str, Any]:
    """kcat does not tell the offsets that its records got."""
    idempotent = bool(request.args.get("idempotent"))
    settings = _settings(
        enable_idempotence=str(idempotent).lower(), message_timeout_ms=60_000, reconnect_backoff_max_ms=200
    )
    settings += [] if idempotent else _settings(acks=request.args.get("acks", "all"))
    for batch in request.args["batches"]:
        base = ["-P", "-b", request.bootstrap, "-t", request.topic, "-p", str(batch["partition"])]
        base += ["-z", batch.get("codec", "none"), *settings]
        if request.args.get("pause_ms"):
            _stream(base, batch["records"], request.args["pause_ms"] / 1000)
        else:
            for record in batch["records"]:
                _one(base, record)
    return {"offsets": None}


def _one(base: list[str], record: dict[str, Any]) -> None:
    key, value = unpack(record["key"]), unpack(record["value"])
    arguments = list(base)
    for name, content in record.get("headers") or []:
        data = unpack(content)
        arguments += ["-H", name if data is None else f"{name}={data.decode('utf-8', 'surrogateescape')}"]
    if value is None:
        kcat(*arguments, "-Z", "-K", ":", stdin=(key or b"") + b":")
        return
    if key is not None:
        arguments += ["-k", key.decode("utf-8", "surrogateescape")]
    with tempfile.NamedTemporaryFile() as file:
        file.write(value)
        file.flush()
        kcat(*arguments, file.name)


def _stream(base: list[str], records: list[dict[str, Any]], pause_s: float) -> None:
    with subprocess.Popen(["kcat", *base, "-E", *_settings(linger_ms=0)], stdin=subprocess.PIPE) as process:
        assert process.stdin
        for record in records:
            process.stdin.write((unpack(record["value"]) or b"") + b"\n")
            process.stdin.flush()
            time.sleep(pause_s)
        process.stdin.close()
        if process.wait(TIMEOUT_S * 2) != 0:
            raise RuntimeError(f"kcat ended with {process.returncode}")


def _parse(output: bytes) -> list[dict[str, Any]]:
    records = []
    while output:
        head, _, output = output.partition(b"\x1e")
        topic, partition, offset, timestamp, key_size, value_size = head.decode().split(" ")
        key, output = _cut(output, int(key_size))
        value, output = _cut(output, int(value_size))
        headers, _, output = output.partition(END)
        records.append(record_read(topic, int(partition), int(offset), int(timestamp), key, value, _headers(headers)))
    return records


def _cut(data: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, data) if size < 0 else (data[:size], data[size:])


def _headers(text: bytes) -> list[tuple[str, bytes | None]]:
    pairs = [pair.partition(b"=") for pair in text.split(b",")] if text else []
    return [(name.decode(), None if value == b"NULL" else value) for name, _, value in pairs]


def consume(request: Request) -> dict[str, Any]:
    start = request.args.get("start", "earliest")
    offset = "beginning" if start == "earliest" else f"s@{start['timestamp']}"
    until = request.deadline
    while True:
        records = []
        for topic in request.topics:
            found = kcat("-C", "-b", request.bootstrap, "-t", topic, "-o", offset, "-e", "-q", "-f", FORMAT)
            records += _parse(found)
        if len(records) >= request.args["count"] or time.monotonic() > until:
            return {"records": in_order(records)}


class Running:
    """A kcat that goes on until it is told to stop; what it says is collected line by line."""

    def __init__(self, *arguments: str, on_line: Callable[[bytes], None] | None = None) -> None:
        self.said: list[str] = []
        self.written: list[bytes] = []
        self._on_line = on_line
        self._process = subprocess.Popen(["kcat", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stdout
        assert self._process.stderr
        self._threads = [
            threading.Thread(target=self._out, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._err, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _out(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.written.append(line)
            if self._on_line:
                self._on_line(line)

    def _err(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.said.append(line.decode(errors="replace"))

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)
        for thread in self._threads:
            thread.join(5)


def tail(request: Request) -> dict[str, Any]:
    reader = Running("-C", "-b", request.bootstrap, "-t", request.topic, "-o", "end", "-u", "-f", FORMAT)
    ends = re.compile(r"Reached end of topic")
    wait_for(
        "kcat at the end", lambda: sum(bool(ends.search(line)) for line in reader.said) >= request.args["partitions"]
    )
    wanted = request.args["records"]
    request.args["batches"] = [{"partition": 0, "records": wanted}]
    produce(request)
    wait_for("the new records", lambda: len(reader.written) >= len(wanted))
    reader.stop()
    return {"records": in_order(_parse(b"".join(reader.written)))}


class GroupMember:
    def __init__(self, request: Request, instance: str | None, on_record: Callable[[bytes | None], None]) -> None:
        args = request.args
        if args.get("protocol", "classic") != "classic":
            raise Unsupported("the librdkafka of kcat has no KIP-848 groups")
        assignor = args.get("assignor", "range")
        self._cooperative = assignor == "cooperative-sticky"
        settings = _settings(
            session_timeout_ms=10_000,
            heartbeat_interval_ms=400,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=500,
            partition_assignment_strategy=assignor,
        )
        settings += _settings(group_instance_id=instance) if instance else []
        self._kcat = Running(
            "-b", request.bootstrap, "-u", "-E", *settings, "-G", args["group"], request.topic,
            on_line=lambda line: on_record(line.rstrip(b"\n")),
        )  # fmt: skip

    def _events(self) -> list[tuple[str, set[int]]]:
        found = (GROUP_EVENT.search(line) for line in list(self._kcat.said))
        return [(each[1], {int(number) for number in re.findall(r"\[(\d+)\]", each[2])}) for each in found if each]

    def owned(self) -> set[int]:
        owned: set[int] = set()
        for kind, partitions in self._events():
            kept: set[int] = set() if kind == "assign" and not self._cooperative else owned
            owned = kept - partitions if kind == "revo" else kept | partitions
        return owned

    def lost(self) -> set[int]:
        return {number for kind, partitions in self._events() if kind == "revo" for number in partitions}

    def assignments(self) -> int:
        return sum(kind == "assign" for kind, _ in self._events())

    def close(self) -> None:
        self._kcat.stop()


def resume(request: Request) -> dict[str, Any]:
    args = request.args
    if args.get("protocol", "classic") != "classic":
        raise Unsupported("the librdkafka of kcat has no KIP-848 groups")

    def take(count: int) -> list[int]:
        options = ["-b", request.bootstrap, "-q", "-f", "%o\n", "-c", str(count)]
        found = kcat(*options, *_settings(auto_offset_reset="earliest"), "-G", args["group"], request.topic)
        return [int(line) for line in found.split()]

    first = take(args["first"])
    second = take(args["total"] - args["first"])
    return {"first": first, "committed": None, "second": second, "committed_after": None}


def soak(request: Request) -> dict[str, Any]:
    """kcat tells what failed, not what was acknowledged: all that it did not complain of when it ends well was."""
    args = request.args
    count, partitions = int(args["count"]), int(args["partitions"])
    seen: set[bytes] = set()
    member = GroupMember(request, None, lambda value: seen.add(value or b""))
    settings = _settings(enable_idempotence="true", message_timeout_ms=90_000, linger_ms=5)
    producers = [
        subprocess.Popen(
            ["kcat", "-P", "-E", "-b", request.bootstrap, "-t", request.topic, "-p", str(number), *settings],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(partitions)
    ]
    for number in range(count):
        stdin = producers[number % partitions].stdin
        assert stdin
        stdin.write(str(number).encode() + b"\n")
        stdin.flush()
        if number % 20 == 0:
            say({"progress": number})
        time.sleep(1 / args["rate_per_s"])
    failed: dict[str, int] = {}
    for producer in producers:
        _, said = producer.communicate(timeout=120)
        for line in said.decode(errors="replace").splitlines():
            if "elivery failed" in line:
                failed[line[:120]] = failed.get(line[:120], 0) + 1
        if producer.returncode:
            failed[f"exit code {producer.returncode}"] = 1
    acked = {str(number).encode() for number in range(count)}
    until = request.deadline
    while not acked <= seen and time.monotonic() < until:
        time.sleep(0.05)
    member.close()
    return {"acked": count - sum(failed.values()), "failed": failed, "missing": len(acked - seen)}


class Admin:
    def __init__(self, request: Request) -> None:
        self._bootstrap = request.bootstrap

    def _metadata(self, *arguments: str) -> Any:
        return json.loads(kcat("-b", self._bootstrap, "-L", "-J", *arguments))

    def list_topics(self, step: dict[str, Any]) -> list[str]:
        names = (each["topic"] for each in self._metadata()["topics"])
        return sorted(name for name in names if name.startswith(step["prefix"]))

    def describe_topic(self, step: dict[str, Any]) -> Any:
        (found,) = self._metadata("-t", step["topic"])["topics"]
        return {
            "partitions": sorted(each["partition"] for each in found["partitions"]),
            "led": all(each["leader"] >= 0 for each in found["partitions"]),
            "in_sync": all(each["isrs"] for each in found["partitions"]),
        }

    def list_offsets(self, step: dict[str, Any]) -> int:
        if step["at"] == "max_timestamp":
            raise Unsupported("librdkafka 2.0 has no such lookup")
        at = SPECIAL_TIMES.get(step["at"], step["at"])
        told = kcat("-b", self._bootstrap, "-Q", "-t", f"{step['topic']}:{step['partition']}:{at}").decode()
        found = re.search(r"offset (-?\d+)", told)
        assert found, told
        return int(found[1])

    def describe_cluster(self, _step: dict[str, Any]) -> Any:
        found = self._metadata()
        return {"brokers": len(found["brokers"]), "controller": found["controllerid"] >= 0}


def admin(request: Request) -> Any:
    return run_steps(request, Admin(request), lambda error: str(error)[:100])


if __name__ == "__main__":
    serve(
        {
            "version": version,
            "produce": produce,
            "consume": consume,
            "tail": tail,
            "rebalance": lambda request: rebalance(request, lambda name, take: GroupMember(request, name, take)),
            "resume": resume,
            "admin": admin,
            "soak": soak,
        }
    )
