"""`streamhouse dev` as a Kafka broker: what it prints works when pasted; what stands in its way is one clear line."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamhouse.cli.commands.serve import first_steps

BIN = Path(sys.executable).parent
WAIT_S = 60


@contextmanager
def dev(data_dir: Path, *flags: str) -> Iterator[str]:
    """The running process's words, up to and with what it tells people to try."""
    command = [str(BIN / "streamhouse"), "dev", "--data-dir", str(data_dir), *flags]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=data_dir.parent
    ) as process:
        assert process.stderr is not None
        said: list[str] = []
        try:
            for line in process.stderr:
                said.append(line)
                if line == "PY\n":
                    break
            yield "".join(said)
        finally:
            process.send_signal(signal.SIGTERM)
            said.append(process.communicate(timeout=WAIT_S)[1])
    assert process.returncode == 0, "".join(said)


def paste(lines: str, working_dir: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=working_dir,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("flags", "topic"), [(("--demo",), "orders"), ((), "first")])
def test_what_dev_prints_works_when_pasted(tmp_path: Path, flags: tuple[str, ...], topic: str) -> None:
    with dev(tmp_path / "data", "--kafka-listen", "127.0.0.1:0", *flags) as said:
        address = re.search(r"^kafka +(\S+)$", said, re.MULTILINE)
        assert address is not None
        write, read = re.findall(r"^(?:echo .*\| )?kcat .*$", said, re.MULTILINE)
        assert address[1] in write
        paste(write, tmp_path)
        assert paste(read, tmp_path).splitlines()[-1] == "hello"
        snippet = re.search(r"^\S*python\S* - <<'PY'\n.*^PY$", said, re.MULTILINE | re.DOTALL)
        assert snippet is not None
        assert "hello from Python" in paste(snippet[0], tmp_path)


def test_a_port_that_is_taken_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [str(BIN / "streamhouse"), "dev", "--data-dir", str(tmp_path), "--kafka-listen", f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert done.returncode not in (0, -9)
    greeting, error = done.stderr.splitlines()
    assert greeting == "streamhouse dev starts"
    assert f"another process listens on 127.0.0.1:{port}" in error
    assert "--kafka-listen" in error


def test_a_port_for_the_network_needs_an_explicit_word(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BIN / "streamhouse"), "dev", "--data-dir", str(tmp_path), "--kafka-listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode not in (0, -9)
    assert "no authentication yet" in done.stderr
    assert "kafka.allow_remote" in done.stderr


def test_the_door_can_be_left_out(tmp_path: Path) -> None:
    command = [str(BIN / "streamhouse"), "dev", "--data-dir", str(tmp_path), "--no-kafka-enabled"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("ready"):
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    assert "kafka       not served by this process\n" in said


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_documents_say_what_dev_prints(page: str) -> None:
    text = (Path(__file__).parents[2] / page).read_text()
    printed = first_steps("127.0.0.1:9092", topic="orders")
    commands = re.findall(r"^(?:echo .*\| )?kcat .*$", printed, re.MULTILINE)
    assert [command for command in commands if f"$ {command}\n" not in text] == []
    snippet = re.search(r"<<'PY'\n(.*)^PY$", printed, re.MULTILINE | re.DOTALL)
    assert snippet is not None
    for fence in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if "confluent_kafka" in fence and "\ndef test_" not in fence:  # the plugin's tests run those
            assert fence == snippet[1]


def test_s3_6_a_server_without_an_agent_says_ready_and_answers(tmp_path: Path) -> None:
    command = [str(BIN / "streamhouse"), "server", "--data-dir", str(tmp_path), "--kafka-listen", "127.0.0.1:0"]
    environment = {**os.environ, "DISABLE_EMBEDDED_AGENT": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("ready"):
                break
        address = re.search(r"^kafka +(\S+):(\d+)$", "".join(said), re.MULTILINE)
        assert address is not None, said
        with socket.create_connection((address[1], int(address[2])), timeout=WAIT_S) as client:
            client.sendall(bytes.fromhex("0000000a 0012 0000 00000007 0000"))  # ApiVersions 0, correlation id 7
            answer = client.recv(10)
            assert answer[4:] == bytes.fromhex("00000007 0000"), "no error"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
