"""Servers that a person starts and stops by hand: what ``make services-up`` leaves running, and how it is found again.

    .services/
      state.json      what runs: pids and their start marks, ports, directories, the environment to export
      …               the servers' data, kept between down and up unless purged

A server whose user cannot reach this directory (below root's home, for one) keeps its data in the temporary directory;
state.json says where.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from streamhouse.core.errors import ServiceFailed
from streamhouse.testing.services.binaries import find_oxia
from streamhouse.testing.services.oxia import start_oxia
from streamhouse.testing.services.ports import is_free
from streamhouse.testing.services.postgres import start_postgres
from streamhouse.testing.services.process import (
    DetachedProcess,
    RunAs,
    ServerProcess,
    launch_detached,
    make_directory,
    unprivileged_user,
)
from streamhouse.testing.services.s3 import start_s3, wanted_kind

BUCKET = "streamhouse"
POSTGRES, S3, OXIA = "postgres", "s3", "oxia"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """One line of the state file."""

    name: str
    version: str
    pid: int
    started: str
    stop_signal: int
    directory: str
    strays: tuple[str, ...]
    ports: tuple[int, ...]
    environment: dict[str, str]

    def process(self) -> DetachedProcess:
        return DetachedProcess(
            pid=self.pid,
            started=self.started,
            directory=Path(self.directory),
            stop_signal=self.stop_signal,
            strays=tuple(Path(stray) for stray in self.strays),
        )


class DetachedServices:
    """The servers that belong to one ``.services`` directory."""

    def __init__(self, home: Path, *, report: Callable[[str], None]) -> None:
        self._home = home.resolve()
        self._state = self._home / "state.json"
        self._report = report

    def up(self) -> dict[str, str]:
        """Start what does not run; returns the environment to export."""
        with self._locked():
            records = self._read()
            for kind, start in self._wanted():
                old = records.get(kind)
                if old and old.process().alive():
                    _check_kind(kind, old)
                    self._report(f"{old.name} {old.version} runs already (pid {old.pid}, port {old.ports[0]})")
                    continue
                records[kind] = start(old)
                self._write(records)
                new = records[kind]
                self._report(f"{new.name} {new.version} started (pid {new.pid}, port {new.ports[0]})")
            return _environment(records)

    def _wanted(self) -> Iterator[tuple[str, Callable[[ServerRecord | None], ServerRecord]]]:
        yield POSTGRES, self._start_postgres
        yield S3, self._start_s3
        if find_oxia():
            yield OXIA, self._start_oxia

    def down(self, *, purge: bool) -> None:
        with self._locked():
            records = self._read()
            for record in records.values():
                running = record.process().alive()
                record.process().stop(keep=not purge)
                self._report(f"{record.name} {'stopped' if running else 'was not running'}")
            if purge:
                shutil.rmtree(self._home, ignore_errors=True)
                self._report("data deleted")

    def status(self) -> bool:
        """Report every server; true when PostgreSQL and S3 run."""
        records = self._read()
        for kind in {POSTGRES: 1, S3: 1, **records}:
            record = records.get(kind)
            if record is None:
                self._report(f"{kind}: never started")
            elif record.process().alive():
                self._report(f"{record.name} {record.version}: runs, pid {record.pid}, port {record.ports[0]}")
            else:
                self._report(f"{record.name}: stopped; data in {record.directory}")
        return self._all_run(records)

    def environment(self) -> dict[str, str]:
        records = self._read()
        if not self._all_run(records):
            raise ServiceFailed("the services do not run", hint="start them with make services-up")
        return _environment(records)

    def _all_run(self, records: dict[str, ServerRecord]) -> bool:
        return all(kind in records and records[kind].process().alive() for kind in (POSTGRES, S3))

    def _start_postgres(self, old: ServerRecord | None) -> ServerRecord:
        directory = self._directory(POSTGRES, old, unprivileged_user())
        ports = _reusable_ports(old)
        service = start_postgres(
            durable=True, directory=directory, port=ports[0] if ports else None, launch=launch_detached
        )
        environment = {"STREAMHOUSE_METADATA_URL": service.dsn}
        return _record("PostgreSQL", service.version, service.process, directory, (service.port,), environment)

    def _start_s3(self, old: ServerRecord | None) -> ServerRecord:
        wanted = wanted_kind()
        if old and old.name.lower() != wanted:
            old = None
        directory = self._directory(wanted, old, None)
        service = start_s3(directory=directory, ports=_reusable_ports(old), launch=launch_detached)
        bucket = service.create_bucket(BUCKET)
        settings = {"STREAMHOUSE_STORE_URL": f"s3://{bucket}/", "STREAMHOUSE_STORE_PATH_STYLE": "true"}
        environment = {**settings, **service.environment()}
        return _record(service.kind, service.version, service.process, directory, service.ports, environment)

    def _start_oxia(self, old: ServerRecord | None) -> ServerRecord:
        directory = self._directory(OXIA, old, None)
        service = start_oxia(directory=directory, ports=_reusable_ports(old), launch=launch_detached)
        # Nothing to export yet: no setting names an Oxia server before its backend is there.
        return _record("Oxia", service.version, service.process, directory, service.ports, {})

    def _directory(self, name: str, old: ServerRecord | None, run_as: RunAs | None) -> Path:
        if old and Path(old.directory).is_dir():
            return Path(old.directory)
        return make_directory(name, run_as, parent=self._home)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._home.mkdir(parents=True, exist_ok=True)
        with open(self._home / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._home.mkdir(exist_ok=True)  # the process that held the lock may have purged it
            yield

    def _read(self) -> dict[str, ServerRecord]:
        if not self._state.exists():
            return {}
        try:
            stored = json.loads(self._state.read_text())
            return {kind: ServerRecord(**{**row, "ports": tuple(row["ports"])}) for kind, row in stored.items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ServiceFailed(f"{self._state} is not readable: {error}", hint="delete it") from error

    def _write(self, records: dict[str, ServerRecord]) -> None:
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps({kind: asdict(record) for kind, record in records.items()}, indent=2) + "\n")
        fresh.replace(self._state)


def _reusable_ports(old: ServerRecord | None) -> tuple[int, ...] | None:
    """The ports of the last time keep an exported environment true, unless another process has taken one since."""
    return old.ports if old and all(is_free(port) for port in old.ports) else None


def _check_kind(kind: str, running: ServerRecord) -> None:
    if kind == S3 and running.name.lower() != wanted_kind():
        raise ServiceFailed(
            f"{running.name} runs already, and S3={wanted_kind()} asks for another server", hint="make services-down"
        )


def _record(
    name: str,
    version: str,
    process: ServerProcess,
    directory: Path,
    ports: tuple[int, ...],
    environment: dict[str, str],
) -> ServerRecord:
    assert isinstance(process, DetachedProcess)
    return ServerRecord(
        name=name,
        version=version,
        pid=process.pid,
        started=process.started,
        stop_signal=process.stop_signal,
        directory=str(directory),
        strays=tuple(str(stray) for stray in process.strays),
        ports=ports,
        environment=environment,
    )


def _environment(records: dict[str, ServerRecord]) -> dict[str, str]:
    return {name: value for record in records.values() for name, value in record.environment.items()}
