"""What tests on a standalone cluster stand on: a platform on PostgreSQL and S3, drivers and commands in processes of
their own, and a Python for executors that has what PySpark needs and nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from streamhouse.testing.services import S3Service

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


def fleet_settings(data_dir: Path, dsn: str, s3: S3Service) -> dict[str, Any]:
    """A platform on PostgreSQL and a bucket of its own, as keywords of ``StreamHouse.open``. It does no maintenance by
    itself: retention would delete old records within minutes, and a slow machine takes longer to read them."""
    return {
        "data_dir": str(data_dir),
        "metadata_url": dsn,
        "store_url": f"s3://{s3.create_bucket()}/topics",
        "store_endpoint_url": s3.endpoint_url,
        "store_region": s3.region,
        "store_access_key_id": s3.access_key,
        "store_secret_access_key": s3.secret_key,
        "profile": "fast",
        "maintenance_enabled": False,
    }


def spark_options(settings: dict[str, Any]) -> dict[str, str]:
    """The same platform in options of Spark's format: metadata_url is metadataUrl."""
    given = {name: value for name, value in settings.items() if name.startswith(("metadata_", "store_"))}
    return {first + "".join(map(str.title, rest)): given[name] for name in given for first, *rest in [name.split("_")]}


def flags_of(settings: dict[str, Any]) -> list[str]:
    """The same platform in flags of a command."""
    given = {name: value for name, value in settings.items() if name != "maintenance_enabled"}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]


def on_cluster(master_url: str, bare: Path) -> list[str]:
    """Flags that run a command's tasks on a cluster whose Python has only what is in ``bare``."""
    conf = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.executorEnv.PYTHONPATH": str(bare),
        "spark.sql.shuffle.partitions": "2",
    }
    return ["--master", master_url, *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]


def run_command(*words: str, timeout_s: float = 400) -> str:
    """Run `streamhouse` with these words; what it printed on stdout."""
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "streamhouse", *words],
            env=driver_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"still running after {timeout_s:.0f} s: {(late.stderr or b'')[-4_000:]!r}") from late
    assert ran.returncode == 0, ran.stderr[-4_000:]
    return ran.stdout


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
