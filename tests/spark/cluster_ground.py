"""Drivers in processes of their own, and a Python for executors that has what PySpark needs and nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
SITE = Path(sysconfig.get_path("purelib"))
SOURCE = Path(__file__).parents[2] / "src"
PYTHON = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"

_CONNECTS_NEEDS = ("grpc", "google", "zstandard")
_SPARKS_OWN_NEEDS = ("pyarrow", "numpy", "pandas", "dateutil", "pytz", "tzdata", "six")


def bare_site_packages(directory: Path, *, connect: bool = False) -> Path:
    """What every machine of a cluster has: PySpark's own needs; with ``connect``, those of pyspark[connect]."""
    directory.mkdir()
    for name in (*_SPARKS_OWN_NEEDS, *(_CONNECTS_NEEDS if connect else ())):
        for found in SITE.glob(f"{name}*"):
            (directory / found.name).symlink_to(found)
    return directory


def run_driver(program: str, plan: dict[str, Any], *, timeout_s: float = 200) -> Any:
    """What it printed at last."""
    ran = subprocess.run(
        [sys.executable, str(PROGRAMS / program), json.dumps(plan)],
        env=driver_environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert ran.returncode == 0, ran.stderr[:3000] + ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def driver_environment() -> dict[str, str]:
    """The driver's Python workers have our packages by path; executors are given another."""
    return {
        **os.environ,
        "PYSPARK_PYTHON": str(PYTHON),
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{SITE}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
