"""The classes that Spark knows as format ``streamhouse``, made so that they work on machines without StreamHouse.

Spark pickles data sources to send them to other processes. An importable class is pickled as its name, which is useless
where the package is not installed. A class made inside of a function is pickled with its code. So these classes are
made in functions, are tiny, and refer to nothing of ours. When called, they first put the unpacked archive of
``streamhouse spark pack`` on the path, where there is one. Then they import source.py and sink.py, which do the work.
Until then, what they carry of ours is bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter

FORMAT: Final = "streamhouse"
ARCHIVE_DIRECTORY: Final = "streamhouse-lib"
"""The default directory into which Spark unpacks the archive, in the working directory of executors and planners."""


def make_source(defaults: Mapping[str, str] | None = None, *, directory: str = ARCHIVE_DIRECTORY) -> type[DataSource]:
    """The data source's class. ``defaults`` are options that a read or write may leave out."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType

    given = {name.lower(): value for name, value in (defaults or {}).items()}
    name_of_format = FORMAT

    def ours() -> Any:
        """streamhouse.spark.source, from the archive if there is one."""
        import glob
        import importlib
        import os
        import sys

        if "streamhouse" not in sys.modules:
            from pyspark import SparkFiles

            # A Connect server plans a stream beside the directory that it unpacked the session's archives in, and runs
            # its tasks above it.
            root = glob.escape(SparkFiles.getRootDirectory())
            places = (root, glob.escape(os.getcwd()), os.path.join(root, "*"), os.path.join(os.path.dirname(root), "*"))
            for place in places:
                found = glob.glob(os.path.join(place, directory, "lib"))
                if found:
                    sys.path.insert(0, found[0])
                    importlib.invalidate_caches()
                    break
        return importlib.import_module("streamhouse.spark.source")

    sink, batch_writer, stream_writer = make_writers(ours)

    class SparkBatchReader(DataSourceReader):
        def __init__(self, payload: bytes) -> None:
            self._payload = payload

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(task) for task in ours().plan(self._payload)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return ours().read(self._payload, partition.value)  # type: ignore[no-any-return]

    class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        """Pickled before it is used, and used only in the process that plans the query."""

        def __init__(self, payload: bytes) -> None:
            self._payload = payload
            self._stream: Any = None

        def _live(self) -> Any:
            if self._stream is None:
                self._stream = ours().open_stream(self._payload)
            return self._stream

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802
            return ours().initial_offset()  # type: ignore[no-any-return]

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            is_unlimited = type(limit).__name__ == "ReadAllAvailable"
            return ours().latest_offset(self._live(), start, is_unlimited)  # type: ignore[no-any-return]

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            return ours().read_limit(self._payload)  # type: ignore[no-any-return]

        def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
            return self._live().report()  # type: ignore[no-any-return]

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            ours().prepare_available_now(self._live())

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
            return [InputPartition(task) for task in ours().plan_stream(self._live(), start, end)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return ours().read(self._payload, partition.value)  # type: ignore[no-any-return]

        def stop(self) -> None:
            if self._stream is not None:
                self._stream.stop()

    class StreamHouseSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return name_of_format

        def _all_options(self) -> dict[str, str]:
            return {**given, **{name.lower(): value for name, value in self.options.items()}}

        def schema(self) -> str:
            return ours().schema(self._all_options())  # type: ignore[no-any-return]

        def reader(self, schema: StructType) -> SparkBatchReader:
            return SparkBatchReader(ours().batch_payload(self._all_options(), schema))

        def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
            return StreamReader(ours().stream_payload(self._all_options(), schema))

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return batch_writer(sink().batch_payload(self._all_options(), schema, overwrite))

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
            return stream_writer(sink().stream_payload(self._all_options(), schema))

    return StreamHouseSource


def make_writers(
    find_ours: Callable[[], Any],
) -> tuple[Callable[[], Any], Callable[[bytes], DataSourceArrowWriter], Callable[[bytes], DataSourceStreamArrowWriter]]:
    """A function that imports sink.py, the class of batch writers, and the class of stream writers.

    ``find_ours`` makes our package importable in the process where it runs.
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

    class SparkBatchWriter(DataSourceArrowWriter):
        def __init__(self, payload: bytes) -> None:
            self._payload = payload

        def write(self, iterator: Iterator[Any]) -> Wrote:
            return Wrote(sink().write(self._payload, iterator))

        def commit(self, messages: list[WriterCommitMessage | None]) -> None:
            sink().commit(self._payload, said(messages))

        def abort(self, messages: list[WriterCommitMessage | None]) -> None:
            sink().abort(self._payload)

    class StreamWriter(DataSourceStreamArrowWriter):
        def __init__(self, payload: bytes) -> None:
            self._payload = payload

        def write(self, iterator: Iterator[Any]) -> Wrote:
            return Wrote(sink().write_stream_task(self._payload, iterator))

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's
            sink().commit_stream(self._payload, said(messages), batchId)

        def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's
            sink().abort(self._payload)

    return sink, SparkBatchWriter, StreamWriter
