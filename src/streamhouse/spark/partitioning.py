"""Which partition each row goes to: the one it names, else that of its key, else spread evenly. Pure, on Arrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse.core.errors import InvalidPartitions
from streamhouse.wire.columns_encode import murmur2_partitions


def place_rows(
    rows: int,
    *,
    key: pa.Array | pa.ChunkedArray | None,
    named: pa.Array | pa.ChunkedArray | None,
    partition_count: int,
    turn: int,
    topic: str,
) -> pa.Array:
    """The partition of each row, as int32 without nulls. ``turn`` is the first partition for rows without a key; use
    another one for each call, so that small calls are spread too. Raises InvalidPartitions for a row that names a
    partition which the topic does not have.
    """
    placed = None if named is None else _checked(_flat(named), partition_count, topic)
    if key is not None and (placed is None or placed.null_count):
        by_key = murmur2_partitions(key, partition_count)
        placed = by_key if placed is None else pc.coalesce(placed, by_key)
    if placed is None or placed.null_count:
        spread = _stripes(rows, partition_count, turn)
        placed = spread if placed is None else pc.coalesce(placed, spread)
    return placed


def _checked(named: pa.Array, partition_count: int, topic: str) -> pa.Array:
    named = named.cast(pa.int32())
    lowest, highest = (pc.min_max(named)[name].as_py() for name in ("min", "max"))
    if lowest is not None and (lowest < 0 or highest >= partition_count):
        wrong = lowest if lowest < 0 else highest
        raise InvalidPartitions(f"a row is for partition {wrong} of {topic}, which has 0 to {partition_count - 1}")
    return named


def _stripes(rows: int, partition_count: int, turn: int) -> pa.Array:
    """Neighbouring rows stay together, so that the batches of a partition are few and large."""
    length = max(1, -(-rows // partition_count))
    runs = [
        pa.repeat(pa.scalar((turn + number) % partition_count, pa.int32()), min(length, rows - begin))
        for number, begin in enumerate(range(0, rows, length))
    ]
    return pa.concat_arrays(runs) if runs else pa.array([], pa.int32())


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
