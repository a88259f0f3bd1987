"""Flush requests: a reader asks the leaders to bring what they have acknowledged into objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata import checks
from streamhouse.metadata.contract import Change, ChangeKind, FlushRequest
from streamhouse.metadata.sqlite.rows import sql_key, topic_id_of
from streamhouse.metadata.sqlite.shell import Shell
from streamhouse.metadata.sqlite.transactions import Row, Tx

_SELECT: Final = "SELECT request_id, topic_id, partition_id, requested_at, expires_at FROM flush_requests"
_ONE: Final = "request_id = ? AND topic_id = ? AND partition_id = ?"


def request_flush(tx: Tx, request_id: UUID, keys: Sequence[PartitionKey], *, ttl_ms: int) -> list[FlushRequest]:
    # Nobody waits for an expired request, answered or not.
    tx.run("DELETE FROM flush_requests WHERE expires_at <= ?", (tx.now_ms,))
    asked: list[FlushRequest] = []
    added: list[PartitionKey] = []
    for key in dict.fromkeys(keys):
        new = tx.run(
            "INSERT INTO flush_requests (request_id, topic_id, partition_id, requested_at, expires_at) "
            "SELECT ?, topic_id, partition_id, ?, ? FROM partitions WHERE topic_id = ? AND partition_id = ? "
            "ON CONFLICT (request_id, topic_id, partition_id) DO NOTHING",
            (request_id.bytes, tx.now_ms, tx.now_ms + ttl_ms, *sql_key(key)),
        )
        if new:
            added.append(key)
        row = tx.row(f"{_SELECT} WHERE {_ONE}", (request_id.bytes, *sql_key(key)))
        if row is not None:
            asked.append(_request_of(row))
    if added:
        tx.notify(Change(kind=ChangeKind.FLUSH, keys=tuple(added)))
    return asked


def list_flush_requests(tx: Tx, keys: Sequence[PartitionKey] | None) -> list[FlushRequest]:
    unanswered = f"{_SELECT} WHERE completed_at IS NULL AND expires_at > ?"
    if keys is None:
        rows = tx.rows(unanswered, (tx.now_ms,))
    else:
        of_key = f"{unanswered} AND topic_id = ? AND partition_id = ?"
        rows = [row for key in dict.fromkeys(keys) for row in tx.rows(of_key, (tx.now_ms, *sql_key(key)))]
    requests = [_request_of(row) for row in rows]
    return sorted(requests, key=lambda request: (request.requested_at_ms, request.request_id, request.key))


def complete_flushes(tx: Tx, requests: Sequence[tuple[UUID, PartitionKey]]) -> int:
    answer = f"UPDATE flush_requests SET completed_at = ? WHERE {_ONE} AND completed_at IS NULL"
    done = [key for request_id, key in requests if tx.run(answer, (tx.now_ms, request_id.bytes, *sql_key(key)))]
    if done:
        tx.notify(Change(kind=ChangeKind.FLUSH, keys=tuple(dict.fromkeys(done))))
    return len(done)


def pending_flush(tx: Tx, request_id: UUID) -> list[PartitionKey]:
    rows = tx.rows(
        "SELECT topic_id, partition_id FROM flush_requests "
        "WHERE request_id = ? AND completed_at IS NULL AND expires_at > ? ORDER BY topic_id, partition_id",
        (request_id.bytes, tx.now_ms),
    )
    return [PartitionKey(topic_id_of(topic_id), partition) for topic_id, partition in rows]


def _request_of(row: Row) -> FlushRequest:
    request_id, topic_id, partition, requested_at, expires_at = row
    return FlushRequest(
        request_id=UUID(bytes=request_id),
        key=PartitionKey(topic_id_of(topic_id), partition),
        requested_at_ms=requested_at,
        expires_at_ms=expires_at,
    )


class FlushCalls(Shell):
    async def request_flush(self, request_id: UUID, keys: Sequence[PartitionKey], *, ttl_ms: int) -> list[FlushRequest]:
        checks.check_keys(keys, "partitions")
        checks.check_ttl(ttl_ms, "a flush request")
        return await self._write(request_flush, request_id, tuple(keys), ttl_ms=ttl_ms)

    async def list_flush_requests(self, keys: Sequence[PartitionKey] | None = None) -> list[FlushRequest]:
        checks.check_keys(keys or (), "partitions")
        return await self._read(list_flush_requests, None if keys is None else tuple(keys))

    async def complete_flushes(self, requests: Sequence[tuple[UUID, PartitionKey]]) -> int:
        checks.check_keys([key for _, key in requests], "flush requests")
        return await self._write(complete_flushes, tuple(requests))

    async def pending_flush(self, request_id: UUID) -> list[PartitionKey]:
        return await self._read(pending_flush, request_id)
