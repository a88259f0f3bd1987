"""What every private server has in common: it runs, it is stopped, and its start may have to be tried again."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from streamhouse.testing.services.ports import free_ports
from streamhouse.testing.services.process import RunAs, ServerEnded, ServerProcess, make_directory

_START_ATTEMPTS = 3  # another process may take a port between our look and the server's bind


class Stoppable(ABC):
    """A running service: a context manager that stops it."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it and remove its directories. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class Service(Stoppable):
    """A running server."""

    process: ServerProcess

    def stop(self) -> None:
        self.process.stop()


S = TypeVar("S", bound=Service)


def start_afresh(
    name: str,
    start: Callable[[Path, tuple[int, ...]], S],
    *,
    port_count: int,
    run_as: RunAs | None = None,
    directory: Path | None = None,
) -> S:
    """Start in ``directory``, or in a fresh one that a failed start leaves nothing of, on ports free just now."""
    for attempt in range(1, _START_ATTEMPTS + 1):
        home = directory or make_directory(name, run_as)
        try:
            return start(home, free_ports(port_count))
        except BaseException as error:
            if directory is None:
                shutil.rmtree(home, ignore_errors=True)
            if attempt == _START_ATTEMPTS or not isinstance(error, ServerEnded):
                raise
    raise AssertionError("the loop returns or raises")
