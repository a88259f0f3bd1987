"""The writers that Spark pickles and sends around, made so that they reach machines without StreamHouse (see shim.py).

Tiny, and of nothing of ours but bytes: what they carry is unpickled by sink.py, once that can be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter


def make_writers(
    find_ours: Callable[[], Any],
) -> tuple[Callable[[], Any], Callable[[bytes], DataSourceArrowWriter], Callable[[bytes], DataSourceStreamArrowWriter]]:
    """How to get at sink.py, and the batch writer's and the stream writer's class, each made of a payload of it.

    ``find_ours`` makes our package importable where it runs.
    """
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

    def sink() -> Any:
        import importlib

        find_ours()
        return importlib.import_module("streamhouse.spark.sink")

    class Wrote(WriterCommitMessage):
        def __init__(self, message: bytes) -> None:
            self.message = message

    def said(messages: Sequence[Any]) -> list[bytes]:
        return [each.message for each in messages if each is not None]

    class BatchWriter(DataSourceArrowWriter):
        def __init__(self, payload: bytes) -> None:
            self._payload = payload

        def write(self, iterator: Iterator[Any]) -> Wrote:
            return Wrote(sink().write(self._payload, iterator))

        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            sink().commit(self._payload, said(messages))

        def abort(self, messages: list[WriterCommitMessage | None]) -> None:
            """What tasks have uploaded belongs to nobody until an intent names it; vacuum removes it."""

    class StreamWriter(DataSourceStreamArrowWriter):
        def __init__(self, payload: bytes) -> None:
            self._payload = payload

        def write(self, iterator: Iterator[Any]) -> Wrote:
            return Wrote(sink().write_stream_task(self._payload, iterator))

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's
            sink().commit_stream(self._payload, said(messages), batchId)

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's
            """As above."""

    return sink, BatchWriter, StreamWriter
