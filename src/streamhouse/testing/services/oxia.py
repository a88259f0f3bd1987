"""A private standalone Oxia server. The one service that may be absent: no package registry carries it."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
from pathlib import Path

from streamhouse.core.errors import ServiceFailed, ServiceMissing
from streamhouse.testing.services.binaries import OXIA_VARIABLE, find_oxia
from streamhouse.testing.services.ports import LOOPBACK
from streamhouse.testing.services.process import Launch, ServerCommand, SupervisedProcess, wait_ready
from streamhouse.testing.services.service import Service, start_afresh

_START_TIMEOUT_MS = 60_000
_VERSION_TIMEOUT_S = 60


class OxiaService(Service):
    """A running server. Made by ``start_oxia``."""

    def __init__(self, *, program: Path, home: Path, ports: tuple[int, ...], shards: int, launch: Launch) -> None:
        public, metrics = self.ports = ports
        self.address = f"{LOOPBACK}:{public}"
        self.version = _version(program)
        argv = [str(program), "standalone", "--public-addr", self.address, "--metrics-addr", f"{LOOPBACK}:{metrics}"]
        argv += ["--shards", str(shards), "--data-dir", str(home / "db"), "--wal-dir", str(home / "wal")]
        command = ServerCommand(argv=tuple(argv), directory=home, log_path=home / "log", stop_signal=signal.SIGTERM)
        self.process = launch(command)
        try:
            wait_ready("Oxia", self.process, command, lambda: _listens(public), timeout_ms=_START_TIMEOUT_MS)
        except BaseException:
            self.process.stop(keep=True)
            raise


def start_oxia(
    *,
    shards: int = 1,
    directory: Path | None = None,
    ports: tuple[int, ...] | None = None,
    launch: Launch = SupervisedProcess,
) -> OxiaService:
    """Start a private server, or say in one line where to get one; ``directory`` and ``ports`` reopen a kept one."""
    program = find_oxia()
    if program is None:
        raise ServiceMissing(
            "there is no Oxia server here, and no package registry carries one",
            hint=f"put 'oxia' from the project oxia-db/oxia on PATH, or name it in {OXIA_VARIABLE}",
        )

    def start(home: Path, chosen: tuple[int, ...]) -> OxiaService:
        return OxiaService(program=program, home=home, ports=chosen, shards=shards, launch=launch)

    if directory is not None and ports is not None:
        return start(directory, ports)
    return start_afresh("oxia", start, port_count=2, directory=directory)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def _version(program: Path) -> str:
    ran = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S)
    found = re.search(r"version (\S+)", ran.stdout)
    if not found:
        raise ServiceFailed(f"{program} does not tell its version: {ran.stdout[:200]!r}")
    return found[1]
