"""S3 (and whatever speaks it), GCS and Azure, by obstore. The only module that calls obstore's operations.

Every request is tried once: retries.py repeats, because only it can tell a lost reply from a refusal (R11). The one
exception is ``retrying``, a second client of obstore that itself repeats the requests for the parts of an upload.

``put`` is a single PUT with ``If-None-Match: *``, whatever the size: one request, atomic, nothing to clean up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from streamhouse.core.clock import Clock
from streamhouse.core.limits import MAX_LIST_PAGE
from streamhouse.core.randomness import Randomness
from streamhouse.objectstore.checks import check_body_size
from streamhouse.objectstore.cloud_upload import CloudUpload
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.failures import from_obstore
from streamhouse.objectstore.keys import StagingKey
from streamhouse.objectstore.objects import Fetched, ListPage, ObjectInfo
from streamhouse.objectstore.upload import Upload

if TYPE_CHECKING:
    from obstore import ObjectMeta

Client: TypeAlias = S3Store | GCSStore | AzureStore

_KEY_CHARACTERS: Final = "-.0123456789=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"


class CloudStore(ObjectStore):
    """Made by ``opening.open_store``. ``prefix`` is empty, or ends with a slash."""

    def __init__(
        self, *, client: Client, retrying: Client, url: str, prefix: str, clock: Clock, randomness: Randomness
    ) -> None:
        self._client = client
        self.retrying = retrying
        self._url = url
        self._prefix = prefix
        self._clock = clock
        self._randomness = randomness

    @property
    def url(self) -> str:
        return self._url

    async def close(self) -> None:
        """Connections belong to obstore's runtime, which closes them when they idle."""

    def path(self, key: str) -> str:
        return self._prefix + key

    @contextmanager
    def translated(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise from_obstore(error, f"{operation} of {key or 'the whole store'} in {self._url}") from error

    async def copy_if_absent(self, source: str, target: str) -> None:
        with self.translated("publishing", target):
            await obstore.copy_async(self._client, self.path(source), self.path(target), overwrite=False)

    async def _put(self, key: str, views: Sequence[memoryview], size_bytes: int) -> None:
        body = views[0] if len(views) == 1 else views
        with self.translated("put", key):
            await obstore.put_async(self._client, self.path(key), body, mode="create", use_multipart=False)

    async def _get(self, key: str) -> Fetched:
        with self.translated("get", key):
            answer = await obstore.get_async(self._client, self.path(key))
            size_bytes = answer.meta["size"]
            check_body_size(f"object {key}", size_bytes)
            return Fetched(data=memoryview(await answer.bytes_async()), size_bytes=size_bytes)

    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        with self.translated("get", key):
            answer = await obstore.get_async(self._client, self.path(key), options={"range": (offset, offset + length)})
            return Fetched(data=memoryview(await answer.bytes_async()), size_bytes=answer.meta["size"])

    async def _head(self, key: str) -> ObjectInfo:
        with self.translated("head", key):
            return self._info(await obstore.head_async(self._client, self.path(key)))

    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        """One LIST request. obstore's prefixes are folders; the rest of ours is matched here."""
        wanted = self._prefix + prefix
        folder = wanted[: wanted.rfind("/") + 1]
        after = max(self._prefix + (start_after or ""), _just_below(wanted) if wanted != folder else "")
        with self.translated("list", prefix):
            pages = obstore.list(
                self._client, folder or None, offset=after if after > folder else None, chunk_size=MAX_LIST_PAGE
            )
            found: Sequence[ObjectMeta] = await anext(aiter(pages), [])
        objects = [
            self._info(meta)
            for meta in found
            if meta["path"].startswith(wanted) and (start_after is None or meta["path"] > self._prefix + start_after)
        ]
        last = found[-1]["path"] if len(found) == MAX_LIST_PAGE else None
        passed = last is not None and last > wanted and not last.startswith(wanted)
        return ListPage(
            objects=objects, next_start_after=None if last is None or passed else last.removeprefix(self._prefix)
        )

    async def _delete(self, keys: Sequence[str]) -> None:
        with self.translated("delete", keys[0] if len(keys) == 1 else f"{len(keys)} objects"):
            await obstore.delete_async(self._client, [self.path(key) for key in keys])

    async def _open_upload(self, key: str) -> Upload:
        staging = StagingKey(created_ms=self._clock.wall_ms(), object_id=self._randomness.uuid())
        return CloudUpload(self, key, str(staging))

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        return ObjectInfo(
            key=meta["path"].removeprefix(self._prefix),
            size_bytes=meta["size"],
            modified_ms=int(meta["last_modified"].timestamp() * 1000),
            etag=meta["e_tag"],
        )


def _just_below(prefix: str) -> str:
    """Sorts before every key that begins with ``prefix`` and after most of those that sort before it: a listing can
    begin there. 'z' is the last character a key may hold."""
    lower = [character for character in _KEY_CHARACTERS if character < prefix[-1]]
    return prefix[:-1] + lower[-1] + "zzzzzzzz" if lower else prefix[:-1]
