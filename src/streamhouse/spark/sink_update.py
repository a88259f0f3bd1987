"""``write_stream``: a streaming query into topics with one call, in every output mode.

Append and complete go to the stream sink. Spark lets no Python sink have update mode; ``foreachBatch`` has it, and its
batches become exactly-once writes by the same key that the stream sink uses: the query's id, which Spark keeps in
``<checkpoint>/metadata``, and the batch's. So a query may even change its mode and keep its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.suggest import did_you_mean
from streamhouse.spark.shim import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_MODES: Final = ("append", "complete", "update")


def write_stream(
    frame: DataFrame,
    topic: str | None = None,
    *,
    checkpoint: str,
    mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    **options: str | int | bool,
) -> StreamingQuery:
    """Start writing a streaming DataFrame; exactly once as long as ``checkpoint`` is kept.

    Without ``topic`` each row's column says it. ``trigger`` is what Spark's own takes: ``{"availableNow": True}``.
    ``options`` are the sink's. Raises InvalidSetting.
    """
    if mode not in _MODES:
        hint = did_you_mean(mode, _MODES, otherwise=f"the modes are {', '.join(_MODES)}")
        raise InvalidSetting(f"there is no output mode {mode[:80]!r}", hint=hint)
    if not frame.isStreaming:
        raise InvalidSetting("this DataFrame does not stream", hint="write a batch with df.write")
    chosen = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
    if topic is not None:
        chosen["topic"] = topic
    writer = frame.writeStream.outputMode(mode).option("checkpointLocation", checkpoint)
    if name is not None:
        writer = writer.queryName(name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    if mode == "update":
        if not any(name.lower() == "failonchangedbatch" for name in chosen):
            chosen["failOnChangedBatch"] = "true"  # as for streams: to Spark these are batch writes
        return writer.foreachBatch(_batch_by_batch(checkpoint, chosen)).start()
    return writer.format(FORMAT).options(**chosen).start()


def _batch_by_batch(checkpoint: str, options: dict[str, str]) -> Any:
    """Refers to nothing of ours by name: under Connect it is pickled and runs in the server's Python."""
    format_name, query_ids = FORMAT, list[str]()

    def write(batch: DataFrame, batch_id: int) -> None:
        if not query_ids:
            # By Spark, because only Spark can read where checkpoints may lie.
            (row,) = batch.sparkSession.read.text(f"{checkpoint.rstrip('/')}/metadata").collect()
            query_ids.append(json.loads(row.value)["id"])
        writer = batch.write.format(format_name).options(**options)
        writer.option("txnAppId", query_ids[0]).option("txnVersion", batch_id).mode("append").save()

    return write
