"""The one place where the operating system's and obstore's errors become ours. Pure.

obstore tells most failures apart only in its text ("status code: 403", "<Code>NoSuchBucket</Code>"), so that text is
read here and nowhere else, and what a person sees is one line without obstore's debug dump.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Final

from obstore.exceptions import AlreadyExistsError, NotSupportedError, PermissionDeniedError, UnauthenticatedError

from streamhouse.core.errors import (
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    ReadPastEnd,
    StoreCredentialsMissing,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
    StreamHouseError,
)

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_NO_ANSWER: Final[Mapping[str, str]] = {
    "ConnectionRefused": "connection refused",
    "dns error": "the host name cannot be resolved",
    "ConnectionReset": "connection reset",
    "operation timed out": "timed out",
    "TimedOut": "timed out",
    "IncompleteMessage": "the connection ended before the answer",
    "UnexpectedEof": "the connection ended before the answer",
    "invalid peer certificate": "its certificate is not trusted",
}
_DENIED: Final = {
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_MISCONFIGURED: Final = {
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "InvalidBucketName",
    "NoSuchBucket",
    "PermanentRedirect",
    "TemporaryRedirect",
}
# 4xx in name, but the next try may well go through.
_PASSING: Final = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "RequestTimeout",
    "SlowDown",
    "XAmzContentSHA256Mismatch",
}
_HINTS: Final[Mapping[str, str]] = {
    "NoSuchBucket": "create the bucket, or correct its name in the store's URL",
    "InvalidBucketName": "correct the bucket in the store's URL",
    "InvalidAccessKeyId": "the server does not know this access key: check AWS_ACCESS_KEY_ID and the endpoint",
    "SignatureDoesNotMatch": "the secret does not fit the access key: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "renew the session's credentials",
    "RequestTimeTooSkewed": "set this machine's clock",
    "AuthorizationHeaderMalformed": "set the bucket's region",
    "PermanentRedirect": "set the bucket's region",
}
# Without credentials obstore asks the cloud's metadata service for the machine's own.
_ASKED_THE_MACHINE: Final = ("/latest/api/token", "/latest/meta-data", "/computeMetadata/", "/metadata/identity/")
_NO_CREDENTIALS_HINT: Final = (
    "set store.access_key_id and store.secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or your "
    "cloud's own variables), name a profile, or run where the machine has a role"
)


def from_obstore(error: Exception, what: str) -> StreamHouseError:
    """``what`` says the operation, the key and the store: "put of a/b in s3://bucket"."""
    text = str(error)
    code, status = _code(text), _status(text)
    line = f"{what} failed: {_reason(text, code, status)}"
    hint = _HINTS.get(code)
    if isinstance(error, AlreadyExistsError) or status == 412:
        return ObjectExists(f"{what} failed: the key is taken")
    if any(mark in text for mark in _ASKED_THE_MACHINE):
        return StoreCredentialsMissing(f"{what} failed: no credentials were found", hint=_NO_CREDENTIALS_HINT)
    if code in _MISCONFIGURED or status in (301, 307):
        return StoreMisconfigured(line, hint=hint)
    if isinstance(error, FileNotFoundError) or status == 404:
        return ObjectNotFound(f"{what} failed: there is no such object")
    if code in _DENIED or status in (401, 403) or isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return StoreDenied(line, hint=hint)
    if status == 416:
        return ReadPastEnd(f"{what} failed: the range begins past the object's end")
    if isinstance(error, NotSupportedError):
        return StoreMisconfigured(line)
    if status is None or status >= 500 or status in (408, 409, 425, 429) or code in _PASSING:
        return StoreUnavailable(line)
    return StoreError(line)


def from_os_error(error: OSError, what: str) -> StreamHouseError:
    line = f"{what} failed: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreDenied(line, hint="check the directory's owner, permissions and mount")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(line, hint="free some space; the call may be repeated")
    if error.errno == errno.ENAMETOOLONG:
        return InvalidRequest(line)
    if error.errno == errno.ENOTDIR:
        return StoreMisconfigured(line, hint="a part of the path is a file")
    return StoreUnavailable(line, hint="check the disk; the call may be repeated")


def _code(text: str) -> str:
    match = _CODE.search(text)
    return (match[1] or match[2]) if match else ""


def _status(text: str) -> int | None:
    match = _STATUS.search(text)
    return int(match[1]) if match else None


def _reason(text: str, code: str, status: int | None) -> str:
    if code:
        message = _MESSAGE.search(text)
        return f"{code}: {message[1]}" if message else code
    if status is not None:
        return f"HTTP {status}"
    for mark, meaning in _NO_ANSWER.items():
        if mark in text:
            return f"no answer: {meaning}"
    first_line = text.split("\n", 1)[0]
    return f"no answer: {first_line[:200]}"
