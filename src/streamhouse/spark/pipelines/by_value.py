"""Functions that Spark carries to other machines and processes, where StreamHouse may be only in an unpacked archive.

A function of a module is pickled as its name, which says nothing over there; one made inside of another is pickled
whole. So these are tiny, and import what does the work when they are called (see spark/shim.py).

Spark tells tasks where the session's archives are unpacked, but not the process in which a Connect server runs
``foreachBatch``. That one asks a task, which is the same machine's where the server has no cluster behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamhouse.spark.shim import ARCHIVE_DIRECTORY


def by_value(module: str, name: str, payload: bytes) -> Callable[..., Any]:
    """Calls ``module.name(payload, …)`` wherever it is run."""
    directory = ARCHIVE_DIRECTORY

    def find() -> str:
        """The newest ``lib`` of ours that this process was given; nothing if there is none."""
        import glob
        import os

        from pyspark import SparkFiles

        root = glob.escape(SparkFiles.getRootDirectory())
        for place in (
            root,
            glob.escape(os.getcwd()),
            os.path.join(root, "*"),
            os.path.join(os.path.dirname(root), "*"),
        ):
            found = glob.glob(os.path.join(place, f"{directory}*", "lib"))
            if found:
                return max(found, key=os.path.getmtime)
        return ""

    def ask(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"lib": [find()]})

    def call(*given: Any) -> Any:
        import importlib
        import importlib.util
        import os
        import sys

        if importlib.util.find_spec("streamhouse") is None:
            try:
                lib = find()
            except AssertionError:  # a Connect server's foreachBatch
                lib = given[0].sparkSession.range(1).mapInArrow(ask, "lib STRING").collect()[0].lib
            if not os.path.isdir(lib):
                raise ModuleNotFoundError(
                    "this Python needs StreamHouse: pip install 'streamhouse[spark]' where the Connect server runs"
                )
            sys.path.insert(0, lib)
            importlib.invalidate_caches()
        return getattr(importlib.import_module(module), name)(payload, *given)

    return call
