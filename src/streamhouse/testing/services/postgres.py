"""A private PostgreSQL server: its own cluster, on a free loopback port, in a directory that goes away with it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from streamhouse.core.errors import ServiceFailed
from streamhouse.core.randomness import SystemRandomness
from streamhouse.testing.services.binaries import PostgresBinaries, find_postgres
from streamhouse.testing.services.ports import LOOPBACK
from streamhouse.testing.services.process import (
    Launch,
    RunAs,
    ServerCommand,
    ServerProcess,
    SupervisedProcess,
    process_exists,
    reachable,
    unprivileged_user,
    wait_ready,
    wait_until,
)
from streamhouse.testing.services.service import Service, start_afresh

USER = "streamhouse"
MAX_CONNECTIONS = 200  # the contract suite's contenders, with pools of their own, stay under it
_START_TIMEOUT_MS = 60_000
_TOOL_TIMEOUT_S = 120
_MAX_SOCKET_PATH_BYTES = 107  # sun_path's size on Linux, less its closing zero


class PostgresService(Service):
    """A running server. Made by ``start_postgres``."""

    def __init__(
        self,
        *,
        binaries: PostgresBinaries,
        directory: Path,
        port: int,
        run_as: RunAs | None,
        durable: bool,
        launch: Launch,
    ) -> None:
        self._binaries = binaries
        self._directory = directory
        self._run_as = run_as
        self._launch = launch
        self.port = port
        self.dsn = f"postgresql://{USER}@{LOOPBACK}:{port}/{USER}"
        self._command = ServerCommand(
            argv=(str(binaries.directory / "postgres"), "-D", str(directory / "data")),
            directory=directory,
            log_path=directory / "log",
            # "Immediate" loses nothing that matters here and takes milliseconds; a durable server closes in order.
            stop_signal=signal.SIGINT if durable else signal.SIGQUIT,
            run_as=run_as,
        )
        self.process = self._start()
        try:
            if USER not in self._databases():
                self.psql(f"CREATE DATABASE {USER}", dsn=self._maintenance_dsn)
            self.version = self.psql("SHOW server_version", options=("-At",)).split()[0]
        except BaseException:
            self.process.stop(keep=True)
            raise

    @property
    def _maintenance_dsn(self) -> str:
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/postgres"

    def _start(self) -> ServerProcess:
        process = self._launch(self._command)
        try:
            wait_ready(
                "PostgreSQL", process, self._command, lambda: self._ready(process.pid), timeout_ms=_START_TIMEOUT_MS
            )
        except BaseException:
            process.stop(keep=True)
            raise
        return process

    def _ready(self, pid: int) -> bool:
        """The server itself writes when it is ready: line 8 of its pid file."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            lines = (self._directory / "data" / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == pid and lines[7].strip() == "ready"
        return False

    def _databases(self) -> list[str]:
        return self.psql("SELECT datname FROM pg_database", dsn=self._maintenance_dsn, options=("-At",)).split()

    def create_database(self, template: str | None = None) -> str:
        """A fresh database, copied from the one that ``template`` (a DSN or a name) is; returns its DSN."""
        name = f"db_{SystemRandomness().uuid().hex[:16]}"
        source = f' TEMPLATE "{_database_name(template)}"' if template else ""
        self.psql(f'CREATE DATABASE "{name}"{source}', dsn=self._maintenance_dsn)
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{name}"

    def drop_database(self, dsn: str) -> None:
        """Drop it, even if clients are still connected."""
        self.psql(f'DROP DATABASE IF EXISTS "{_database_name(dsn)}" WITH (FORCE)', dsn=self._maintenance_dsn)

    def psql(self, sql: str | Path, *, dsn: str | None = None, options: Sequence[str] = ()) -> str:
        """Run the real psql on a script (text, or a file) and return what it prints. Stops at the first error."""
        script = sql.read_text() if isinstance(sql, Path) else sql
        argv = [str(self._binaries.psql), "-X", "-q", "-v", "ON_ERROR_STOP=1", *options, "-f", "-", dsn or self.dsn]
        ran = subprocess.run(
            argv,
            input=script,
            text=True,
            capture_output=True,
            timeout=_TOOL_TIMEOUT_S,
            env=self._command.full_environment() | {"PGCLIENTENCODING": "UTF8"},
        )
        if ran.returncode != 0:
            raise ServiceFailed(f"psql failed: {ran.stderr.strip()}")
        return ran.stdout

    def restart(self, *, crash: bool = True) -> None:
        """Stop and start on the same port and data: as after kill -9 of every process, or (not ``crash``) in order."""
        if crash:
            self.kill()
        self.process.stop(keep=True)
        self.process = self._start()

    def kill(self) -> None:
        """kill -9 of the server and all its sessions; ``restart`` brings it back."""
        pids = [self.process.pid, *_children(self.process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(process_exists(pid) for pid in pids), timeout_ms=5_000)


def start_postgres(
    *, durable: bool = False, directory: Path | None = None, port: int | None = None, launch: Launch = SupervisedProcess
) -> PostgresService:
    """Start a private server. ``durable`` turns fsync on; ``directory`` and ``port`` reopen a cluster kept before."""
    binaries = find_postgres()
    run_as = unprivileged_user()

    def start(home: Path, ports: tuple[int, ...]) -> PostgresService:
        programs = _reachable_binaries(binaries, home, run_as)
        if not (home / "data" / "PG_VERSION").exists():
            _initialise(programs, home, run_as, durable=durable)
        _configure(home, port=ports[0], durable=durable)
        return PostgresService(
            binaries=programs, directory=home, port=ports[0], run_as=run_as, durable=durable, launch=launch
        )

    if directory is not None and port is not None:
        return start(directory, (port,))
    return start_afresh("postgres", start, port_count=1, run_as=run_as, directory=directory)


def _initialise(binaries: PostgresBinaries, home: Path, run_as: RunAs | None, *, durable: bool) -> None:
    argv = [str(binaries.directory / "initdb"), "-D", str(home / "data"), "-U", USER, "-A", "trust", "-E", "UTF8"]
    argv += ["--no-locale"] if durable else ["--no-locale", "--no-sync"]
    ran = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=_TOOL_TIMEOUT_S,
        cwd=home,
        user=run_as.uid if run_as else None,
        group=run_as.gid if run_as else None,
        extra_groups=() if run_as else None,
    )
    if ran.returncode != 0:
        raise ServiceFailed(f"initdb failed: {ran.stderr.strip() or ran.stdout.strip()}")


def _configure(home: Path, *, port: int, durable: bool) -> None:
    longest_socket = home / f".s.PGSQL.{port}"
    socket_directory = str(home) if len(os.fsencode(longest_socket)) <= _MAX_SOCKET_PATH_BYTES else ""
    settings = {
        "listen_addresses": LOOPBACK,
        "port": str(port),
        "unix_socket_directories": socket_directory,
        "max_connections": str(MAX_CONNECTIONS),
        # fsync off survives a killed server (the kernel keeps the pages), not a machine that loses power.
        # synchronous_commit stays on either way: fault tests kill the server and expect what it acknowledged.
        "fsync": "on" if durable else "off",
        "full_page_writes": "on" if durable else "off",
        "synchronous_commit": "on",
        "shared_buffers": "64MB",
        "lc_messages": "C",
    }
    text = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
    (home / "data" / "streamhouse.conf").write_text(text)
    main = home / "data" / "postgresql.conf"
    include = "include 'streamhouse.conf'\n"
    if include not in main.read_text():
        with main.open("a") as file:
            file.write(include)
    os.chmod(home / "data" / "streamhouse.conf", 0o644)


def _reachable_binaries(binaries: PostgresBinaries, home: Path, run_as: RunAs | None) -> PostgresBinaries:
    """Copy a wheel inside root's private home directory, which is closed to the server's user, to where it can run."""
    if reachable(binaries.directory, run_as):
        return binaries
    # Its libraries lie beside the package, found by relative paths: the tree is copied as it is.
    package = binaries.directory.parent.parent
    if not (home / "programs").exists():
        for source in (package, *package.parent.glob(f"{package.name}.libs")):
            shutil.copytree(source, home / "programs" / source.name, symlinks=True)
    directory = home / "programs" / binaries.directory.relative_to(package.parent)
    return PostgresBinaries(directory=directory, psql=directory / binaries.psql.name, source=binaries.source)


def _database_name(dsn_or_name: str) -> str:
    name = dsn_or_name.rpartition("/")[2].partition("?")[0]
    if not re.fullmatch(r"[A-Za-z0-9_]{1,63}", name):
        raise ServiceFailed(f"{dsn_or_name!r} names no database")
    return name


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
