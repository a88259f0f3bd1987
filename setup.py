"""Builds the compiled parts where Cython and a C compiler are found; everything else is in pyproject.toml.

An optional extension lets the build go on without a compiler: their pure-Python twins serve, slower.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup

WIRE = Path("src/streamhouse/wire")
KEY_COMPACTION = Path("src/streamhouse/maintenance/key_compaction")

try:
    from Cython.Build import cythonize
except ImportError:
    extensions = []
else:
    extensions = cythonize(
        [
            Extension(
                "streamhouse.wire._columns",
                [str(WIRE / "_columns.pyx")],
                depends=[str(part) for part in sorted(WIRE.glob("_columns_*.pxi"))],
                extra_compile_args=["-O3"],
            ),
            Extension(
                "streamhouse.formats._batch_runs",
                ["src/streamhouse/formats/_batch_runs.pyx"],
                extra_compile_args=["-O2"],
            ),
            Extension("streamhouse.log.wal._lane", ["src/streamhouse/log/wal/_lane.pyx"], extra_compile_args=["-O2"]),
            Extension(
                "streamhouse.maintenance.key_compaction._key_loops",
                [str(KEY_COMPACTION / "_key_loops.pyx")],
                extra_compile_args=["-O2"],
            ),
        ],
    )
    for extension in extensions:
        extension.optional = True  # said here, because cythonize drops it

setup(ext_modules=extensions)
