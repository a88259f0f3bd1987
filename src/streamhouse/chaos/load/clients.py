"""Which Kafka clients can take part here, and the processes that run them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamhouse.chaos.load.spec import LoadSpec
from streamhouse.core.errors import InvalidRequest, ServiceMissing
from streamhouse.testing.services.binaries import cache_directory

KNOWN: Final = ("librdkafka", "aiokafka", "java")
_PACKAGES: Final = {"librdkafka": ("confluent_kafka", "confluent-kafka"), "aiokafka": ("aiokafka", "aiokafka")}
_JAVA_SOURCE: Final = Path(__file__).with_name("ChaosLoad.java")
_DUMP_S: Final = 1.0
_JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmx256m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadClient:
    name: str
    version: str
    jars: Path | None = None

    @property
    def described(self) -> str:
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    present: Sequence[LoadClient]
    absent: Sequence[str]
    """Each with the reason, for people."""

    def named(self, name: str) -> LoadClient | None:
        return next((client for client in self.present if client.name == name), None)

    @property
    def python(self) -> LoadClient:
        """The one that creates topics and reads the log at the end."""
        return next(client for client in self.present if client.name != "java")


def find_clients(wanted: Sequence[str] | None, jars: Path | None) -> Clients:
    """``wanted``: none takes whatever is installed. Raises ServiceMissing when no Python client is."""
    unknown = [name for name in wanted or () if name not in KNOWN]
    if unknown:
        raise InvalidRequest(f"no chaos client is named {unknown[0]!r}", hint=f"choose from {', '.join(KNOWN)}")
    present: list[LoadClient] = []
    absent: list[str] = []
    for name in KNOWN:
        if wanted is not None and name not in wanted:
            absent.append(f"{name}: not chosen by --clients")
            continue
        found = _java(jars) if name == "java" else _python(name)
        if isinstance(found, LoadClient):
            present.append(found)
        else:
            absent.append(f"{name}: {found}")
    if jars is not None and not _client_jars(jars):
        raise InvalidRequest(
            f"--kafka-jars: no kafka-clients jar is in {jars}", hint="name the folder that holds kafka-clients-….jar"
        )
    missing = [name for name in wanted or () if name not in {client.name for client in present}]
    if wanted is not None and set(wanted) == {"java"}:
        raise InvalidRequest(
            "java cannot take part alone",
            hint="add librdkafka or aiokafka to --clients: one of them creates the topics and reads the log at the end",
        )
    if missing or not any(client.name != "java" for client in present):
        what = f"{', '.join(missing)} cannot take part" if missing else "no Python Kafka client can take part"
        raise ServiceMissing(f"{what} ({'; '.join(absent)})", hint="; ".join(_what_to_install(missing)))
    return Clients(present=present, absent=absent)


def _what_to_install(missing: Sequence[str]) -> list[str]:
    hints = []
    if "java" in missing:
        hints.append("install a JDK and name the jars with --kafka-jars")
    if list(missing) != ["java"]:
        hints.append("install confluent-kafka or aiokafka, for example with: pip install 'streamhouse[chaos]'")
    return hints


def _client_jars(directory: Path) -> list[Path]:
    return sorted(directory.glob("kafka-clients-*.jar"))


def _python(name: str) -> LoadClient | str:
    module, package = _PACKAGES[name]
    if importlib.util.find_spec(module) is None:
        return f"the package {package} is not installed"
    return LoadClient(name=name, version=importlib.metadata.version(package))


def _java(jars: Path | None) -> LoadClient | str:
    if shutil.which("java") is None:
        return "there is no java on PATH"
    if shutil.which("javac") is None:
        return "java is there without its compiler (a JDK has both)"
    directory = jars or cache_directory() / "kafka" / "jars"
    found = _client_jars(directory)
    if not found:
        return f"no kafka-clients jar is in {directory}; name its folder with --kafka-jars"
    return LoadClient(name="java", version=found[-1].stem.removeprefix("kafka-clients-"), jars=directory)


class ClientProcess:
    """One running client process. It ends when its stdin does, so it cannot outlive this one."""

    def __init__(self, spec: LoadSpec, client: LoadClient, folder: Path) -> None:
        self.name = f"{spec.process}-{spec.role.value}"
        self.spec = spec
        self.log_path = folder / f"{self.name}.log"
        if client.jars is not None:
            path = folder / f"{self.name}.properties"
            spec.save_for_java(path)
            argv = ["java", *_JAVA_OPTIONS, "-cp", f"{client.jars}/*", str(_JAVA_SOURCE), str(path)]
        else:
            path = folder / f"{self.name}.json"
            spec.save(path)
            argv = [sys.executable, "-m", "streamhouse.chaos.load.process", str(path)]
        with self.log_path.open("ab") as log:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                bufsize=0,  # a word that a dead client did not take is not written again when its stdin is closed
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the run alone, which then ends its clients in order
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def tell(self, word: str) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(f"{word}\n".encode())
            self._child.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # it has ended, which ``ended`` says

    def ended(self) -> int | None:
        """The exit code; none while it runs."""
        return self._child.poll()

    def wait(self, timeout_s: float) -> int | None:
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def show_threads(self) -> None:
        """Make a process that hangs write into its log what each of its threads does."""
        self._child.send_signal(signal.SIGQUIT)
        time.sleep(_DUMP_S)

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        if self._child.stdin is not None:
            self._child.stdin.close()

    def last_words(self) -> str:
        try:
            return " | ".join(self.log_path.read_text(errors="replace").strip().splitlines()[-3:])[:400]
        except OSError:
            return ""
