"""What compaction, retention and vacuum need: cursors, replaced entries, log starts, object references, claims.

Rules R6, R7 and R24 live here. An object is *referenced* while an entry, a pending compaction or a sink intent names
it. When its last reference goes, the store notes when (``dereferenced_at``), and grace counts from there. An object
that was uploaded but never committed has no record at all.

Vacuum makes its calls in this order:

1. list the object store: keys and their creation stamps;
2. ``raise_gc_horizon``: from here on, no commit can name an object that is stamped below it;
3. ``find_unreferenced`` (of what was listed) and ``list_dereferenced``: what nothing names, read after step 2;
4. delete from the object store;
5. ``forget_objects``.

References alone do not make garbage: one partition's commit of a shared object may still be under way when another
partition's entry of the same object is dropped. So steps 3 and 5 look at the horizon *as it stands in every partition*
and pass over every object that is not stamped below it. A vacuum that leaves step 2 out, or does it late, deletes less
and never too much. When step 4 or 5 fails, the next vacuum finds the same objects again.

Atomicity asked of a backend: one partition per call; a compaction may take several steps as long as each is idempotent
and the pending record tells any process how to go on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract.log import Entry, ObjectRef
from streamhouse.metadata.contract.topics import PartitionState


class CompactionState(StrEnum):
    """How far a compaction is. A backend with transactions does all in one step and shows only the first."""

    WRITING_COMPACTED_INDEX = "WRITING_COMPACTED_INDEX"
    DELETING_OLD = "DELETING_OLD"
    UPDATING_CURSOR = "UPDATING_CURSOR"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSource:
    """An entry that the compaction replaces, as it was when the plan was made."""

    base_offset: int
    end_offset: int
    object_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """Replace consecutive ``sources`` by one COMPACTED ``target`` that covers exactly the same offsets.

    The last source's base offset lets recovery tell the entry it must overwrite from any other at that end.
    """

    key: PartitionKey
    compaction_id: UUID
    sources: tuple[CompactionSource, ...]
    target: Entry
    object: ObjectRef
    state: CompactionState = CompactionState.WRITING_COMPACTED_INDEX


class CompactionVerdict(StrEnum):
    APPLIED = "applied"
    ALREADY = "already"
    """An earlier call had done it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DereferencedObject:
    key: str
    size_bytes: int
    dereferenced_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingObjects:
    """Dereferenced objects that a vacuum may not delete yet, as sums."""

    objects: int = 0
    size_bytes: int = 0
    pinned_objects: int = 0
    """Those that a live pin keeps."""
    pinned_bytes: int = 0
    last_dereferenced_ms: int = 0
    """When the last of them was dereferenced; 0 if there is none."""
    last_created_ms: int = 0
    """The latest creation stamp among them; 0 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim says who works on something at present. It is for scheduling only: safety never depends on it."""

    name: str
    owner: str
    claimed_at_ms: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A row by which a reader keeps the objects that were referenced when it began from being deleted."""

    pin_id: UUID
    owner: str
    created_at_ms: int
    expires_at_ms: int


class Maintenance(ABC):
    @abstractmethod
    async def begin_compaction(self, compaction: Compaction) -> Compaction:
        """Record it as pending; from here its object is referenced. One per partition. Repeatable with the same id,
        even when that one has been the last applied: it is returned, and applying it again says ALREADY.

        Raises CompactionConflict when another is pending, when the sources are not exactly the present entries of that
        range, when the object is older than the GC horizon, or when the target has fewer records than offsets and ends
        at the watermark (the newest entry is never key-compacted, R18); PartitionNotFound; InvalidRequest when the
        target does not cover exactly what the sources cover, is not COMPACTED, or cannot be: more records than offsets,
        bytes beyond its object, an epoch or times that no entry has.
        """

    @abstractmethod
    async def get_compaction(self, key: PartitionKey) -> Compaction | None: ...

    @abstractmethod
    async def list_compactions(self) -> list[Compaction]:
        """Return all pending compactions, in the order of their keys."""

    @abstractmethod
    async def apply_compaction(self, key: PartitionKey, compaction_id: UUID) -> CompactionVerdict:
        """Replace the sources by the target, dereference their objects, move the cursor to the target's end + 1 if the
        range began at or below it (never back), and clear the record. The horizon was judged when it began: its object
        has been referenced since. Repeatable: ALREADY when that compaction was the last applied.

        Raises CompactionConflict when it is not pending and was not the last applied (aborted, or another's), or when
        the entries are no longer the recorded sources (the record is then cleared); PartitionNotFound.
        """

    @abstractmethod
    async def abort_compaction(self, key: PartitionKey, compaction_id: UUID) -> bool:
        """Clear the record of a compaction and dereference its object. Returns False when it was not pending."""

    @abstractmethod
    async def advance_log_start(self, key: PartitionKey, offset: int) -> PartitionState:
        """Raise the log start (never lower it; at most to the watermark), abort a pending compaction that reaches below
        it, then drop the entries wholly below it, dereferencing their objects. A compaction cursor left below the first
        entry follows to its base (to the watermark when none is left): compaction begins exactly there. Raises
        PartitionNotFound.

        All but the dropping is one step. That takes as many bounded ones as the log is long, others' writes going on
        between them; what is not dropped yet is absent already for every lookup, scan and compaction. A call that was
        interrupted is finished by any later one, also by one that finds the log start at its place.
        """

    @abstractmethod
    async def purge_deleted_topics(self, *, limit: int) -> int:
        """Drop up to ``limit`` entries of topics that are gone, dereferencing their objects; 0 means none are left."""

    @abstractmethod
    async def raise_gc_horizon(self, horizon_ms: int) -> int:
        """Raise it store-wide and in every partition, for new partitions too; never lowers. Returns what stands now.
        Never beyond the store's clock: from there on every object would be stale, however new, and nothing could be
        written. Raises InvalidRequest below 0.

        When it returns, no commit, compaction or intent with an object stamped below it can succeed any more (R6).
        """

    @abstractmethod
    async def find_unreferenced(self, stamps: Mapping[str, int]) -> set[str]:
        """The keys that vacuum may delete, of the objects in ``stamps`` (key → creation stamp, as in the key): stamped
        below the GC horizon of every partition, never referenced. What was dereferenced belongs to
        ``list_dereferenced``. Looks at intents and compactions before entries (R7, R24).
        """

    @abstractmethod
    async def list_dereferenced(self, *, grace_ms: int, limit: int) -> list[DereferencedObject]:
        """Objects whose last reference went more than ``grace_ms`` ago and before the creation of every live pin (R7),
        and that are stamped below the GC horizon of every partition: no commit can name them any more (R24).

        Oldest first. What was dereferenced after a live pin's creation stays.
        """

    @abstractmethod
    async def sum_waiting_objects(self, *, writer_grace_ms: int, reader_grace_ms: int, limit: int) -> WaitingObjects:
        """Add up the dereferenced objects that have to stay for now: dereferenced within the readers' grace or after a
        live pin's creation, or stamped within the writers' grace. The ``limit`` oldest of them."""

    @abstractmethod
    async def forget_objects(self, keys: Sequence[str]) -> set[str]:
        """Drop the records of objects that were deleted from the store, and return whose were dropped. A record stays
        while the object is referenced, or while a commit could still name it (R24).
        """

    @abstractmethod
    async def create_pin(self, pin_id: UUID, *, owner: str, ttl_ms: int) -> Pin:
        """Repeatable with the same id, which keeps its creation time. Pin first, list entries afterwards.

        Under the id of an expired pin it is a new one, created now.
        """

    @abstractmethod
    async def renew_pins(self, pin_ids: Sequence[UUID], *, ttl_ms: int) -> set[UUID]:
        """Extend those that are still live and return them; an expired pin cannot come back."""

    @abstractmethod
    async def release_pins(self, pin_ids: Sequence[UUID]) -> int: ...

    @abstractmethod
    async def list_pins(self) -> list[Pin]:
        """The live ones, oldest first."""

    @abstractmethod
    async def acquire_claim(self, name: str, *, owner: str, ttl_ms: int) -> Claim:
        """The claim as it stands: mine if it was free, expired or already mine (then extended, ``claimed_at`` kept),
        else the other owner's.
        """

    @abstractmethod
    async def release_claim(self, name: str, *, owner: str) -> bool: ...

    @abstractmethod
    async def list_claims(self, prefix: str = "") -> list[Claim]:
        """The live ones, by name."""
