"""Functions that Spark carries to other machines and processes, where StreamHouse may be only in an unpacked archive.

A function of a module is pickled as its name, which says nothing over there; one made inside of another is pickled
whole. So these are tiny, and import what does the work when they are called (see spark/shim.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamhouse.spark.shim import ARCHIVE_DIRECTORY


def by_value(module: str, name: str, payload: bytes) -> Callable[..., Any]:
    """Calls ``module.name(payload, …)`` wherever it is run."""
    directory = ARCHIVE_DIRECTORY

    def call(*given: Any) -> Any:
        import importlib
        import os
        import sys

        if "streamhouse" not in sys.modules:
            from pyspark import SparkFiles

            for base in (SparkFiles.getRootDirectory(), os.getcwd()):
                lib = os.path.join(base, directory, "lib")
                if os.path.isdir(lib) and lib not in sys.path:
                    sys.path.insert(0, lib)
                    importlib.invalidate_caches()
                    break
        return getattr(importlib.import_module(module), name)(payload, *given)

    return call
