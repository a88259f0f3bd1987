"""What the counted requests and bytes would cost at S3 Standard in us-east-1 (S2.31). Pure.

An estimate for seeing, not for paying: list prices of 2026 without tax, discount or free tier, all requests counted
whether they succeeded or not, every byte at the price of the first 50 TB, no transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamhouse.core.limits import GIB
from streamhouse.objectstore.objects import Operation

USD_PER_1000_WRITES: Final = 0.005  # PUT, COPY, POST, LIST
USD_PER_1000_READS: Final = 0.0004  # GET, HEAD and everything else
USD_PER_GIB_MONTH: Final = 0.023  # S3 means 2**30 when it says GB

USD_PER_1000: Final[Mapping[Operation, float]] = {
    Operation.PUT: USD_PER_1000_WRITES,
    Operation.MULTIPART: USD_PER_1000_WRITES,
    Operation.LIST: USD_PER_1000_WRITES,
    Operation.GET: USD_PER_1000_READS,
    Operation.RANGE_GET: USD_PER_1000_READS,
    Operation.HEAD: USD_PER_1000_READS,
    Operation.DELETE: 0.0,
}


def request_cost_usd(requests: Mapping[Operation, int]) -> float:
    return sum(count * USD_PER_1000[operation] for operation, count in requests.items()) / 1000


def storage_cost_usd_month(stored_bytes: int) -> float:
    return stored_bytes / GIB * USD_PER_GIB_MONTH
