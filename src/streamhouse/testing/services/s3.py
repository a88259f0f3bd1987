"""A private S3 server on free loopback ports: SeaweedFS by default, MinIO when the environment says ``S3=minio``.

Owns how each is started and the proof that it enforces create-only puts: an S3 server that ignores ``If-None-Match``
would let every test of the fence pass for the wrong reason.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ServiceFailed, ServiceMissing
from streamhouse.core.randomness import SystemRandomness
from streamhouse.testing.services.ports import LOOPBACK
from streamhouse.testing.services.process import Launch, ServerCommand, SupervisedProcess, wait_ready
from streamhouse.testing.services.s3_client import S3Client
from streamhouse.testing.services.s3_programs import MINIO, SEAWEEDFS, Account, S3Program
from streamhouse.testing.services.service import Service, start_afresh

# The secret of a private server on the loopback: it keeps out mistakes, not attackers.
ACCOUNT: Final = Account(access_key="streamhouse", secret_key="streamhouse-secret", region="us-east-1")
PROGRAMS: Final[dict[str, S3Program]] = {"seaweedfs": SEAWEEDFS, "minio": MINIO}
_START_TIMEOUT_MS = 60_000


class S3Service(Service):
    """A running S3 server. Made by ``start_s3``."""

    def __init__(
        self, *, kind: str, version: str, ports: tuple[int, ...], command: ServerCommand, launch: Launch
    ) -> None:
        self.kind = kind
        self.version = version
        self.ports = ports
        self.access_key = ACCOUNT.access_key
        self.secret_key = ACCOUNT.secret_key
        self.region = ACCOUNT.region
        self.endpoint_url = f"http://{LOOPBACK}:{ports[0]}"
        self._command = command
        self._launch = launch
        self._client = S3Client(
            endpoint_url=self.endpoint_url, access_key=self.access_key, secret_key=self.secret_key, region=self.region
        )
        self.process = launch(command)
        try:
            self._wait()
            self._check_promises()
        except BaseException:
            self.process.stop(keep=True)
            raise

    def environment(self) -> dict[str, str]:
        """What S3 clients (obstore, the AWS tools) read from the environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ALLOW_HTTP": "true",
        }

    def create_bucket(self, name: str | None = None) -> str:
        """A fresh bucket; returns its name. One that exists already under ``name`` is left as it is."""
        bucket = name or f"test-{SystemRandomness().uuid().hex[:16]}"
        answer = self._client.request("PUT", f"/{bucket}")
        if answer.status not in (200, 409):
            raise ServiceFailed(f"{self.kind} refused bucket {bucket}: HTTP {answer.status} {answer.body[:300]!r}")
        return bucket

    def restart(self) -> None:
        """kill -9 and start again on the same ports and data."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.stop(keep=True)
        self.process = self._launch(self._command)
        self._wait()

    def _wait(self) -> None:
        wait_ready(self.kind, self.process, self._command, self._ready, timeout_ms=_START_TIMEOUT_MS)

    def _ready(self) -> bool:
        """A bucket list, signed: a server may answer its health check before its accounts are loaded."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self._client.request("GET", "/").status == 200
        return False

    def _stores(self, bucket: str) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answers = [self._client.request("PUT", path) for path in (f"/{bucket}", f"/{bucket}/ready")]
            return all(answer.status < 500 for answer in answers)
        return False

    def _check_promises(self) -> None:
        bucket = f"probe-{SystemRandomness().uuid().hex[:16]}"
        # After a restart, a server may list its buckets seconds before it can store anything.
        wait_ready(self.kind, self.process, self._command, lambda: self._stores(bucket), timeout_ms=_START_TIMEOUT_MS)
        key = f"/{bucket}/create-only"
        create = {"If-None-Match": "*"}
        first = self._client.request("PUT", key, body=b"first", headers=create)
        second = self._client.request("PUT", key, body=b"second", headers=create)
        kept = self._client.request("GET", key)
        anonymous = self._client.request("GET", key, signed=False)
        for path in (key, f"/{bucket}/ready", f"/{bucket}"):
            self._client.request("DELETE", path)
        if (first.status, second.status, kept.body) != (200, 412, b"first"):
            raise ServiceFailed(
                f"{self.kind} {self.version} does not enforce create-only puts: If-None-Match: * answered "
                f"{first.status}, then {second.status} (must be 200, then 412), and the object reads {kept.body[:40]!r}"
            )
        if anonymous.status != 403:
            raise ServiceFailed(f"{self.kind} {self.version} serves requests without credentials: {anonymous.status}")


def wanted_kind() -> str:
    """Return the server that the environment asks for."""
    wanted = (os.environ.get("S3") or "seaweedfs").lower()
    if wanted not in PROGRAMS:
        raise ServiceMissing(f"S3={wanted} is not a server known here", hint="use S3=seaweedfs or S3=minio")
    return wanted


def start_s3(
    *,
    kind: str | None = None,
    directory: Path | None = None,
    ports: tuple[int, ...] | None = None,
    launch: Launch = SupervisedProcess,
) -> S3Service:
    """Start a private server; ``kind`` defaults to the variable S3, then to SeaweedFS."""
    wanted = kind or wanted_kind()
    program = PROGRAMS[wanted]
    path = program.find()

    def start(home: Path, chosen: tuple[int, ...]) -> S3Service:
        command = program.command(path, home, chosen, ACCOUNT)
        return S3Service(kind=program.name, version=program.version(path), ports=chosen, command=command, launch=launch)

    if directory is not None and ports is not None:
        return start(directory, ports)
    return start_afresh(wanted, start, port_count=program.port_count, directory=directory)
