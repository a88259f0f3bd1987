"""obstore's texts and what becomes of them. The texts are as real servers and the network gave them."""

from __future__ import annotations

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError, PermissionDeniedError

from streamhouse.core.errors import (
    ObjectExists,
    ObjectNotFound,
    ReadPastEnd,
    StoreCredentialsMissing,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from streamhouse.objectstore.failures import from_obstore

SENT = "Generic S3 error: Error performing GET http://127.0.0.1:1/b/a in 2ms - "
UNSENT = SENT + "HTTP error: error sending request\n\nDebug source: "
BULK = "Generic S3 error: DeleteObjects request failed for key a: Access Denied. (code: AccessDenied)"
INSTANCE = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms - status code: 403"
STATUS = SENT + "Server returned non-2xx status code: "


def answered(status: str, code: str = "") -> str:
    body = (
        f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>Told by the server</Message></Error>'
        if code
        else ""
    )
    return f"{STATUS}{status}: {body}\n\nDebug source:\nGeneric {{\n    store: ...\n}}"


@pytest.mark.parametrize(
    ("error", "expected", "match"),
    [
        (AlreadyExistsError(answered("412 Precondition Failed")), ObjectExists, "taken"),
        (GenericError(answered("412 Precondition Failed", "PreconditionFailed")), ObjectExists, "taken"),
        (FileNotFoundError(answered("404 Not Found", "NoSuchKey")), ObjectNotFound, "no such object"),
        (FileNotFoundError(answered("404 Not Found", "NoSuchBucket")), StoreMisconfigured, "create the bucket"),
        (GenericError(answered("416 Range Not Satisfiable", "InvalidRange")), ReadPastEnd, "past the object's end"),
        (PermissionDeniedError(answered("403 Forbidden", "AccessDenied")), StoreDenied, "AccessDenied: Told by"),
        (PermissionDeniedError(answered("403 Forbidden")), StoreDenied, "HTTP 403"),
        (GenericError(answered("403 Forbidden", "RequestTimeTooSkewed")), StoreDenied, "clock"),
        (GenericError(answered("400 Bad Request", "ExpiredToken")), StoreDenied, "renew"),
        (GenericError(BULK), StoreDenied, "AccessDenied"),
        (GenericError(answered("301 Moved Permanently", "PermanentRedirect")), StoreMisconfigured, "region"),
        (GenericError(answered("400 Bad Request", "AuthorizationHeaderMalformed")), StoreMisconfigured, "region"),
        (GenericError(answered("400 Bad Request", "InvalidBucketName")), StoreMisconfigured, "URL"),
        (GenericError(answered("400 Bad Request", "InvalidArgument")), StoreError, "InvalidArgument"),
        (GenericError(answered("400 Bad Request", "RequestTimeout")), StoreUnavailable, "RequestTimeout"),
        (GenericError(answered("409 Conflict", "ConditionalRequestConflict")), StoreUnavailable, "Conflict"),
        (GenericError(answered("429 Too Many Requests")), StoreUnavailable, "HTTP 429"),
        (GenericError(answered("500 Internal Server Error", "InternalError")), StoreUnavailable, "InternalError"),
        (GenericError(answered("503 Service Unavailable", "SlowDown")), StoreUnavailable, "SlowDown"),
        (GenericError(UNSENT + "ConnectionRefused"), StoreUnavailable, "connection refused"),
        (GenericError(UNSENT + "dns error"), StoreUnavailable, "resolved"),
        (OSError("something else altogether"), StoreUnavailable, "something else"),
        (GenericError(INSTANCE), StoreCredentialsMissing, "store.access_key_id"),
        (NotSupportedError("copy if not exists is not supported"), StoreMisconfigured, "not supported"),
    ],
)
def test_what_obstore_says_becomes_one_of_ours(error: Exception, expected: type[StoreError], match: str) -> None:
    ours = from_obstore(error, "get of a in s3://b")
    assert type(ours) is expected
    assert match in str(ours)
    assert str(ours).startswith("get of a in s3://b failed: ")
    assert "\n" not in str(ours)
