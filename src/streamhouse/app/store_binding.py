"""Which object store a cluster's records are in, and whose records an object store holds: each is told of the other.

    object store   the object ``cluster-id``: the store's own id, and the cluster's
    metadata       a definition of kind ``object-store``: the store's id, and where it was found

Agents that share the metadata and not the objects would acknowledge records that no other agent can read; two clusters
in one object store could one day clean up each other's objects. Both are refused at the start, before anything is
written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from streamhouse.core.errors import DefinitionExists, ObjectExists, ObjectNotFound, StoreMisconfigured
from streamhouse.core.randomness import Randomness
from streamhouse.metadata.contract import MetadataStore, WantedState
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.keys import CLUSTER_ID_KEY

_KIND: Final = "object-store"
_NAME: Final = "objects"
_TITLE: Final = "streamhouse object store 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    store_id: UUID
    cluster_id: UUID

    def to_bytes(self) -> bytes:
        return f"{_TITLE}\n{self.store_id}\n{self.cluster_id}\n".encode("ascii")


async def bind_object_store(metadata: MetadataStore, objects: ObjectStore, *, randomness: Randomness) -> None:
    """Raises StoreMisconfigured where the two do not belong together."""
    cluster_id = (await metadata.cluster_info()).cluster_id
    known = await metadata.get_definition(_KIND, _NAME)
    mark = await _read(objects)
    if mark is None and known is None:
        mark = await _leave_mark(objects, _Mark(store_id=randomness.uuid(), cluster_id=cluster_id))
    if mark is not None and mark.cluster_id != cluster_id:
        raise StoreMisconfigured(
            f"the object store {objects.url} holds the records of cluster {mark.cluster_id}, and the metadata store is"
            f" that of cluster {cluster_id}",
            hint="check store.url and metadata.url; a new cluster needs an object store, or a prefix, of its own",
        )
    if known is None:
        assert mark is not None
        try:
            known = await metadata.create_definition(
                _KIND,
                _NAME,
                definition_id=mark.store_id,
                document=json.dumps({"url": objects.url}),
                wanted=WantedState.STOPPED,
            )
        except DefinitionExists:  # another process was quicker, with another store
            known = await metadata.get_definition(_KIND, _NAME)
            assert known is not None
    if mark is None or mark.store_id != known.definition_id:
        raise StoreMisconfigured(
            f"the object store {objects.url} is not the one that has this cluster's records; that was found at"
            f" {json.loads(known.document)['url']}",
            hint="set store.url to it: all agents of a cluster share one object store",
        )


async def _read(objects: ObjectStore) -> _Mark | None:
    try:
        found = bytes(await objects.get(CLUSTER_ID_KEY)).decode("ascii", "replace").split("\n")
    except ObjectNotFound:
        return None
    try:
        title, store_id, cluster_id, rest = found
        if title == _TITLE and not rest:
            return _Mark(store_id=UUID(store_id), cluster_id=UUID(cluster_id))
    except ValueError:
        pass
    raise StoreMisconfigured(
        f"the object {CLUSTER_ID_KEY} in {objects.url} does not say whose object store this is",
        hint="restore it from a copy, or use an object store that nothing else writes to",
    )


async def _leave_mark(objects: ObjectStore, mark: _Mark) -> _Mark | None:
    try:
        await objects.put(CLUSTER_ID_KEY, mark.to_bytes())
    except ObjectExists:  # another process was quicker, or our own first try came through after all
        return await _read(objects)
    return mark
