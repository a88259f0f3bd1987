"""Faults that a storm is expected to find, each put into the platform by the processes of a run with MUTANT=name.

They show that the storm can fail. Nothing of them is in a run without a name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from streamhouse.maintenance.key_compaction import compactor as key_compactor
from streamhouse.maintenance.key_compaction.thinning import KeepRule
from streamhouse.maintenance.upkeep import Upkeep
from streamhouse.maintenance.vacuum import vacuum
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.rows import compactions
from streamhouse.metadata.rows.objects import ObjectRows

_GRACE: Final = "o.dereferenced_at < (SELECT sh_now_ms()) - $1::bigint"


class _Rewritten:
    """A store that rewrites the text of one query."""

    def __init__(self, inner: Any, old: str, new: str) -> None:
        self._inner, self._old, self._new = inner, old, new

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _fetch(self, query: str, *arguments: Any) -> Any:
        assert self._old in query, query
        return await self._inner._fetch(query.replace(self._old, self._new), *arguments)


def put_in(owner: Any, name: str, new: Any) -> None:
    """Replace what a module or a class has under this name."""
    assert hasattr(owner, name), name
    setattr(owner, name, new)


def _rewrite_dereferenced(old: str, new: str) -> None:
    ask = ObjectRows.list_dereferenced

    async def mutated(self: Any, **named: Any) -> Any:
        return await ask(_Rewritten(self, old, new), **named)  # type: ignore[arg-type]

    put_in(ObjectRows, "list_dereferenced", mutated)


def grace_from_creation() -> None:
    """R7: the grace of readers counts from the creation of an object, not from the end of its last reference."""
    _rewrite_dereferenced(_GRACE, _GRACE.replace("dereferenced_at", "created_at"))
    _widen_vacuums()


def upkeep_without_grace() -> None:
    """R7: the vacuum of the agent's upkeep gives readers no grace. Others do."""
    made = Upkeep.vacuum_once

    async def mutated(self: Any) -> bool:
        options = self._options.vacuum
        if options.reader_grace_ms:
            object.__setattr__(options, "reader_grace_ms", 0)  # past the check of the shortest grace
        return await made(self)

    put_in(Upkeep, "vacuum_once", mutated)


def _widen_vacuums() -> None:
    """A vacuum counts the grace by itself, too: lets it take whatever the metadata store has listed."""
    delete = Vacuum._delete_dereferenced

    async def mutated(self: Any, *, before_ms: int) -> None:
        await delete(self, before_ms=before_ms + self._options.reader_grace_ms)

    put_in(Vacuum, "_delete_dereferenced", mutated)


def pins_ignored() -> None:
    """R7: what was dereferenced under a live pin goes when the grace has passed."""
    _rewrite_dereferenced("p.expires_at > (SELECT sh_now_ms())", "false")


def horizon_past_pins() -> None:
    """R6: the horizon passes live pins, under which writers upload for long."""
    put_in(vacuum, "horizon_of", lambda now_ms, writer_grace_ms, pins: max(0, now_ms - writer_grace_ms))


def references_not_read() -> None:
    """R24: whatever is listed and old is deleted, referenced or not."""

    async def mutated(self: Any, stamps: Any) -> set[str]:
        return set(stamps)

    put_in(ObjectRows, "find_unreferenced", mutated)


def sources_not_compared() -> None:
    """R17: a compaction replaces the entries of its range whatever they are by now."""

    async def mutated(tx: Any, compaction: Any) -> bool:
        return True

    put_in(compactions, "_sources_stand", mutated)


def tombstones_at_once() -> None:
    """Key compaction drops tombstones without keeping them for delete.retention.ms."""

    def mutated(*, newer: Any, now_ms: int, delete_retention_ms: int) -> KeepRule:
        return KeepRule(newer=newer, now_ms=now_ms, delete_retention_ms=0)

    put_in(key_compactor, "KeepRule", mutated)


MUTANTS: Final[dict[str, Callable[[], None]]] = {
    made.__name__: made
    for made in (
        grace_from_creation,
        upkeep_without_grace,
        pins_ignored,
        horizon_past_pins,
        references_not_read,
        sources_not_compared,
        tombstones_at_once,
    )
}
