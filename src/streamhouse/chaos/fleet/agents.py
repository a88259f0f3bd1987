"""One agent of the fleet: a real process that is started, signalled, and watched."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from streamhouse.chaos.fleet.clocks import OwnClock
from streamhouse.chaos.fleet.disk import SmallDisk
from streamhouse.testing.services.process import process_exists, process_started

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_INHERITED: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
_LOG_TAIL_LINES: Final = 15
_READY: Final = b"\nready; "


class AgentProcess:
    """An agent of the fleet. All its processes write to one log, have one data directory, and listen on one port."""

    def __init__(
        self,
        name: str,
        *,
        port: int,
        home: Path,
        settings: Mapping[str, str],
        disk: SmallDisk | None,
        clock: OwnClock | None,
    ) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.log_path = home / f"{name}.log"
        self.disk = disk
        self.clock = clock
        self.paused = False
        self._data = home / name
        self._child: subprocess.Popen[bytes] | None = None
        self._log_begins = 0
        self._is_ready = False
        own = {
            "agent.id": name,
            "data_dir": str(self._data),
            "kafka.listen": self.address,
            "admin.listen": "127.0.0.1:0",
        }
        self._environment = {
            **{variable: os.environ[variable] for variable in _INHERITED if variable in os.environ},
            **{f"STREAMHOUSE_{key.replace('.', '_').upper()}": value for key, value in {**settings, **own}.items()},
            **(clock.environment() if clock is not None else {}),
        }

    def start(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        self._is_ready, self.paused = False, False
        with self.log_path.open("ab") as log:
            self._log_begins = log.tell()
            self._child = subprocess.Popen(
                [sys.executable, "-m", "streamhouse", "agent"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._data,
                env=self._environment,
                start_new_session=True,  # Ctrl-C reaches the run alone, which then ends its agents in order
                preexec_fn=_die_with_the_run,
            )

    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def gone(self) -> bool:
        """The agent has ended, and the run cannot start it again."""
        return False

    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.poll()

    def running(self) -> bool:
        """The agent runs, is ready, and is not paused."""
        return not self.paused and self.alive() and self.ready()

    def ready(self) -> bool:
        if not self._is_ready:
            with self.log_path.open("rb") as log:
                log.seek(self._log_begins)
                self._is_ready = _READY in log.read()
        return self._is_ready

    def send(self, number: signal.Signals) -> None:
        if self.alive():
            assert self._child is not None
            self._child.send_signal(number)

    def pause(self) -> None:
        self.paused = True
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        self.paused = False

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._child.wait(timeout_s) if self._child is not None else 0
        except subprocess.TimeoutExpired:
            return None

    def log_tail(self) -> str:
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 65536))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        except OSError:
            return ""


class KnownProcess(AgentProcess):
    """An agent that the run did not start. The run can pause it; it cannot start it again, so it does not end it."""

    def __init__(self, pid: int) -> None:
        self.name = f"pid-{pid}"
        self.disk, self.clock, self.paused = None, None, False
        self._pid = pid
        self._started = process_started(pid)

    def start(self) -> None:
        return

    def alive(self) -> bool:
        return process_exists(self._pid) and process_started(self._pid) == self._started

    def gone(self) -> bool:
        return not self.alive()

    def exit_code(self) -> int | None:
        return None

    def ready(self) -> bool:
        return True

    def send(self, number: signal.Signals) -> None:
        if self.alive():
            os.kill(self._pid, number)

    def log_tail(self) -> str:
        return ""


def _die_with_the_run() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
