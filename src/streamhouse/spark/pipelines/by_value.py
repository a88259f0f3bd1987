"""Functions that Spark carries to other machines and processes, where StreamHouse may be only in an unpacked archive.

A function of a module is pickled as its name, which says nothing over there; one made inside of another is pickled
whole. So these are tiny, and import what does the work when they are called (see spark/shim.py). The process in which a
Connect server runs ``foreachBatch`` is told of no archive; there StreamHouse must be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamhouse.spark.shim import ARCHIVE_DIRECTORY


def by_value(module: str, name: str, payload: bytes) -> Callable[..., Any]:
    """Calls ``module.name(payload, …)`` wherever it is run."""
    directory = ARCHIVE_DIRECTORY

    def call(*given: Any) -> Any:
        import glob
        import importlib
        import importlib.util
        import os
        import sys

        if importlib.util.find_spec("streamhouse") is None:
            from pyspark import SparkFiles

            try:
                root = glob.escape(SparkFiles.getRootDirectory())
            except AssertionError as error:
                raise ModuleNotFoundError(
                    "a Connect server's own Python needs StreamHouse: pip install 'streamhouse[spark]' beside it"
                ) from error
            places = (root, glob.escape(os.getcwd()), os.path.join(root, "*"), os.path.join(os.path.dirname(root), "*"))
            for place in places:
                found = glob.glob(os.path.join(place, f"{directory}*", "lib"))
                if found:
                    sys.path.insert(0, max(found, key=os.path.getmtime))
                    importlib.invalidate_caches()
                    break
        return getattr(importlib.import_module(module), name)(payload, *given)

    return call
