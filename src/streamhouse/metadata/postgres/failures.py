"""What an error of PostgreSQL, asyncpg or the network means: send the call again, or tell the caller what is wrong.

Every mutating call of the contract may be sent again after a lost reply. So any error that does not prove the call
wrong is followed by another try, until the deadline. Errors never quote the DSN: it may hold a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

import asyncpg

from streamhouse.core.errors import (
    AgentSuperseded,
    DurabilityMismatch,
    GroupNotEmpty,
    InvalidRequest,
    MetadataDenied,
    MetadataError,
    MetadataMisconfigured,
    MetadataUnavailable,
    StaleEpoch,
    StreamHouseError,
)

_TRY_AGAIN: Final = frozenset(
    {
        "25006",  # read-only transaction: a failover is under way
        "25P03",  # idle in transaction for too long: the session is gone
        "40001",  # serialization failure
        "40P01",  # deadlock detected
        "53300",  # too many connections
        "55P03",  # lock not available
        "57014",  # query cancelled, by a time-out or by a person
        "57P01",  # admin shutdown
        "57P02",  # crash shutdown
        "57P03",  # cannot connect now: starting up, or recovering
        "57P05",  # idle session time-out
    }
)
_CONNECTION_LOST: Final = frozenset({"25P03", "57P01", "57P02", "57P03", "57P05"})
_AT_OPENING: Final[Mapping[str, tuple[type[MetadataError], str]]] = {
    "28000": (MetadataDenied, "check the user, and that the server's pg_hba.conf lets it in"),
    "28P01": (MetadataDenied, "check the password in the metadata URL, PGPASSWORD or the password file"),
    "3D000": (MetadataMisconfigured, "create the database, or correct its name in the metadata URL"),
    "3F000": (MetadataMisconfigured, "create the schema that search_path names"),
    "42501": (MetadataDenied, "grant the user CREATE on the schema and the rights on its tables"),
}


def may_retry(error: BaseException) -> bool:
    """Whether the identical call may succeed later."""
    if isinstance(error, asyncpg.PostgresError):
        sqlstate = error.sqlstate or ""
        return sqlstate in _TRY_AGAIN or sqlstate.startswith("08")
    if isinstance(error, asyncpg.InterfaceError):
        # asyncpg's word for a connection, or a pool, that closed between two calls; also for calls that make no sense.
        return any(word in str(error) for word in ("closed", "closing", "released"))
    # InternalClientError is what asyncpg makes of a session that was killed while it was idle.
    return isinstance(error, (OSError, EOFError, asyncpg.InternalClientError))


def lost_connection(error: BaseException) -> bool:
    """Whether the sessions of this server are likely all gone, so that idle ones should not be tried."""
    if isinstance(error, asyncpg.PostgresError):
        sqlstate = error.sqlstate or ""
        return sqlstate in _CONNECTION_LOST or sqlstate.startswith("08")
    return isinstance(error, (OSError, EOFError, asyncpg.InternalClientError))


def unavailable(error: BaseException, where: str) -> MetadataUnavailable:
    return MetadataUnavailable(
        f"the PostgreSQL server at {where} could not be used before the deadline: {in_short(error)}"
    )


def in_short(error: BaseException) -> str:
    """Why a connection failed, in few words. asyncio names the failed call for each address, which is too long."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError):
        numbers = dict.fromkeys(re.findall(r"\[Errno (\d+)\]", str(error)))
        return ", ".join(os.strerror(int(number)).lower() for number in numbers) or error.strerror or str(error)
    return str(error) or type(error).__name__


def translated(error: BaseException, where: str) -> StreamHouseError | None:
    """The error to raise when another try cannot help; None when it is not an error of the database."""
    if isinstance(error, asyncpg.PostgresError):
        return _translate_sqlstate(error, error.sqlstate or "", where)
    if isinstance(error, asyncpg.InterfaceError):
        return MetadataError(f"the client of PostgreSQL at {where} refused a statement: {error}")
    return None


def _translate_sqlstate(error: asyncpg.PostgresError, sqlstate: str, where: str) -> StreamHouseError:
    message = str(error)
    if sqlstate == "SH001":
        return AgentSuperseded(message)
    if sqlstate == "SH002":
        return DurabilityMismatch(message)
    if sqlstate == "SH003":
        slot, expected, actual = (int(word) for word in error.detail.split())
        return StaleEpoch(f"slot {slot}", expected=expected, actual=actual)
    if sqlstate == "SH004":
        return GroupNotEmpty(message)
    if sqlstate in _AT_OPENING:
        kind, hint = _AT_OPENING[sqlstate]
        return kind(f"PostgreSQL at {where}: {message}", hint=hint)
    if sqlstate.startswith("22"):
        return InvalidRequest(f"PostgreSQL cannot take a value of this call: {message}")
    return MetadataError(f"PostgreSQL at {where} refused a statement: {message} (SQLSTATE {sqlstate})")
