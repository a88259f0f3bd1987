"""What the sink does, as plain functions: the writers of shim.py call them wherever Spark has sent them.

    driver      …_payload()   options, schema, stores and topic are checked: one clear line before any task starts;
                              a pin begins, so that no vacuum declares the uploads of a long job too old (R6)
    executors   write(rows)   rows → shared blobs; the message says where they lie, and for which batch
    driver      commit()      one intent for each topic; returns when leaders have put it into the log; the pin ends

What makes a batch the same batch when it comes again:
a stream       its query's id and the batch's id. Spark's driver runs ``commit`` in a process that knows neither, so
               they travel in the messages, from the tasks, where the TaskContext has them.
a batch write  the options txnAppId and txnVersion, else an id made for the payload. Never the TaskContext: inside of
               ``foreachBatch`` two writes would share it, and the second would vanish.

An intent never names what a lost, repeated or speculative attempt has uploaded, so it is never read.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.types import StructType

from streamhouse.core.errors import InvalidRequest, InvalidSetting
from streamhouse.metadata.contract import Topic
from streamhouse.spark.address import StoreAddress, resolve_address
from streamhouse.spark.connection import connect, one_line
from streamhouse.spark.pins import PinTicket, keep_renewed, pin, release
from streamhouse.spark.sink_blobs import BlobSink, StampClock
from streamhouse.spark.sink_commit import BatchId, SinkCommit, TopicShare, merged
from streamhouse.spark.sink_options import WriteOptions, check_schema, parse_write_options
from streamhouse.spark.snapshot import named_topic

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_COMMIT_SLACK_S: Final = 60.0
_PIN_OWNER: Final = "spark sink"
_PIN_TTL_MS: Final = 10 * 60_000
"""Running tasks renew the pin. It outlives the time in which tasks wait for a place, and the driver's own steps."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """What a write is about. The driver makes one for each batch and sends it to every task."""

    address: StoreAddress
    options: WriteOptions
    columns: Mapping[str, int]
    topic: Topic | None
    """The topic; None if a column names the topic of each row."""
    stamps: StampClock
    pin: PinTicket
    batch: BatchId | None
    """None for a stream: the tasks know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWrote:
    shares: tuple[TopicShare, ...]
    batch: BatchId | None


@one_line
def batch_payload(options: Mapping[str, str], schema: StructType, overwrite: bool) -> bytes:
    """Raises StreamHouseError for whatever can be found wrong before a task runs."""
    if overwrite:
        raise InvalidSetting("a topic cannot be overwritten", hint='write .mode("append")')
    plan = _plan(options, schema, streaming=False)
    return pickle.dumps(plan)


@one_line
def stream_payload(options: Mapping[str, str], schema: StructType) -> bytes:
    """Make the payload for append and complete mode; update mode has ``write_stream``. Raises as ``batch_payload``."""
    return pickle.dumps(_plan(options, schema, streaming=True))


@one_line
def write(payload: bytes, rows: Iterator[pa.RecordBatch]) -> bytes:
    return pickle.dumps(TaskWrote(shares=_upload(_loaded(payload), rows), batch=None))


@one_line
def write_stream_task(payload: bytes, rows: Iterator[pa.RecordBatch]) -> bytes:
    task = TaskContext.get()
    query_id = None if task is None else task.getLocalProperty(_QUERY_ID)
    batch_id = None if task is None else task.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        raise InvalidRequest("this task belongs to no streaming query", hint="write a batch with df.write")
    batch = BatchId(query_id=query_id, batch_id=int(batch_id))
    return pickle.dumps(TaskWrote(shares=_upload(_loaded(payload), rows), batch=batch))


@one_line
def commit(payload: bytes, messages: Sequence[bytes]) -> None:
    plan = _loaded(payload)
    assert plan.batch is not None
    _commit(plan, plan.batch, [_wrote(message) for message in messages])


@one_line
def commit_stream(payload: bytes, messages: Sequence[bytes], batch_id: int) -> None:
    wrote = [_wrote(message) for message in messages]
    batches = {each.batch for each in wrote if each.batch is not None}
    if not batches:
        abort(payload)  # no task, so no rows
        return
    (batch,) = batches
    assert batch.batch_id == batch_id
    _commit(_loaded(payload), batch, wrote)


@one_line
def abort(payload: bytes) -> None:
    """End the pin. No intent names what the tasks have uploaded, so it is never read, and vacuum deletes it."""
    plan = _loaded(payload)
    connection = connect(plan.address)
    connection.run(release(connection, plan.pin))


def _plan(options: Mapping[str, str], schema: StructType, *, streaming: bool) -> SinkPlan:
    chosen = parse_write_options(options, streaming=streaming)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    columns = check_schema(fields, topic=chosen.topic)
    address = resolve_address(options)
    if chosen.ignored:
        _log.warning("options without effect here: %s", ", ".join(chosen.ignored))
    connection = connect(address)

    async def look() -> tuple[Topic | None, PinTicket, StampClock]:
        metadata = await connection.metadata()
        await connection.objects()
        topic = None if chosen.topic is None else await named_topic(metadata, chosen.topic)
        ticket = await pin(connection, owner=_PIN_OWNER, ttl_ms=_PIN_TTL_MS)
        now_ms = await metadata.now_ms()
        return topic, ticket, StampClock(planned_ms=now_ms, ahead_ms=now_ms - connection.clock.wall_ms())

    topic, ticket, stamps = connection.run(look())
    batch = None
    if chosen.txn_app_id is not None:
        batch = BatchId(query_id=chosen.txn_app_id, batch_id=chosen.txn_version)
    elif not streaming:
        batch = BatchId(query_id=f"write-{connection.randomness.uuid()}", batch_id=0)
    return SinkPlan(
        address=address, options=chosen, columns=columns, topic=topic, stamps=stamps, pin=ticket, batch=batch
    )


def _upload(plan: SinkPlan, rows: Iterator[pa.RecordBatch]) -> tuple[TopicShare, ...]:
    task, connection = TaskContext.get(), connect(plan.address)
    sink = BlobSink(
        connection,
        plan.options,
        plan.columns,
        topic=plan.topic,
        stamps=plan.stamps,
        turn=0 if task is None else task.partitionId(),
    )
    renewal = connection.spawn(keep_renewed(connection, plan.pin))
    try:
        sink.add(rows)
        return tuple(sink.finish())
    finally:
        renewal.cancel()


def _commit(plan: SinkPlan, batch: BatchId, wrote: Sequence[TaskWrote]) -> None:
    shares = merged(share for each in wrote for share in each.shares)
    connection = connect(plan.address)
    timeout_ms = plan.options.commit_timeout_ms

    async def commit() -> None:
        metadata, refuses = await connection.metadata(), plan.options.fail_on_changed_batch
        try:
            if shares:
                await SinkCommit(metadata, timeout_ms=timeout_ms, refuses_other_rows=refuses).commit(batch, shares)
        finally:
            await release(connection, plan.pin)

    connection.run(commit(), timeout_s=timeout_ms / 1000 + _COMMIT_SLACK_S)


def _loaded(payload: bytes) -> SinkPlan:
    plan: SinkPlan = pickle.loads(payload)
    return plan


def _wrote(message: bytes) -> TaskWrote:
    wrote: TaskWrote = pickle.loads(message)
    return wrote
