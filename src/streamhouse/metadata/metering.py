"""Times every call of a metadata store: ``metered(store, meter)`` is the same store, with a clock on it.

Each method of the contract that is awaited counts under its name. The time is that of the whole call, with the
backend's own retries. Nothing that passes through is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, Final, cast

from streamhouse.core.errors import MetadataError, StreamHouseError
from streamhouse.core.metrics import Latency
from streamhouse.metadata.contract import MetadataStore

_CALLS: Final = frozenset(
    name
    for name in dir(MetadataStore)
    if not name.startswith("_") and iscoroutinefunction(getattr(MetadataStore, name))
)


@dataclass(slots=True)
class MetadataMeter:
    latency: dict[str, Latency] = field(default_factory=dict)
    """The latency of each call that was made, by its name."""
    errors: dict[str, int] = field(default_factory=dict)


def metered(store: MetadataStore, meter: MetadataMeter) -> MetadataStore:
    return cast("MetadataStore", _Metered(store, meter))


class _Metered:
    """Has no methods of its own, so that a call that is added to the contract is timed too."""

    def __init__(self, store: MetadataStore, meter: MetadataMeter) -> None:
        self._store = store
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in _CALLS:
            found = self._timed(name, found)
            setattr(self, name, found)  # the next look-up finds it at once
        return found

    def _timed(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        latency = self._meter.latency.setdefault(name, Latency())
        errors = self._meter.errors

        async def timed(*args: Any, **kwargs: Any) -> Any:
            time = asyncio.get_running_loop().time
            began_s = time()
            try:
                return await call(*args, **kwargs)
            except BaseException as error:
                # "There is no such topic" is an answer; an error of the store, a time-out or a bug is none.
                if isinstance(error, MetadataError) or not isinstance(error, StreamHouseError):
                    errors[name] = errors.get(name, 0) + 1
                raise
            finally:
                latency.observe(time() - began_s)

        return timed
