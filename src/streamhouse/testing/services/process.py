"""Starts and stops one server process, and makes the directory that it may write to.

Two ways: *supervised* for tests (ends with its parent, however the parent ends; see supervisor.py) and *detached* for
``make services-up`` (lives on until told to stop). Knows nothing about any particular server.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from streamhouse.core.clock import Clock, SystemClock
from streamhouse.core.errors import ServiceFailed

_LOG_TAIL_LINES = 20
_STOP_DEADLINE_MS = 40_000  # longer than the supervisor waits before it sends SIGKILL
_POLL_S = 0.02

# What a server inherits: enough to find its libraries and to speak UTF-8, none of the caller's credentials or settings.
_INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "SYSTEMROOT")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAs:
    """The user a server runs as, where the caller is root and the server refuses to be."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    argv: tuple[str, ...]
    directory: Path  # all that the server writes; removed when a supervised server stops
    log_path: Path
    stop_signal: signal.Signals
    run_as: RunAs | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    strays: tuple[Path, ...] = ()  # what it writes outside its directory, for want of an option; removed with it

    def full_environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(self.environment)

    def log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        return ""


class ServerEnded(ServiceFailed):
    """It ended before it was ready: most often because another process took its port in the meantime."""


class ServerProcess(Protocol):
    @property
    def pid(self) -> int: ...

    def alive(self) -> bool: ...

    def stop(self, *, keep: bool = False) -> None:
        """Stop the server and wait until it is gone, and its directory with it unless ``keep``."""
        ...


Launch = Callable[[ServerCommand], ServerProcess]


class SupervisedProcess:
    """A server that cannot outlive this process."""

    def __init__(self, command: ServerCommand) -> None:
        plan = {
            "argv": command.argv,
            "directory": str(command.directory),
            "log": str(command.log_path),
            "environment": command.full_environment(),
            "uid": command.run_as.uid if command.run_as else None,
            "gid": command.run_as.gid if command.run_as else None,
            "stop_signal": int(command.stop_signal),
            "strays": [str(path) for path in command.strays],
        }
        # Its own session: Ctrl-C in the terminal reaches the parent alone, which then stops things in order.
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        atexit.register(self.stop)
        answer = self._exchange(json.dumps(plan))
        if "pid" not in answer:
            self.stop()
            raise ServiceFailed(f"{command.argv[0]} did not start: {answer.get('error', 'its supervisor ended')}")
        self.pid = int(str(answer["pid"]))

    def _exchange(self, line: str) -> dict[str, object]:
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        try:
            self._supervisor.stdin.write(line.encode() + b"\n")
            self._supervisor.stdin.flush()
            answer: dict[str, object] = json.loads(self._supervisor.stdout.readline() or b"{}")
        except (OSError, ValueError):
            return {}
        return answer

    def alive(self) -> bool:
        return self._supervisor.poll() is None and process_exists(self.pid)

    def stop(self, *, keep: bool = False) -> None:
        atexit.unregister(self.stop)
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        # The word, not only the end of file: a process forked off by a test may hold a copy of the pipe.
        with contextlib.suppress(OSError, ValueError):
            self._supervisor.stdin.write(b"keep\nstop\n" if keep else b"stop\n")
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(_STOP_DEADLINE_MS / 1000)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        self._supervisor.stdout.close()


class DetachedProcess:
    """A server that lives on after this process. Known by its pid and when that pid started, for pids are reused."""

    def __init__(
        self, *, pid: int, started: str, directory: Path, stop_signal: int, strays: tuple[Path, ...] = ()
    ) -> None:
        self.pid = pid
        self.started = started
        self.strays = strays
        self.stop_signal = stop_signal
        self._directory = directory

    def alive(self) -> bool:
        return process_exists(self.pid) and process_started(self.pid) == self.started

    def stop(self, *, keep: bool = False) -> None:
        if self.alive():
            os.kill(self.pid, self.stop_signal)
            if not wait_until(lambda: not self.alive(), timeout_ms=_STOP_DEADLINE_MS):
                os.kill(self.pid, signal.SIGKILL)
                wait_until(lambda: not self.alive(), timeout_ms=5_000)
        for stray in self.strays:
            stray.unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(self._directory, ignore_errors=True)


def launch_detached(command: ServerCommand) -> DetachedProcess:
    run_as = command.run_as
    with open(command.log_path, "ab") as log:
        server = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=command.directory,
            env=command.full_environment(),
            start_new_session=True,
            user=run_as.uid if run_as else None,
            group=run_as.gid if run_as else None,
            extra_groups=() if run_as else None,
        )
    server.returncode = 0  # it is meant to outlive this object, which would warn about that
    return DetachedProcess(
        pid=server.pid,
        started=process_started(server.pid),
        directory=command.directory,
        stop_signal=int(command.stop_signal),
        strays=command.strays,
    )


def process_exists(pid: int) -> bool:
    """Whether it runs; one that has ended but was not yet reaped does not."""
    fields = _process_fields(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def process_started(pid: int) -> str:
    """A mark that differs between two processes that had the same pid."""
    fields = _process_fields(pid)
    return fields[19] if fields else ""


def _process_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; empty when there is no such process."""
    with contextlib.suppress(OSError):
        # The command name before it stands in parentheses, and may itself hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def wait_until(condition: Callable[[], bool], *, timeout_ms: int, clock: Clock | None = None) -> bool:
    clock = clock or SystemClock()
    deadline_ms = clock.boot_ms() + timeout_ms
    while not condition():
        if clock.boot_ms() > deadline_ms:
            return False
        time.sleep(_POLL_S)
    return True


def wait_ready(
    name: str, process: ServerProcess, command: ServerCommand, ready: Callable[[], bool], *, timeout_ms: int
) -> None:
    """Wait for ``ready``; a server that dies first, or takes too long, fails with the end of its log."""
    reached = wait_until(lambda: ready() or not process.alive(), timeout_ms=timeout_ms)
    if reached and process.alive():
        return
    log = f"the end of its log:\n{command.log_tail()}"
    if not process.alive():
        raise ServerEnded(f"{name} ended before it was ready; {log}")
    raise ServiceFailed(f"{name} was not ready after {timeout_ms // 1000} s; {log}")


def unprivileged_user() -> RunAs | None:
    """The user for a server that refuses to run as root; none when the caller is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return RunAs(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise ServiceFailed(
        "this server refuses to run as root, and there is no user 'postgres' or 'nobody' to run it as",
        hint="run as another user, or add one of the two",
    )


def reachable(path: Path, run_as: RunAs | None) -> bool:
    """Whether that user may enter every directory on the way to ``path``."""
    if run_as is None:
        return os.access(path, os.X_OK)
    return all(_may_enter(parent, run_as) for parent in (path, *path.parents))


def _may_enter(directory: Path, run_as: RunAs) -> bool:
    status = directory.stat()
    if status.st_uid == run_as.uid:
        return bool(status.st_mode & 0o100)
    if status.st_gid == run_as.gid:
        return bool(status.st_mode & 0o010)
    return bool(status.st_mode & 0o001)


def make_directory(name: str, run_as: RunAs | None, *, parent: Path | None = None) -> Path:
    """A fresh private directory that the server's user owns and can reach."""
    wanted = parent or Path(tempfile.gettempdir())
    for base in (wanted, Path("/tmp"), Path("/var/tmp")):
        if base.is_dir() and reachable(base.resolve(), run_as):
            directory = Path(tempfile.mkdtemp(prefix=f"streamhouse-{name}-", dir=base.resolve()))
            if run_as is not None:
                os.chown(directory, run_as.uid, run_as.gid)
            return directory
    who = run_as.name if run_as else "this user"
    raise ServiceFailed(f"{who} can reach neither {wanted} nor /tmp nor /var/tmp to run {name} in", hint="set TMPDIR")
