"""The Java that a session starts: which one, whether it is new enough, its options, and what it logs.

**Version.** Spark 4 needs Java 17. An older one fails inside Spark's start script, with a message about something else,
so the version is checked first. A JDK has its version in the file ``release``; a Java without that file is asked.

**Class cache (AppCDS).** Java 17 can write the classes it has loaded into an archive when it ends. A JVM that starts
from the archive needs half the time. The first session records one, in a file named after its process. A later session
that finds the recording finished renames it to the name that all further sessions use. The name contains the JVM, the
jars and the pyspark version. Java checks the archive against itself and its class path, and ignores one that does not
fit.

**Log.** An error of ours inside a task or a streaming query is logged by Spark several times, each with up to a hundred
Java frames. The layout in ``log4j2.properties`` replaces such a log entry by the one line of our error. Other errors
keep their frames. A log4j configuration of the user (``SPARK_CONF_DIR``) is left alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import InvalidSetting

OLDEST: Final = 17
_ASK_S: Final = 30.0
_RELEASE: Final = re.compile(r'^JAVA_VERSION="(.*)"', re.MULTILINE)
_SAID: Final = re.compile(r'version "(.*?)"')
_HINT: Final = "install Java 17, or set JAVA_HOME to the directory of one"

_LOG_FILE: Final = Path(__file__).with_name("log4j2.properties")
_SETTLED_MS: Final = 120_000
"""A recording of this age is finished on systems without /proc: Java writes it within seconds."""
_PENDING: Final = ".recording"


def find_java() -> Path | None:
    """The program that Spark's start script takes: JAVA_HOME first, then PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    return Path(found).resolve() if found else None


def check_java() -> int:
    """The major version of the Java that Spark would start. Raises InvalidSetting when Spark cannot use it."""
    needs = f"Spark needs Java {OLDEST} or newer, and"
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on PATH"
        raise InvalidSetting(f"{needs} {where}", hint=_HINT)
    text, said = _version(java)
    found = re.match(r"(?:1\.)?(\d+)", text)
    if found is None:
        raise InvalidSetting(f"{needs} {java} does not say its version: {said[:200]}", hint=_HINT)
    if int(found[1]) < OLDEST:
        raise InvalidSetting(f"{needs} {java} is Java {found[1]}", hint=_HINT)
    return int(found[1])


def _version(java: Path) -> tuple[str, str]:
    """The version, and all that Java printed if it had to be asked."""
    try:
        if found := _RELEASE.search((java.parent.parent / "release").read_text(errors="replace")):
            return found[1], ""
    except OSError:
        pass
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    said = " ".join((ran.stderr + ran.stdout).split())
    found = _SAID.search(said)
    return ("" if found is None else found[1]), said


def log_options(pyspark_home: Path) -> list[str]:
    """Java's options for our log layout; none where the user has a log4j configuration."""
    conf = os.environ.get("SPARK_CONF_DIR") or str(Path(os.environ.get("SPARK_HOME") or pyspark_home) / "conf")
    if any(Path(conf).glob("log4j2*")) or not _LOG_FILE.exists():
        return []
    return [f"-Dlog4j2.configurationFile={_LOG_FILE.as_uri()}"]


def cache_options(
    directory: Path, *, pyspark_home: Path, pyspark_version: str, process_id: int, clock: Clock
) -> list[str]:
    """Java's options to use the class cache, or to record it; none where ``directory`` cannot be written."""
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
    """Names the JVM and the jars: an archive is valid for exactly these."""
    modules = java.parent.parent / "lib" / "modules"
    stamp = modules.stat() if modules.exists() else java.stat()
    parts = (str(java), str(stamp.st_size), str(stamp.st_mtime_ns), str(pyspark_home), pyspark_version)
    return f"spark-{pyspark_version}-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}"


def _adopt_recordings(archive: Path, clock: Clock) -> None:
    """The first finished recording becomes the archive; other finished recordings are removed."""
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
    except OSError:  # the process has ended, or belongs to another user
        return b""
