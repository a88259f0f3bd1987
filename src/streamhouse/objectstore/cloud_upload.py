"""Create-only multipart uploads on S3, GCS and Azure.

obstore cannot complete a multipart upload on the condition that its key is free. So the parts gather under a staging
key of their own (keys.py), which is then copied to the real key on that condition: on S3 a server-side copy whose
CompleteMultipartUpload carries ``If-None-Match: *``. The real key therefore has a put's promise as far as the server
keeps that condition. MinIO does (and AWS says so); SeaweedFS judges it a moment before it publishes, so that of uploads
to one key *at the same time* several may be told that they created it. One of them is there then, whole. Our keys carry
a UUID, so two writers never use the same.

    threshold not reached   →  one create-only PUT at the end, nothing staged
    above                   →  parts → staged object → copy if absent → delete the staged object

Whatever ends an upload early (an error, an abort, a cancellation) aborts the parts or deletes the staged object. What
is left when the process dies: parts that were never completed, which only a lifecycle rule of the bucket removes, or
a staged object, whose key carries its age for vacuum.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import obstore

from streamhouse.core.errors import StoreError
from streamhouse.core.limits import MULTIPART_PARALLEL_PARTS, MULTIPART_PART_BYTES, MULTIPART_THRESHOLD_BYTES
from streamhouse.objectstore.upload import Upload

if TYPE_CHECKING:
    from obstore import AsyncWritableFile

    from streamhouse.objectstore.cloud import CloudStore


class CloudUpload(Upload):
    def __init__(self, store: CloudStore, key: str, staging_key: str) -> None:
        super().__init__(key)
        self._store = store
        self._staging_key = staging_key
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._writer: AsyncWritableFile | None = None
        self._staged = False
        self._lost: StoreError | None = None

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        if self._writer is None and self._held_bytes + size_bytes < MULTIPART_THRESHOLD_BYTES:
            # The caller may reuse its buffers.
            self._held.extend(bytes(view) for view in views)
            self._held_bytes += size_bytes
            return
        if self._writer is None:
            self._writer = obstore.open_writer_async(
                self._store.retrying,
                self._store.path(self._staging_key),
                buffer_size=MULTIPART_PART_BYTES,
                max_concurrency=MULTIPART_PARALLEL_PARTS,
            )
        with self._store.translated("upload", self.key):
            for held in self._held:
                await self._writer.write(held)
            self._held, self._held_bytes = [], 0
            for view in views:
                await self._writer.write(view)

    async def _complete(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._writer is not None:
            await self._join(self._writer)
        if self._staged:
            await self._store.copy_if_absent(self._staging_key, self.key)
            await self._delete_staged()
        else:
            await self._store.put(self.key, self._held)

    async def _join(self, writer: AsyncWritableFile) -> None:
        """Complete the parts into the staged object. Even if this fails, there may be one to delete from here on."""
        self._writer, self._staged = None, True
        try:
            with self._store.translated("upload", self.key):
                await writer.close()
        except StoreError as error:
            # A lost reply looks like a failure; the staged object tells. obstore has forgotten the parts either way.
            with suppress(StoreError):
                if (await self._store.head(self._staging_key)).size_bytes == self.written.size_bytes:
                    return
            self._lost = StoreError(
                f"the parts of {self.key} could not be joined: {error.message}", hint="abort it and upload again"
            )
            raise self._lost from error

    async def _abort(self) -> None:
        self._held, self._held_bytes = [], 0
        writer, self._writer = self._writer, None
        if writer is not None:
            # Told of an error, obstore aborts the multipart upload; its ``close`` would complete it.
            stop = StoreError("aborted")
            with self._store.translated("abort", self.key):
                await writer.__aexit__(type(stop), stop, None)
        if self._staged:
            await self._delete_staged()

    async def _delete_staged(self) -> None:
        with suppress(StoreError):  # vacuum finds it by its age
            await self._store.delete([self._staging_key])
