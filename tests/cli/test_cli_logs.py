"""`log.level` and `log.format` in real processes, and what one says when its disk fails."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

BIN = Path(sys.executable).parent
WAIT_S = 60
READY = "ready; Ctrl-C or SIGTERM stops it in order\n"


@contextmanager
def process(*command: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Ready, with what it said until then."""
    with subprocess.Popen(
        [str(BIN / "streamhouse"), *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        said: list[str] = []
        try:
            for line in running.stderr:
                said.append(line)
                if line == READY:
                    break
            yield running, said
        finally:
            running.kill()


def end(running: subprocess.Popen[str]) -> list[str]:
    """What it says from here to its end; the lines for people to paste are left out."""
    said = running.communicate(timeout=WAIT_S)[1]
    return re.sub(r"\nWrite and read with kcat:.*?\nPY\n\n", "", said, flags=re.DOTALL).splitlines()


@pytest.mark.parametrize("command", ["dev", "server", "agent"])
def test_with_log_format_json_every_line_after_the_greeting_is_an_object(tmp_path: Path, command: str) -> None:
    flags = ["--data-dir", str(tmp_path / "data"), "--kafka-listen", "127.0.0.1:0"]
    with process(command, *flags, "--log-format", "json", "--log-level", "debug") as (running, said):
        running.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in (*[line for line in said if line.startswith("{")], *end(running))]
    assert running.returncode == 0
    messages = [line["message"] for line in lines]
    assert messages[0].startswith("the write-ahead log in ")
    assert any(message.startswith("started: agent ") for message in messages)
    assert "stopping: SIGTERM" in messages
    assert any("50 coordinator slots released" in message for message in messages)
    assert messages[-1] == "stopped: everything acknowledged is in the log"
    assert all(line["time"].endswith("Z") and line["logger"].startswith("streamhouse.") for line in lines)


def test_log_level_decides_what_is_written(tmp_path: Path) -> None:
    flags = ["--data-dir", str(tmp_path / "data"), "--kafka-listen", "127.0.0.1:0"]
    with process("dev", *flags, "--log-level", "warning") as (running, said):
        running.send_signal(signal.SIGTERM)
        assert [line for line in (*said, *end(running)) if " INFO " in line] == []
    with process("dev", *flags) as (running, said):
        running.send_signal(signal.SIGTERM)
        lines = [*said, *end(running)]
    assert any(" INFO streamhouse.app.process: started: agent " in line for line in lines)
    assert lines[-1] == "stopped: everything acknowledged is in the log", "people's lines stay as they are"


def test_a_disk_that_fails_is_told_of_at_once_and_not_only_at_the_end(tmp_path: Path) -> None:
    flags = ["--data-dir", str(tmp_path / "data"), "--kafka-listen", "127.0.0.1:0", "--agent-stop-timeout", "1h"]
    with process("dev", *flags) as (running, said):
        address = re.search(r"^kafka +(\S+)$", "".join(said), re.MULTILINE)
        assert address is not None
        producer = Producer({"bootstrap.servers": address[1], "message.timeout.ms": 5000, "log_level": 0})
        producer.produce("t", b"while there is room", partition=0)
        assert producer.flush(WAIT_S) == 0
        # As a full disk: whatever it writes to a file from now on fails.
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        producer.produce("t", b"no room", partition=0)
        lines = end(running)
        producer.purge()
        producer.flush(1)
    assert running.returncode == 1
    failed = next(i for i, line in enumerate(lines) if " ERROR streamhouse.log.wal.wal: " in line)
    released = next(i for i, line in enumerate(lines) if " coordinator slots " in line and "gained" not in line)
    assert os.strerror(27) in lines[failed]
    assert failed < released, "before it stops anything"
    assert lines[-1].startswith("error: the write-ahead log in ")
