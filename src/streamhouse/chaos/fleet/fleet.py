"""PostgreSQL, an S3 server and agents, all private to one run and on the loopback; both stores behind a proxy."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from streamhouse.chaos.fleet.agents import AgentProcess
from streamhouse.chaos.fleet.clocks import OwnClock, find_libfaketime
from streamhouse.chaos.fleet.disk import SmallDisk, why_no_disks
from streamhouse.chaos.fleet.proxy import Proxy
from streamhouse.chaos.options import AGENT_SETTINGS, FaultKind, Options
from streamhouse.core.errors import ServiceFailed
from streamhouse.testing.services.ports import free_ports
from streamhouse.testing.services.postgres import start_postgres
from streamhouse.testing.services.s3 import start_s3

_READY_S: Final = 120.0


class Fleet:
    """``skipped`` says which faults this machine cannot have, and why."""

    def __init__(self, options: Options, home: Path, *, logs: Path, interrupted: Callable[[], bool]) -> None:
        """``logs``: where the agents' logs are after the run."""
        self.skipped: dict[FaultKind, str] = {}
        self.agents: list[AgentProcess] = []
        self._options = options
        self._home = home
        self._logs = logs
        self._interrupted = interrupted
        self._stack = ExitStack()
        self.s3: Proxy
        self.database: Proxy
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(agent.address for agent in self.agents)

    def _start(self) -> None:
        postgres = self._stack.enter_context(start_postgres())
        s3 = self._stack.enter_context(start_s3())
        self.versions = {"PostgreSQL": postgres.version, s3.kind: s3.version}
        dsn, bucket = postgres.create_database(), s3.create_bucket()
        self.database = self._proxy(postgres.port)
        self.s3 = self._proxy(s3.ports[0])
        settings = {
            **AGENT_SETTINGS,
            "metadata.url": dsn.replace(f":{postgres.port}/", f":{self.database.port}/"),
            "store.url": f"s3://{bucket}/chaos",
            "store.endpoint_url": s3.endpoint_url.replace(f":{s3.ports[0]}", f":{self.s3.port}"),
            "store.region": s3.region,
            "store.access_key_id": s3.access_key,
            "store.secret_access_key": s3.secret_key,
            **self._options.settings,
        }
        disks, library = self._disks(), self._clocks()
        self._stack.callback(self._end_agents)
        for number, port in enumerate(free_ports(self._options.agent_count), 1):
            name = f"agent-{number}"
            data = self._home / name
            data.mkdir(parents=True)
            self.agents.append(
                AgentProcess(
                    name,
                    port=port,
                    home=self._home,
                    settings=settings,
                    disk=self._disk(data) if disks else None,
                    clock=OwnClock(library, self._home / f"{name}.clock") if library is not None else None,
                )
            )
        for agent in self.agents:
            agent.start()
        self.wait_ready(self._interrupted)
        if self._interrupted():
            raise KeyboardInterrupt

    def _proxy(self, port: int) -> Proxy:
        proxy = Proxy(port)
        self._stack.callback(proxy.stop)
        return proxy

    def _disks(self) -> bool:
        if FaultKind.DISK not in self._options.faults:
            return False
        reason = why_no_disks(self._home)
        if reason is not None:
            self.skipped[FaultKind.DISK] = reason
        return reason is None

    def _disk(self, directory: Path) -> SmallDisk:
        disk = SmallDisk(directory)
        self._stack.callback(disk.unmount)
        return disk

    def _clocks(self) -> Path | None:
        if FaultKind.CLOCK not in self._options.faults:
            return None
        library = find_libfaketime()
        if library is None:
            self.skipped[FaultKind.CLOCK] = "libfaketime is not installed"
        return library

    def wait_ready(self, interrupted: Callable[[], bool]) -> None:
        """Returns when every agent is ready, or at an interruption. Raises ServiceFailed when one ends or is late."""
        deadline_s = time.monotonic() + _READY_S
        while not all(agent.ready() for agent in self.agents) and not interrupted():
            ended = [agent for agent in self.agents if not agent.alive()]
            if ended or time.monotonic() > deadline_s:
                late = ended or [agent for agent in self.agents if not agent.ready()]
                what = "ended while it started" if ended else f"was not ready after {_READY_S:.0f} s"
                raise ServiceFailed(
                    f"{late[0].name} {what}; the end of its log:\n{late[0].log_tail()}\n",
                    hint=f"the whole log is in {self._logs / late[0].log_path.name}",
                )
            time.sleep(0.05)

    def _end_agents(self) -> None:
        for agent in self.agents:
            agent.kill()

    def keep_logs(self) -> None:
        for agent in self.agents:
            if agent.log_path.exists():
                shutil.copy(agent.log_path, self._logs / agent.log_path.name)


def names(agents: Sequence[AgentProcess]) -> list[str]:
    return [agent.name for agent in agents]
