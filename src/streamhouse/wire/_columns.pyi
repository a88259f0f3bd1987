from collections.abc import Callable, Collection

from streamhouse.wire._column_buffers import BinaryColumn, DecodedBuffers, EncodedBody, HeaderColumn, RawBuffer
from streamhouse.wire.batch import BatchHeader
from streamhouse.wire.buffers import BytesLike

class Decoder:
    def __init__(
        self,
        wanted: Collection[str],
        *,
        allocate: Callable[[int], RawBuffer],
        timestamp_scale: int = 1,
        max_column_bytes: int = 2147483647,
        row_hint: int = 0,
        value_bytes_hint: int = 0,
    ) -> None: ...
    @property
    def row_count(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    def add(
        self,
        body: BytesLike,
        header: BatchHeader,
        *,
        pos: int,
        partition: int,
        base_offset: int,
        from_offset: int,
        to_offset: int,
    ) -> None: ...
    def finish(self) -> DecodedBuffers: ...

class Encoder:
    def __init__(
        self,
        key: BinaryColumn | None,
        value: BinaryColumn | None,
        timestamps: RawBuffer,
        headers: HeaderColumn | None = None,
        *,
        allocate: Callable[[int], RawBuffer],
        rows: RawBuffer | None = None,
        max_body_bytes: int,
    ) -> None: ...
    def encode(self, *, max_records: int, target_bytes: int) -> EncodedBody | None: ...

def murmur2_partitions(
    keys: BinaryColumn, partition_count: int, *, allocate: Callable[[int], RawBuffer]
) -> RawBuffer: ...
def group_rows(
    partitions: RawBuffer, partition_count: int, *, allocate: Callable[[int], RawBuffer]
) -> tuple[RawBuffer, list[int]]: ...
