"""A pipeline in which everything is said, as a document."""

from __future__ import annotations

from typing import Any

WHOLE: dict[str, Any] = {
    "name": "per-minute",
    "sources": {
        "orders": {
            "topic": "shop.orders",
            "schema": "id BIGINT, at TIMESTAMP",
            "watermark": {"column": "at", "delay": "10 minutes"},
            "bad_records": "drop",
            "starting": "latest",
            "options": {"maxOffsetsPerTrigger": 1000},
        }
    },
    "sql": "SELECT window.start AS minute, count(*) AS n FROM orders GROUP BY window(at, '1 minute');",
    "target": {"postgres": {"url": "postgresql://me:secret@db/x", "table": "public.m", "key": ["minute"]}},
    "output_mode": "update",
    "trigger": "10s",
    "isolated": True,
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**WHOLE, **changes}
