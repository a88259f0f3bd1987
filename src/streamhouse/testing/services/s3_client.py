"""The few S3 requests a fresh server needs before its first use: make a bucket, and check how puts behave.

Signed with Signature Version 4 by hand, for obstore cannot create buckets, and the probe must not trust the library
it is there to check. Not a client for anything else.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from streamhouse.core.clock import SystemClock

_TIMEOUT_S = 10
_MAX_BODY_BYTES = 64 * 1024  # an error document; objects are not read through here


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Answer:
    status: int
    server: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Client:
    endpoint_url: str
    access_key: str
    secret_key: str
    region: str

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        signed: bool = True,
    ) -> S3Answer:
        """One request, one connection. Raises OSError or HTTPException when there is no answer."""
        host = urlsplit(self.endpoint_url).netloc
        sent = {"host": host, **{name.lower(): value for name, value in (headers or {}).items()}}
        if signed:
            sent = self._sign(method, path, sent, body)
        connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_S)
        try:
            connection.request(method, quote(path), body=body, headers=sent)
            answer = connection.getresponse()
            return S3Answer(
                status=answer.status, server=answer.getheader("Server", ""), body=answer.read(_MAX_BODY_BYTES)
            )
        finally:
            connection.close()

    def _sign(self, method: str, path: str, headers: dict[str, str], body: bytes) -> dict[str, str]:
        now = datetime.datetime.fromtimestamp(SystemClock().wall_ms() / 1000, tz=datetime.UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(body).hexdigest()
        signed = dict(sorted({**headers, "x-amz-date": stamp, "x-amz-content-sha256": digest}.items()))
        names = ";".join(signed)
        lines = "".join(f"{name}:{value.strip()}\n" for name, value in signed.items())
        canonical = f"{method}\n{quote(path)}\n\n{lines}\n{names}\n{digest}"
        scope = f"{day}/{self.region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{self.secret_key}".encode()
        for part in (day, self.region, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}, SignedHeaders={names}"
        return {**signed, "authorization": f"{credential}, Signature={signature}"}
