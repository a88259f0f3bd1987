"""The clients under test, and how one of their programs is run (programs/README.md has the command line)."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from build import CACHE, PROGRAMS

from streamhouse.testing.services import find_kafka

_INLINE_ARGS_BYTES = 60_000  # Linux takes at most 128 KiB in one argument
_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
_STDERR_TAIL = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    name: str
    argv: Callable[[], list[str]]
    cannot: frozenset[str] = frozenset()
    """What it cannot write: "timestamp", "empty-key", "empty-value", "null-header"."""
    lean: bool = False
    """Part of ``make test``."""
    exact_assignments: bool = True
    """Whether its assignors give the same partitions to the same members, whatever the broker's order of them is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    kind: str  # "result", "unsupported", "error"
    value: Any
    stderr: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.kind == "result"


def _python(program: str) -> Callable[[], list[str]]:
    # Without it kafka-python tells on stderr, at every start, that it reads its schemas by a deprecated function.
    return lambda: [sys.executable, "-W", "ignore", str(PROGRAMS / "python" / program)]


def _java() -> list[str]:
    jars = find_kafka()
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
    classpath = f"{CACHE / 'java'}:{jars.classpath}"
    return [str(jars.java), *options, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath, "Program"]


CLIENTS: Final = (
    Client(name="confluent-kafka", argv=_python("confluent_program.py"), lean=True),
    Client(
        name="kafka-python",
        argv=_python("kafka_python_program.py"),
        cannot=frozenset({"null-header"}),
        lean=True,
    ),
    Client(name="aiokafka", argv=_python("aiokafka_program.py"), lean=True),
    Client(
        name="kcat",
        argv=_python("kcat_program.py"),
        cannot=frozenset({"timestamp", "empty-key", "empty-value"}),
        lean=True,
    ),
    Client(
        name="kafkajs",
        argv=lambda: ["node", str(CACHE / "node" / "program.js")],
        cannot=frozenset({"null-header"}),
        exact_assignments=False,
    ),
    Client(name="Java", argv=_java),
    Client(name="franz-go", argv=lambda: [str(CACHE / "go" / "franz")]),
    Client(name="sarama", argv=lambda: [str(CACHE / "go" / "sarama")]),
)


@dataclass(slots=True)
class Run:
    """One run of a program. ``on_progress`` hears what it tells while it goes on."""

    client: Client
    scenario: str
    bootstrap: str
    topic: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 120.0
    on_progress: Callable[[int], None] | None = None

    def __call__(self) -> Answer:
        text = json.dumps(self.args)
        with tempfile.TemporaryDirectory(prefix="client-") as directory:
            if len(text) > _INLINE_ARGS_BYTES:
                path = Path(directory) / "args.json"
                path.write_text(text)
                text = f"@{path}"
            argv = [*self.client.argv(), self.scenario, "--bootstrap", self.bootstrap]
            argv += ["--topic", self.topic, "--json-args", text]
            with (Path(directory) / "stderr").open("w+b") as errors:
                began = time.monotonic()
                kind, value = self._last_line(argv, errors.fileno())
                seconds = time.monotonic() - began
                size = errors.seek(0, os.SEEK_END)
                errors.seek(max(0, size - _STDERR_TAIL))
                told = errors.read().decode(errors="replace")
        return Answer(kind=kind, value=value, stderr=told, seconds=seconds)

    def _last_line(self, argv: list[str], errors: int) -> tuple[str, Any]:
        until = time.monotonic() + self.timeout_s
        answer: tuple[str, Any] | None = None
        buffer = b""
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout
            os.set_blocking(process.stdout.fileno(), False)
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while time.monotonic() < until and len(buffer) < _MAX_OUTPUT_BYTES:
                    if not selector.select(timeout=0.5):
                        continue
                    chunk = process.stdout.read(1 << 20)
                    if not chunk:
                        break
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    for line in lines:
                        answer = self._heard(line) or answer
                else:
                    process.kill()
                    return "error", f"no answer within {self.timeout_s:.0f} s"
            process.wait(10)
        return answer or ("error", f"ended with {process.returncode} without an answer")

    def _heard(self, line: bytes) -> tuple[str, Any] | None:
        try:
            message = json.loads(line)
        except ValueError:
            return None  # a library that writes to stdout
        if not isinstance(message, dict):
            return None
        if "progress" in message and self.on_progress:
            self.on_progress(int(message["progress"]))
        for kind in ("result", "unsupported", "error"):
            if kind in message:
                return kind, message[kind]
        return None
