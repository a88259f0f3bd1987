"""The two S3 servers: how each is found, built, started and asked its version. Serving is s3.py's matter."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ServiceFailed, ServiceMissing
from streamhouse.testing.services.binaries import cache_directory, find_go, find_minio, find_weed
from streamhouse.testing.services.ports import LOOPBACK
from streamhouse.testing.services.process import ServerCommand

MINIO_MODULE: Final = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
_MINIO_BUILD_TIMEOUT_S = 1800  # four minutes on two quiet cores
_VERSION_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    access_key: str
    secret_key: str
    region: str


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Program:
    name: str
    port_count: int
    find: Callable[[], Path]
    version: Callable[[Path], str]
    command: Callable[[Path, Path, tuple[int, ...], Account], ServerCommand]


def weed_command(weed: Path, home: Path, ports: tuple[int, ...], account: Account) -> ServerCommand:
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = ports
    (home / "data").mkdir(exist_ok=True)
    identity = {
        "name": account.access_key,
        "credentials": [{"accessKey": account.access_key, "secretKey": account.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    grpc_ports = {"s3": s3_grpc, "master": master_grpc, "volume": volume_grpc, "filer": filer_grpc}
    (home / "s3.json").write_text(json.dumps({"identities": [identity]}))
    argv = (
        str(weed), "-logtostderr=true", "server", f"-dir={home / 'data'}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}",
        f"-master.port={master}", f"-master.port.grpc={master_grpc}", "-master.telemetry=false",
        # Without an election to hold it is ready in 2.5 s, always; with one it now and then loses 5 s to a race.
        "-master.peers=none",
        # Volumes are not preallocated; many small ones let every bucket have its own.
        "-master.volumeSizeLimitMB=128", "-volume.max=10000", "-volume.minFreeSpace=0",
        f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}",
        # Sockets below its working directory, by a short name: a socket's path has at most 108 bytes.
        "-filer", f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}", "-filer.localSocket=f",
        "-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", "-s3.localSocket=s",
        "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={home / 's3.json'}", "-s3.autoCreateBucket=false",
    )  # fmt: skip
    return ServerCommand(
        argv=argv,
        directory=home,
        log_path=home / "log",
        # On SIGTERM it waits for peers that it does not have, for half a minute. What it has acknowledged is in the
        # kernel's hands already, and that is as much as it promises.
        stop_signal=signal.SIGKILL,
        environment={"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1", "HOME": str(home)},
        strays=tuple(Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock") for part, port in grpc_ports.items()),
    )


def minio_command(minio: Path, home: Path, ports: tuple[int, ...], account: Account) -> ServerCommand:
    (home / "data").mkdir(exist_ok=True)
    address, console = (f"{LOOPBACK}:{port}" for port in ports)
    return ServerCommand(
        argv=(str(minio), "server", "--address", address, "--console-address", console, str(home / "data")),
        directory=home,
        log_path=home / "log",
        stop_signal=signal.SIGTERM,
        environment={
            "MINIO_ROOT_USER": account.access_key,
            "MINIO_ROOT_PASSWORD": account.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "HOME": str(home),
        },
    )


def minio_program() -> Path:
    """MinIO on PATH, or the one built here before, or one built now from its pinned Go module."""
    found = find_minio()
    if found:
        return found
    cache = cache_directory() / "bin"
    if (cache / "minio").exists():
        return cache / "minio"
    go = find_go()
    sys.stderr.write("building MinIO from source, once; this takes some minutes\n")
    cache.mkdir(parents=True, exist_ok=True)
    built = subprocess.run(
        [str(go), "install", MINIO_MODULE],
        env={**os.environ, "GOBIN": str(cache)},
        capture_output=True,
        text=True,
        timeout=_MINIO_BUILD_TIMEOUT_S,
    )
    if built.returncode != 0:
        raise ServiceMissing(f"MinIO did not build: {built.stderr.strip()[-800:]}", hint="put a 'minio' on PATH")
    return cache / "minio"


def weed_version(program: Path) -> str:
    return _version(program, "version", r"version (?:\d+GB )?(\S+)")


def minio_version(program: Path) -> str:
    # One built by `go install` calls itself DEVELOPMENT.GOGET; then the module's own version says more.
    told = _version(program, "--version", r"version (\S+)")
    return MINIO_MODULE.partition("@")[2] if told.startswith("DEVELOPMENT") else told


def _version(program: Path, argument: str, pattern: str) -> str:
    ran = subprocess.run([str(program), argument], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S)
    found = re.search(pattern, ran.stdout)
    if not found:
        raise ServiceFailed(f"{program} does not tell its version: {ran.stdout[:200]!r}")
    return found[1]


SEAWEEDFS: Final = S3Program(name="SeaweedFS", port_count=8, find=find_weed, version=weed_version, command=weed_command)
MINIO: Final = S3Program(name="MinIO", port_count=2, find=minio_program, version=minio_version, command=minio_command)
