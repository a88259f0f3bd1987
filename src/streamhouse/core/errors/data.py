"""The errors of data: failed checks, records that are gone, and unknown versions (wire, formats, log)."""

from __future__ import annotations

from streamhouse.core.errors.base import StreamHouseError


class CorruptData(StreamHouseError):
    kafka_code = 2  # CORRUPT_MESSAGE
    http_status = 422


class CorruptBatch(CorruptData):
    pass


class CorruptFrame(CorruptData):
    pass


class CorruptBlob(CorruptData):
    pass


class CorruptSegment(CorruptData):
    pass


class CorruptDocument(CorruptData):
    pass


class DamagedObject(CorruptData):
    """Records that cannot be read, because their object is missing or its bytes fail their checks.

    ``where`` is the partition. The offsets are those that cannot be read, the bytes those that were to hold them.
    """

    def __init__(
        self,
        *,
        where: str,
        base_offset: int,
        end_offset: int,
        object_key: str,
        byte_offset: int,
        byte_length: int,
        problem: str,
        missing: bool = False,
    ) -> None:
        super().__init__(
            f"{where}, offsets {base_offset} to {end_offset}: bytes {byte_offset} to {byte_offset + byte_length - 1} of"
            f" {object_key}: {problem}",
            hint="restore the object from a copy or an older version of it; to go on without these records, set"
            f" consumers to offset {end_offset + 1}, or delete the records before it",
        )
        self.where = where
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.object_key = object_key
        self.byte_offset = byte_offset
        self.byte_length = byte_length
        self.problem = problem
        self.missing = missing

    def named(self, where: str) -> DamagedObject:
        """The same error with another name for the partition: low layers know only the topic's id."""
        return DamagedObject(
            where=where,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            object_key=self.object_key,
            byte_offset=self.byte_offset,
            byte_length=self.byte_length,
            problem=self.problem,
            missing=self.missing,
        )


class InflatedTooLarge(CorruptData):
    kafka_code = 10  # MESSAGE_TOO_LARGE
    http_status = 413
    default_hint = "send smaller batches"


class DataLost(StreamHouseError):
    kafka_code = 1  # OFFSET_OUT_OF_RANGE
    http_status = 410
    default_hint = "set failOnDataLoss to false to read on without it"


class UnsupportedVersion(StreamHouseError):
    kafka_code = 76  # UNSUPPORTED_COMPRESSION_TYPE is the only case that a client can see
    http_status = 422
    default_hint = "upgrade StreamHouse"
