"""No server outlives its run, whichever way the run ends, and none leaves anything behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamhouse.core.errors import ServiceFailed
from streamhouse.testing.services import S3Service, start_postgres, start_s3
from streamhouse.testing.services.ports import RANGE_VARIABLE, free_ports, is_free, share_of_ports
from streamhouse.testing.services.process import ServerCommand, SupervisedProcess, process_exists, wait_until
from streamhouse.testing.services.s3 import PROGRAMS
from streamhouse.testing.services.s3_programs import Account, S3Program

REAL_RUN = """
import sys, time
from streamhouse.testing.services import start_postgres, start_s3
with start_postgres() as postgres, start_s3() as s3:
    postgres.psql("SELECT pg_backend_pid()")
    print(postgres.process.pid, s3.process.pid, flush=True)
    print(*s3.ports, flush=True)
    time.sleep(600)
"""

# A server with a child that has left its session, as PostgreSQL's do, and that ignores being asked to end.
CHEAP_RUN = """
import signal, sys, time
from pathlib import Path
from streamhouse.testing.services.process import ServerCommand, SupervisedProcess, make_directory
directory = make_directory("cheap", None)
script = "trap '' TERM; setsid sleep 600 & echo $! > child; sleep 600 & wait"
process = SupervisedProcess(ServerCommand(
    argv=("/bin/sh", "-c", script), directory=directory, log_path=directory / "log", stop_signal=signal.SIGKILL,
))
while not (directory / "child").exists() or not (directory / "child").read_text().strip():
    time.sleep(0.01)
print(process.pid, (directory / "child").read_text().strip(), flush=True)
{how_it_ends}
"""


def run(script: str) -> tuple[subprocess.Popen[str], list[int]]:
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    return parent, pids


def descendants(pid: int) -> set[int]:
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return set()
    return {pid}.union(*(descendants(child) for child in children)) if children else {pid}


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory that no other run uses, and that the servers' user can reach."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    yield directory
    directory.rmdir()


def gone(pids: set[int]) -> bool:
    return wait_until(lambda: not any(process_exists(pid) for pid in pids), timeout_ms=30_000)


def working_directory(pid: int) -> Path:
    return Path(os.readlink(f"/proc/{pid}/cwd"))


def test_killing_the_run_with_kill_9_leaves_no_server_and_no_directory() -> None:
    parent, servers = run(REAL_RUN)
    everything = set().union(*(descendants(pid) for pid in servers))
    homes = [working_directory(pid) for pid in servers]
    assert len(everything) > 4, "PostgreSQL alone has several processes"
    assert parent.stdout is not None
    ports = parent.stdout.readline().split()
    parent.kill()
    parent.communicate()
    assert gone(everything)
    assert wait_until(lambda: not any(home.exists() for home in homes), timeout_ms=10_000)
    assert [stray for stray in Path("/tmp").glob("seaweedfs-*.sock") if any(port in stray.name for port in ports)] == []


@pytest.mark.parametrize(
    ("how_it_ends", "send"),
    [
        ("time.sleep(600)", signal.SIGKILL),
        ("time.sleep(600)", signal.SIGTERM),
        ("time.sleep(600)", signal.SIGINT),
        ("raise SystemExit(3)", None),
        ("raise RuntimeError('a test run that breaks')", None),
        ("import os; os._exit(1)", None),
    ],
)
def test_however_the_run_ends_its_servers_end_too(how_it_ends: str, send: signal.Signals | None) -> None:
    # A shell's background job ignores SIGINT, and its children inherit that.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    parent, pids = run(CHEAP_RUN.replace("{how_it_ends}", f"{heeds}; sys.stderr = None; {how_it_ends}"))
    home = working_directory(pids[0]) if send else None
    if send:
        parent.send_signal(send)
    parent.communicate()
    assert gone(set(pids))
    assert home is None or wait_until(lambda: not home.exists(), timeout_ms=10_000)


def test_stop_leaves_no_process_and_no_directory() -> None:
    service = start_postgres()
    home = working_directory(service.process.pid).parent
    processes = descendants(service.process.pid)
    service.stop()
    assert not any(process_exists(pid) for pid in processes)
    assert not home.exists()
    assert is_free(service.port)
    service.stop()


def test_two_servers_run_side_by_side() -> None:
    with start_postgres() as one, start_postgres() as two:
        assert one.port != two.port
        one.psql("CREATE TABLE only_here (n int)")
        with pytest.raises(ServiceFailed, match="only_here"):
            two.psql("SELECT * FROM only_here")


def test_a_server_that_dies_at_once_is_told_with_its_log_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    monkeypatch.setattr("streamhouse.testing.services.postgres.MAX_CONNECTIONS", "'nonsense")
    with pytest.raises(ServiceFailed, match=r"(?s)PostgreSQL ended before it was ready.*streamhouse\.conf"):
        start_postgres()
    assert list(temporary.iterdir()) == []


def test_a_program_that_cannot_be_run_is_told(tmp_path: Path) -> None:
    command = ServerCommand(
        argv=(str(tmp_path / "absent"),), directory=tmp_path, log_path=tmp_path / "log", stop_signal=signal.SIGTERM
    )
    with pytest.raises(ServiceFailed, match=r"did not start: .*absent"):
        SupervisedProcess(command)


def test_a_process_forked_off_by_a_test_does_not_keep_the_server_alive() -> None:
    ending = """
import os
from streamhouse.testing.services.process import process_exists
fork = os.fork()
if fork == 0:
    time.sleep(600)
process.stop()
print("runs on" if process_exists(process.pid) or directory.exists() else "stopped", flush=True)
os.kill(fork, signal.SIGKILL)
"""
    parent, _ = run(CHEAP_RUN.replace("{how_it_ends}", ending))
    said, _ = parent.communicate()
    assert said == "stopped\n"


def test_parallel_test_processes_share_the_ports_without_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[int] = set()
    for number in range(3):
        monkeypatch.setenv(RANGE_VARIABLE, share_of_ports(number, 3))
        ports = set(free_ports(50))
        low, high = map(int, share_of_ports(number, 3).split("-"))
        assert all(low <= port < high for port in ports)
        assert not taken & ports
        taken |= ports
    monkeypatch.setenv(RANGE_VARIABLE, "30000")
    with pytest.raises(ServiceFailed, match="not a range of ports"):
        free_ports(1)


def test_a_port_is_not_given_twice_before_its_server_has_taken_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three agents of a fleet ask one after another and start later; two of them once got one port."""
    monkeypatch.setenv(RANGE_VARIABLE, "19000-19040")
    given = [free_ports(1) for _ in range(20)]
    assert len(set(given)) == 20
    again = [free_ports(2) for _ in range(40)]  # all were given once: free ones are given again
    assert all(19000 <= port < 19040 for pair in again for port in pair)


def test_free_ports_are_free_and_different() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(is_free(port) for port in ports)


def test_a_taken_port_is_not_free(s3_service: S3Service) -> None:
    assert not is_free(s3_service.ports[0])


def test_an_s3_server_that_ignores_create_only_is_refused(careless_s3: str, temporary: Path) -> None:
    with pytest.raises(ServiceFailed, match="does not enforce create-only puts"):
        start_s3(kind=careless_s3)
    assert list(temporary.iterdir()) == []


CARELESS_SERVER = """
import http.server, sys
objects = {}
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_PUT(self):
        objects[self.path] = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(200)
    def do_GET(self):
        self.answer(200, objects.get(self.path, b""))
    def do_DELETE(self):
        self.answer(204)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def careless_s3(monkeypatch: pytest.MonkeyPatch) -> str:
    """An S3 server of the kind that takes every put, as some do."""

    def command(program: Path, home: Path, ports: tuple[int, ...], account: Account) -> ServerCommand:
        return ServerCommand(
            argv=(str(program), "-c", CARELESS_SERVER, str(ports[0])),
            directory=home,
            log_path=home / "log",
            stop_signal=signal.SIGTERM,
        )

    careless = S3Program(
        name="Careless",
        port_count=1,
        find=lambda: Path(sys.executable),
        version=lambda _: "0",
        command=command,
    )
    monkeypatch.setitem(PROGRAMS, "careless", careless)
    return "careless"
