"""Codecs of record batches. Owns inflation under a cap; knows nothing of batches or records."""

from __future__ import annotations

import enum


class Codec(enum.IntEnum):
    """Kafka's codec ids, as stored in the low three attribute bits of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
