"""Processes of a storm. Each is forked from a server that has imported everything, so that a start takes milliseconds.

The server is a process of its own without threads or open stores, so a fork of it is sound. A child dies with the
server, and the server with the test run.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PRELOADED: Final = [
    "storm_agent",
    "storm_end",
    "storm_prepared",
    "storm_going_reader",
    "storm_writers",
    "streamhouse.metadata.postgres.store",
    "asyncpg",
]


class ChildFailed(AssertionError):
    """A process of the test ended with an error, which is its text."""


class KilledBySignal(Exception):
    """The process was killed before it had an answer."""


@cache
def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def in_child(work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Run it in a process of its own and return its answer. Raises KilledBySignal, ChildFailed."""
    context = _forks()
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, work, arguments))
    child.start()
    theirs.close()
    try:
        answer, error = ours.recv()
    except EOFError:
        child.join()
        if child.exitcode == -signal.SIGKILL:
            raise KilledBySignal from None
        raise ChildFailed(f"{work.__name__} ended with exit code {child.exitcode}") from None
    finally:
        ours.close()
        child.join()
    if error:
        raise ChildFailed(error)
    return answer


async def nothing() -> None:
    """What ``in_child`` takes for this is the time in which this machine starts and ends a process."""


class Role:
    """A process that works until it is killed. Each of its lives has a number.

    One that ends by itself leaves its error in ``log``.
    """

    def __init__(self, name: str, work: Callable[..., Awaitable[None]], *arguments: Any, log: Path) -> None:
        self.name = name
        self.lives = 0
        self.kills = 0
        self._work = work
        self._arguments = arguments
        self._log = log
        self._child: BaseProcess | None = None

    def start(self) -> None:
        self.lives += 1
        self._child = _forks().Process(
            target=_live, args=(self._log, f"{self.name}.{self.lives}", self._work, (*self._arguments, self.lives))
        )
        self._child.start()

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.is_alive()

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        if self._child is not None:
            self.kills += self._child.is_alive()
            self._child.kill()
            self._child.join()
            self._child.close()
            self._child = None


def _answer(to: Connection, work: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
    _die_with_the_server()
    try:
        answer, error = asyncio.run(_plain(work, arguments)), ""
    except BaseException:
        answer, error = None, traceback.format_exc()
    to.send((answer, error))


def _live(log: Path, name: str, work: Callable[..., Awaitable[None]], arguments: tuple[Any, ...]) -> None:
    _die_with_the_server()
    try:
        asyncio.run(_plain(work, arguments))
    except BaseException:
        with log.open("a") as file:
            file.write(f"--- {name} ended:\n{traceback.format_exc()}")


async def _plain(work: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> Any:
    return await work(*arguments)


def _die_with_the_server() -> None:
    """The server ends when no process has its pipe open any more: a child that kept it would keep the server alive."""
    server: Any = forkserver._forkserver
    os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(KeyError):
        del os.environ["PYTHONPATH"]
