"""Calls of the contract on SQLite: how a step becomes a method, and how it is repeated while the file is locked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, overload

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.rows.layer import RowStore, Step
from streamhouse.metadata.sqlite.connections import Busy
from streamhouse.metadata.sqlite.dialect import SqliteRowTx, run_now
from streamhouse.metadata.sqlite.engine import Engine
from streamhouse.metadata.sqlite.transactions import Tx

P = ParamSpec("P")
T = TypeVar("T")

_BACKOFF: Final = Backoff(first_ms=5, longest_ms=250)


class Shell(RowStore):
    """Runs steps on the engine. A step that finds the file locked by another process runs again, until a deadline."""

    def __init__(self, engine: Engine, randomness: Randomness, *, retry_deadline_ms: int) -> None:
        self._engine = engine
        self._randomness = randomness
        self._retry_deadline_ms = retry_deadline_ms

    async def _write(self, step: Callable[[Tx], T]) -> T:
        return await self._until_free(lambda: self._engine.write(step))

    async def _read(self, step: Callable[[Tx], T]) -> T:
        return await self._until_free(lambda: self._engine.read(step))

    async def _query(self, step: Step[T]) -> T:
        return await self._read(lambda tx: run_now(step(SqliteRowTx(tx))))

    async def _transact(self, step: Step[T]) -> T:
        return await self._write(lambda tx: run_now(step(SqliteRowTx(tx))))

    async def _statement(self, step: Step[T]) -> T:
        return await self._transact(step)

    async def _until_free(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Measured by the event loop's time: the pauses are made of it, in a simulation too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._retry_deadline_ms / 1000
        tries = 0
        while True:
            try:
                return await attempt()
            except Busy as busy:
                tries += 1
                pause_s = _BACKOFF.pause_s(tries, self._randomness)
                if loop.time() + pause_s > deadline:
                    raise MetadataUnavailable(
                        f"{busy.message} (gave up after {self._retry_deadline_ms} ms)",
                        hint="see which process holds it; the call may be repeated",
                    ) from busy
            await asyncio.sleep(pause_s)


class _Call(Generic[P, T]):
    """A descriptor that makes a method of a step, which is a synchronous function that takes the transaction first:

        acquire_leases = write(leases.acquire_leases)

    The method has the step's signature without the transaction, and is awaited. It hands copies of lists and mappings
    on: a cancelled call continues in its thread, and its caller may change its own meanwhile.
    """

    def __init__(self, step: Callable[Concatenate[Tx, P], T]) -> None:
        self.step = step
        self.__doc__ = step.__doc__

    @overload
    def __get__(self, store: None, owner: type) -> Self: ...

    @overload
    def __get__(self, store: Shell, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, store: Shell | None, owner: type) -> Self | Callable[P, Coroutine[Any, Any, T]]:
        if store is None:
            return self
        shell = store

        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            given: Any = [_copied(arg) for arg in args]
            named: Any = {name: _copied(arg) for name, arg in kwargs.items()}
            return await self._run(shell, lambda tx: self.step(tx, *given, **named))

        return call

    async def _run(self, shell: Shell, step: Callable[[Tx], T]) -> T:
        raise NotImplementedError


class write(_Call[P, T]):  # noqa: N801
    async def _run(self, shell: Shell, step: Callable[[Tx], T]) -> T:
        return await shell._write(step)


class read(_Call[P, T]):  # noqa: N801
    async def _run(self, shell: Shell, step: Callable[[Tx], T]) -> T:
        return await shell._read(step)


def _copied(argument: object) -> object:
    if isinstance(argument, list):
        return tuple(argument)
    return dict(argument) if isinstance(argument, dict) else argument
