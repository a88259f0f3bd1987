"""Exit codes. They are stable: a number never changes its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from streamhouse.core import errors


class ExitCode(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    CORRUPT = 6
    DENIED = 7
    TOO_NEW = 8
    ANOMALY = 9
    NOT_READY = 10
    DAMAGED = 11
    INTERRUPTED = 130
    CLOSED_PIPE = 141


MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "it worked",
    ExitCode.FAILURE: "it failed in a way that has no number of its own; a bug also ends here",
    ExitCode.USAGE: "a flag, setting, argument or request is wrong",
    ExitCode.NOT_FOUND: "a topic, partition, agent, group, transfer or object does not exist",
    ExitCode.CONFLICT: "it exists already, another process was faster, or another process holds it",
    ExitCode.UNAVAILABLE: "a store does not answer, or no process that `status` or `cost` asks; try again",
    ExitCode.CORRUPT: "bytes failed a check",
    ExitCode.DENIED: "credentials or permissions",
    ExitCode.TOO_NEW: "written by a newer version",
    ExitCode.ANOMALY: "a chaos run found an anomaly",
    ExitCode.NOT_READY: "`streamhouse status`: the process answers and is not ready",
    ExitCode.DAMAGED: "`streamhouse verify` found damage in the log, and has not repaired all of it",
    ExitCode.INTERRUPTED: "Ctrl-C; SIGTERM too, during a pass of maintenance",
    ExitCode.CLOSED_PIPE: "the reader of the output stopped reading",
}

_BY_ERROR: Final[Mapping[type[errors.StreamHouseError], ExitCode]] = {
    errors.StreamHouseError: ExitCode.FAILURE,
    errors.ConfigError: ExitCode.USAGE,
    errors.InvalidRequest: ExitCode.USAGE,
    errors.CorruptData: ExitCode.CORRUPT,
    errors.UnsupportedVersion: ExitCode.TOO_NEW,
    errors.ObjectNotFound: ExitCode.NOT_FOUND,
    errors.ObjectExists: ExitCode.CONFLICT,
    errors.StoreUnavailable: ExitCode.UNAVAILABLE,
    errors.StoreCredentialsMissing: ExitCode.DENIED,
    errors.StoreDenied: ExitCode.DENIED,
    errors.StoreMisconfigured: ExitCode.USAGE,
    errors.MetadataUnavailable: ExitCode.UNAVAILABLE,
    errors.MetadataDenied: ExitCode.DENIED,
    errors.MetadataMisconfigured: ExitCode.USAGE,
    errors.MetadataDamaged: ExitCode.CORRUPT,
    errors.SchemaTooNew: ExitCode.TOO_NEW,
    errors.DurabilityMismatch: ExitCode.CONFLICT,
    errors.NotFound: ExitCode.NOT_FOUND,
    errors.AlreadyExists: ExitCode.CONFLICT,
    errors.Conflict: ExitCode.CONFLICT,
}

_BY_STATUS: Final[Mapping[int, ExitCode]] = {
    400: ExitCode.USAGE,
    403: ExitCode.DENIED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CONFLICT,
}
"""The exit codes of errors in branches without a code of their own, such as those of consumer groups."""


def exit_code_for(error: type[errors.StreamHouseError]) -> ExitCode:
    """The code of the nearest class up the error tree that has one, below the root."""
    found = next(_BY_ERROR[each] for each in error.__mro__ if each in _BY_ERROR)
    return _BY_STATUS.get(error.http_status, found) if found is ExitCode.FAILURE else found
