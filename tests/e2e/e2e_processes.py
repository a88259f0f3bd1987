"""Real processes in a test: started, signalled, waited for with a limit, and gone when the test is.

A child dies with the test run whatever becomes of that (the kernel sees to it), writes to a file of its own, and that
file's end is part of every failure.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_LOG_TAIL_LINES: Final = 25
_POLL_S: Final = 0.02
_WAIT_S: Final = 180.0
_INHERITED: Final = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "STREAMHOUSE_ADMIN_LISTEN")

AGENT_PROGRAM: Final = Path(__file__).with_name("agent_program.py")
STREAMHOUSE: Final = Path(sys.executable).with_name("streamhouse")


class NotInTime(AssertionError):
    """What a test waits for did not come."""


async def eventually(
    what: str, check: Callable[[], Awaitable[bool] | bool], *, timeout_s: float = _WAIT_S, every_s: float = 0.05
) -> None:
    """Returns once ``check`` says so. The limit is a safety net, far beyond what it takes."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        answer = check()
        if answer is True or (not isinstance(answer, bool) and await answer):
            return
        if asyncio.get_running_loop().time() > deadline_s:
            raise NotInTime(f"after {timeout_s:.0f} s still not: {what}")
        await asyncio.sleep(every_s)


class Process:
    """One program that may be started again and again; all its lives write to one log."""

    def __init__(
        self, name: str, argv: list[str], *, environment: Mapping[str, str], log_path: Path, working_dir: Path
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._argv = argv
        self._environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | dict(environment)
        self._working_dir = working_dir
        self._child: subprocess.Popen[bytes] | None = None
        self._log_begins = 0

    def start(self, **environment: str) -> None:
        assert not self.alive(), f"{self.name} runs already"
        self._working_dir.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_begins = log.tell()
            # A session of its own: Ctrl-C reaches the test run alone, which then puts an end to its children.
            self._child = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._working_dir,
                env=self._environment | environment,
                start_new_session=True,
                preexec_fn=_die_with_the_test,
            )

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def send(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    async def kill(self) -> None:
        """kill -9; returns when it is gone. One that has ended already is left as it is."""
        if self.alive():
            self.send(signal.SIGKILL)
        await self.exited()

    async def exited(self, *, timeout_s: float = _WAIT_S) -> int:
        """The exit code; negative for a signal."""
        await eventually(f"{self.name} ends", lambda: not self.alive(), timeout_s=timeout_s, every_s=_POLL_S)
        assert self._child is not None
        return self._child.wait()

    async def stopped_by(self, number: signal.Signals) -> int:
        self.send(number)
        return await self.exited()

    async def paused(self) -> None:
        """Returns when a signal has stopped it, from any sender."""
        await eventually(f"{self.name} is stopped", lambda: _state(self.pid) in "Tt", every_s=_POLL_S)

    def output(self) -> str:
        """What this life has written so far."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_begins)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        except OSError:
            lines = ["(it was never started)"]
        state = "alive" if self.alive() else "gone"
        return "\n".join([f"--- {self.name} ({state}), the end of its log:", *lines])

    def clean_up(self) -> None:
        if self.alive():
            self.send(signal.SIGKILL)
        if self._child is not None:
            self._child.wait()


def _state(pid: int) -> str:
    """The kernel's letter for it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _die_with_the_test() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
