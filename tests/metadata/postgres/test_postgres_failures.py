"""What an error of PostgreSQL, its client or the network means: another try, a fresh connection, or a clear refusal."""

from __future__ import annotations

import errno
import os
from typing import Any

import asyncpg
import pytest

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
from streamhouse.metadata.postgres.failures import in_short, lost_connection, may_retry, translated, unavailable

WHERE = "db.example:5432"


def refused(sqlstate: str, message: str = "what PostgreSQL says", **fields: str) -> Any:
    error = asyncpg.PostgresError(message)
    error.sqlstate = sqlstate
    for name, value in fields.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("sqlstate", "again", "lost"),
    [
        ("40001", True, False),
        ("40P01", True, False),
        ("53300", True, False),
        ("57014", True, False),
        ("25006", True, False),
        ("57P01", True, True),
        ("57P03", True, True),
        ("08006", True, True),
        ("08P01", True, True),
        ("23505", False, False),
        ("42P01", False, False),
        ("22003", False, False),
        ("28P01", False, False),
        ("SH001", False, False),
    ],
)
def test_only_what_does_not_prove_the_call_wrong_is_tried_again(sqlstate: str, again: bool, lost: bool) -> None:
    assert may_retry(refused(sqlstate)) is again
    assert lost_connection(refused(sqlstate)) is lost


@pytest.mark.parametrize(
    ("error", "again", "lost"),
    [
        (ConnectionResetError(), True, True),
        (TimeoutError(), True, True),
        (EOFError(), True, True),
        (asyncpg.InternalClientError("got result for unknown protocol state"), True, True),
        (asyncpg.InterfaceError("connection is closed"), True, False),
        (asyncpg.InterfaceError("pool is closing"), True, False),
        (asyncpg.InterfaceError("cannot perform operation: another operation is in progress"), False, False),
        (ValueError("a fault of ours"), False, False),
    ],
)
def test_the_network_and_the_client_are_told_apart(error: Exception, again: bool, lost: bool) -> None:
    assert may_retry(error) is again
    assert lost_connection(error) is lost


@pytest.mark.parametrize(
    ("sqlstate", "kind", "said"),
    [
        ("28P01", MetadataDenied, "check the password"),
        ("28000", MetadataDenied, "pg_hba.conf"),
        ("42501", MetadataDenied, "grant the user"),
        ("3D000", MetadataMisconfigured, "create the database"),
        ("3F000", MetadataMisconfigured, "search_path"),
        ("22003", InvalidRequest, "cannot take a value of this call: what PostgreSQL says"),
        ("SH001", AgentSuperseded, "what PostgreSQL says"),
        ("SH002", DurabilityMismatch, "what PostgreSQL says"),
        ("SH004", GroupNotEmpty, "what PostgreSQL says"),
        ("42P01", MetadataError, "refused a statement: what PostgreSQL says (SQLSTATE 42P01)"),
    ],
)
def test_a_refusal_becomes_the_error_that_says_what_to_do(
    sqlstate: str, kind: type[StreamHouseError], said: str
) -> None:
    made = translated(refused(sqlstate), WHERE)
    assert type(made) is kind
    assert said in str(made)


def test_a_stale_slot_carries_its_epochs() -> None:
    made = translated(refused("SH003", detail="12 4 5"), WHERE)
    assert isinstance(made, StaleEpoch)
    assert "slot 12" in str(made)
    assert "4" in str(made)
    assert "5" in str(made)


def test_what_is_no_error_of_the_database_is_not_translated() -> None:
    assert translated(ValueError("a fault of ours"), WHERE) is None
    assert translated(ConnectionResetError(), WHERE) is None
    assert isinstance(translated(asyncpg.InterfaceError("no"), WHERE), MetadataError)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "no answer"),
        (OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 5432)"), "connection refused"),
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed (a), [Errno 111] Connect call failed (b)"),
            os.strerror(111).lower(),
        ),
        (EOFError(), "EOFError"),
    ],
)
def test_a_failed_connection_is_told_in_few_words(error: Exception, said: str) -> None:
    assert in_short(error) == said
    made = unavailable(error, WHERE)
    assert isinstance(made, MetadataUnavailable)
    assert str(made).count(WHERE) == 1
    assert said in str(made)
