"""`streamhouse status`: what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from streamhouse.testing.services.ports import free_ports

WAIT_S = 120


def status(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "streamhouse", "status", *flags]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False)


@contextmanager
def dev(data_dir: Path) -> Iterator[str]:
    """The address of the admin port of a running process."""
    command = [sys.executable, "-m", "streamhouse", "dev", "--data-dir", str(data_dir), "--kafka-listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if found := re.fullmatch(r"health +http://(\S+)/readyz\n", line):
                    address = found[1]
                if line.startswith("ready;"):
                    break
            yield address
        finally:
            process.terminate()
            process.stderr.read()


@contextmanager
def answering(code: int, body: str) -> Iterator[str]:
    """The address of a server that answers every request like this."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if self.path == "/readyz" else 200)
            self.end_headers()
            self.wfile.write(body.encode() if self.path == "/readyz" else b"streamhouse_leases 3.0\n")

        def log_message(self, *of: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_process_that_is_ready_ends_it_with_0(tmp_path: Path) -> None:
    with dev(tmp_path / "data") as address:
        table = status(tmp_path, "--address", address)
        assert (table.returncode, table.stderr) == (0, "")
        assert re.match(r"agent agent-\w+: ready\n", table.stdout)
        assert re.search(r"^leases held +50$", table.stdout, re.MULTILINE)
        document = json.loads(status(tmp_path, "--address", address, "--output", "json").stdout)
        assert (document["state"], document["problems"]) == ("ready", [])
        assert document["figures"]["streamhouse_leases"] == 50


def test_a_process_that_is_not_ready_ends_it_with_10(tmp_path: Path) -> None:
    problem = {
        "what": "the object store",
        "problem": "no answer",
        "since": "2026-01-31T12:00:00Z",
        "for_s": 3,
        "what_to_do": "see that it runs",
        "blocks": True,
    }
    said = json.dumps({"state": "not ready", "process": "agent a", "problems": [problem]})
    with answering(503, said) as address:
        done = status(tmp_path, "--address", address)
        assert done.returncode == 10
        assert "agent a: not ready\n" in done.stdout
        assert "the object store, since 2026-01-31T12:00:00Z: no answer\n" in done.stdout
        assert "what to do: see that it runs\n" in done.stdout
        as_json = status(tmp_path, "--address", address, "--output", "json")
        assert (as_json.returncode, json.loads(as_json.stdout)["problems"]) == (10, [problem])


def test_nothing_that_answers_ends_it_with_5(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    done = status(tmp_path, "--address", f"127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (5, "")
    assert f"nothing answers at 127.0.0.1:{port}" in done.stderr
    assert "--address" in done.stderr
    done = status(tmp_path, "--address", f"127.0.0.1:{port}", "--output", "json")
    assert (done.returncode, json.loads(done.stdout)["state"]) == (5, "no answer")


@pytest.mark.parametrize("body", ["hello", "[]", '{"state": "fine"}'])
def test_another_server_on_the_port_ends_it_with_5(tmp_path: Path, body: str) -> None:
    with answering(200, body) as address:
        done = status(tmp_path, "--address", address)
        assert done.returncode == 5
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["here", "127.0.0.1:", "127.0.0.1:0", ":8080", "127.0.0.1:99999"])
def test_what_is_no_address_ends_it_with_2(tmp_path: Path, address: str) -> None:
    done = status(tmp_path, "--address", address)
    assert done.returncode == 2
    assert "--address HOST:PORT" in done.stderr


def test_without_an_address_it_asks_where_the_settings_say(tmp_path: Path) -> None:
    done = status(tmp_path)  # port 0, as tests have it in the environment
    assert (done.returncode, "--address HOST:PORT" in done.stderr) == (2, True)


def test_s2_15_a_compactor_is_asked_in_the_same_way(tmp_path: Path) -> None:
    with dev(tmp_path / "data"):
        command = [sys.executable, "-m", "streamhouse", "compactor", "--data-dir", str(tmp_path / "data")]
        with subprocess.Popen(
            [*command, "--admin-listen", "127.0.0.1:0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    if found := re.fullmatch(r"health +http://(\S+)/health\n", line):
                        address = found[1]
                    if line.startswith("ready;"):
                        break
                done = status(tmp_path, "--address", address)
            finally:
                process.terminate()
                process.stderr.read()
    assert done.returncode == 0, done.stderr
    assert re.match(r"compactor compactor-\w+: ", done.stdout)
    assert re.search(r"partitions looked after +0", done.stdout)
