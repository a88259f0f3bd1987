"""A cache of loaded Java classes (AppCDS) that halves the start of a session's JVM.

Java 17 can write down the classes it has loaded when it ends. The first session does, into a file that names what it
is good for; a later one that finds it finished gives it its name, by renaming, and all further ones start from it. Java
checks the file against itself and its class path and goes on without it when they do not fit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

from streamhouse.core.clock import Clock

_SETTLED_MS: Final = 120_000
"""Where running processes cannot be listed, a file that old is finished: Java writes it within seconds."""
_PENDING: Final = ".recording"


def find_java() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    return Path(found).resolve() if found else None


def cache_options(
    directory: Path, *, pyspark_home: Path, pyspark_version: str, process_id: int, clock: Clock
) -> list[str]:
    """Java's options to use the cache, or to record it; none where it cannot be kept."""
    java = find_java()
    if java is None:
        return []
    archive = directory / f"{_fingerprint(java, pyspark_home, pyspark_version)}.jsa"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _adopt_recordings(archive, clock)
        if archive.exists():
            return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    except OSError:
        return []
    recording = archive.with_name(f"{archive.name}.{process_id}{_PENDING}")
    return [f"-XX:ArchiveClassesAtExit={recording}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def _fingerprint(java: Path, pyspark_home: Path, pyspark_version: str) -> str:
    """The JVM and the jars: an archive is of use with exactly these."""
    modules = java.parent.parent / "lib" / "modules"
    stamp = modules.stat() if modules.exists() else java.stat()
    parts = (str(java), str(stamp.st_size), str(stamp.st_mtime_ns), str(pyspark_home), pyspark_version)
    return f"spark-{pyspark_version}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}"


def _adopt_recordings(archive: Path, clock: Clock) -> None:
    """The first that is finished becomes the archive; the others were made beside it, and go."""
    for recording in sorted(archive.parent.glob(f"{archive.name}.*{_PENDING}")):
        if not _is_finished(recording, clock):
            continue
        if archive.exists():
            recording.unlink()
        else:
            recording.rename(archive)


def _is_finished(recording: Path, clock: Clock) -> bool:
    processes = Path("/proc")
    if not (processes / "self").exists():
        return clock.wall_ms() - recording.stat().st_mtime * 1000 > _SETTLED_MS
    return not any(recording.name.encode() in _command_line(process) for process in processes.glob("[0-9]*"))


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended, or is not ours to see
        return b""
