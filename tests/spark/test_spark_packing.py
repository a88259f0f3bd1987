"""The archive for clusters: complete enough to read a topic where nothing of ours is installed."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from cluster_ground import PYTHON, SITE, bare_site_packages
from typer.testing import CliRunner

from streamhouse.cli.main import app
from streamhouse.spark.packing import directory_of, forget_unused, pack

NEEDED = (
    "spark.source",
    "spark.fetching",
    "spark.tables.tasks",
    "spark.maintenance.compaction",
    "spark.maintenance.key_compaction",
    "spark.maintenance.retention",
    "spark.maintenance.tasks",
    "spark.maintenance.vacuum",
    "spark.maintenance.verify",
    "metadata.postgres.store",
    "wire._columns",
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packs"))


def test_what_is_packed_runs_on_a_python_that_has_only_what_pyspark_needs(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    bare = bare_site_packages(tmp_path / "bare")
    (bare / "pyspark").symlink_to(SITE / "pyspark")
    (bare / "py4j").symlink_to(SITE / "py4j")
    path = f"{str(tmp_path / 'unpacked' / 'lib')!r}, {str(bare)!r}"
    modules = ", ".join(f"streamhouse.{name}" for name in NEEDED)
    code = f"import sys; sys.path[:0] = [{path}]; import {modules}; print(streamhouse.__file__)"
    ran = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(str(tmp_path / "unpacked"))


def test_an_archive_is_made_once_and_named_for_what_is_in_it(archive: Path) -> None:
    stamp = archive.stat().st_mtime_ns
    assert (pack(archive.parent), archive.stat().st_mtime_ns) == (archive, stamp)
    assert directory_of(archive).startswith("streamhouse-lib-")
    assert not list(archive.parent.glob("*.tmp"))


def test_a_cache_forgets_what_no_session_has_asked_for_in_a_month(tmp_path: Path) -> None:
    names = ("streamhouse-1-old.tar.gz", "streamhouse-1-left.77.tmp", "streamhouse-1-used.tar.gz", "mine.tar.gz")
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0) if "used" not in name else (40 * 86_400, 40 * 86_400))
    forget_unused(tmp_path, now_ms=50 * 86_400_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.tar.gz", "streamhouse-1-used.tar.gz"]


def test_the_command_prints_the_archives_path_and_nothing_else(archive: Path) -> None:
    ran = CliRunner().invoke(app, ["spark", "pack", "--directory", str(archive.parent)])
    assert ran.exit_code == 0
    assert ran.stdout.strip() == str(archive)
    assert f"spark.archives={archive}#streamhouse-lib" in ran.stderr
