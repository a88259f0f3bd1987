"""An archive of StreamHouse and the libraries its tasks need, for clusters whose machines do not have it.

Spark unpacks it beside every executor and planner (``spark.archives``, or ``addArtifacts(archive=True)``), where the
shim finds it. It holds compiled code, so it serves machines of the same platform and Python minor version. What PySpark
itself asks for on every machine (pyarrow, pandas, numpy) is not in it.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ConfigError
from streamhouse.spark.shim import ARCHIVE_DIRECTORY

NEEDED: Final = ("cramjam", "crc32c", "lz4", "msgspec", "obstore", "prometheus-client", "zstandard")
"""Distributions that tasks import: all of them, or those of maintenance (prometheus-client)."""
USEFUL: Final = ("asyncpg", "psycopg", "psycopg-binary", "typing-extensions", "fastavro")
"""Packed if they are installed: some metadata stores, targets and formats need them."""
_UNUSED_MS: Final = 30 * 86_400_000


def archive_name() -> str:
    """Names platform and Python version, and changes with the content."""
    digest = hashlib.sha256()
    for name, path in _members():
        stamp = path.stat()
        digest.update(f"{name}|{stamp.st_size}|{stamp.st_mtime_ns}\n".encode())
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    where = f"{sys.platform}-{platform.machine()}"
    return f"streamhouse-{metadata.version('streamhouse')}-{python}-{where}-{digest.hexdigest()[:12]}.tar.gz"


def pack(target: Path) -> Path:
    """Write the archive, or find it there. ``target`` is a directory. Returns the archive's path."""
    target.mkdir(parents=True, exist_ok=True)
    archive = target / archive_name()
    if archive.exists():
        return archive
    unfinished = archive.with_suffix(f".{os.getpid()}.tmp")
    with tarfile.open(unfinished, "w:gz", compresslevel=1) as tar:
        for name, path in _members():
            content = path.read_bytes()
            member = tarfile.TarInfo(f"lib/{name}")
            member.size, member.mode, member.mtime = len(content), 0o644, int(path.stat().st_mtime)
            tar.addfile(member, io.BytesIO(content))
    unfinished.rename(archive)
    return archive


def forget_unused(directory: Path, *, now_ms: int) -> None:
    """Remove archives, and files that a killed process left, that no session has used for a month."""
    for pattern in ("streamhouse-*.tar.gz", "streamhouse-*.tmp"):
        for path in directory.glob(pattern):
            with suppress(OSError):  # another process was faster
                if now_ms - path.stat().st_mtime * 1000 > _UNUSED_MS:
                    path.unlink()


def directory_of(archive: Path) -> str:
    """The directory to unpack it into. Sessions of one server may send different archives."""
    return f"{ARCHIVE_DIRECTORY}-{archive.name.removesuffix('.tar.gz').rpartition('-')[2]}"


def spark_archive(archive: Path) -> str:
    """Return the archive's path in the form that ``spark.archives`` takes."""
    return f"{archive}#{directory_of(archive)}"


def _members() -> Iterator[tuple[str, Path]]:
    """Pairs of the name in the archive's lib and the file, in a fixed order."""
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".c", ".pyx", ".pxi"):
            yield f"streamhouse/{path.relative_to(package).as_posix()}", path
    for distribution in (*NEEDED, *USEFUL):
        yield from _of_distribution(distribution)


def _of_distribution(name: str) -> Iterator[tuple[str, Path]]:
    try:
        files = metadata.distribution(name).files or []
    except metadata.PackageNotFoundError:
        if name in USEFUL:
            return
        raise ConfigError(f"the library {name} is not installed", hint="install streamhouse again") from None
    for file in sorted(files, key=str):
        if file.parts[0] == ".." or "__pycache__" in file.parts:
            continue
        path = Path(str(file.locate()))
        if path.is_file():
            yield file.as_posix(), path
