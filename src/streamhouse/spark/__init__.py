"""Topics as DataFrames, and DataFrames as topics: sources, sinks and sessions for PySpark.

    import streamhouse.spark as shs

    spark = shs.session()
    orders = shs.read_topic(spark, "orders")

Straight on the metadata and object stores: no agent carries a byte. Names are imported when first used: pyspark is an
extra, and slow to import.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

_WHERE: Final[dict[str, str]] = {
    "read_topic": "streamhouse.spark.sessions",
    "register": "streamhouse.spark.sessions",
    "session": "streamhouse.spark.sessions",
    "write_stream": "streamhouse.spark.sink_update",
}

__all__ = ["read_topic", "register", "session", "write_stream"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_WHERE[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise ImportError("Spark needs pyspark: pip install 'streamhouse[spark]'") from error
