"""The servers under comparison, each as a process of its own on a directory that is removed afterwards."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from streamhouse.testing.services.kafka import start_kafka
from streamhouse.testing.services.ports import free_ports
from versus.watch import age_s

_READY_WITHIN_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    bootstrap: str
    pid: int
    ready_s: float
    """The time from the start of its process to the first answered request."""


@contextlib.contextmanager
def start_streamhouse(*arguments: str, directory: Path | None = None) -> Iterator[Target]:
    """Start StreamHouse on embedded defaults. A directory that is given is kept."""
    program = Path(sys.executable).with_name("streamhouse")
    with _start(program, "StreamHouse", "--admin-listen=127.0.0.1:0", *arguments, directory=directory) as target:
        yield target


def start_checkout(checkout: Path) -> contextlib.AbstractContextManager[Target]:
    """Start the StreamHouse of another checkout, which may be too old to know today's flags."""
    program = checkout.resolve() / ".venv/bin/streamhouse"
    if not program.exists():
        sys.exit(f"{program} is missing: run make setup in {checkout}")
    return _start(program, checkout.resolve().name)


@contextlib.contextmanager
def _start(program: Path, name: str, *arguments: str, directory: Path | None = None) -> Iterator[Target]:
    home = directory or Path(tempfile.mkdtemp(prefix="bench-streamhouse-"))
    (port,) = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    command = [
        str(program),
        "dev",
        f"--data-dir={home}",
        f"--kafka-listen={bootstrap}",
        *arguments,
    ]
    with (home.parent / f"{home.name}.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_answered(bootstrap, process)
            yield Target(name=name, bootstrap=bootstrap, pid=process.pid, ready_s=age_s(process.pid))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            if directory is None:
                shutil.rmtree(home, ignore_errors=True)
    Path(log.name).unlink()


@contextlib.contextmanager
def start_apache_kafka() -> Iterator[Target]:
    with start_kafka(heap_mb=1024, quick=False) as kafka:
        wait_until_answered(kafka.bootstrap)
        yield Target(name="Apache Kafka", bootstrap=kafka.bootstrap, pid=kafka.pid, ready_s=age_s(kafka.pid))


def wait_until_answered(bootstrap: str, process: subprocess.Popen[bytes] | None = None) -> None:
    """A metadata request, not only an open port."""
    until = time.perf_counter() + _READY_WITHIN_S
    admin = AdminClient(
        {"bootstrap.servers": bootstrap, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50, "log_level": 0}
    )
    while True:
        try:
            admin.list_topics(timeout=1)
            return
        except KafkaException:
            if process is not None and process.poll() is not None:
                sys.exit(f"the server at {bootstrap} ended with {process.returncode}")
            if time.perf_counter() > until:
                sys.exit(f"no answer at {bootstrap} within {_READY_WITHIN_S} s")
