"""R23: an answered commit is on the server's disk and on its synchronous standbys', or the operator is told."""

from __future__ import annotations

import logging
from typing import Any

import asyncpg
import pytest
from scenes import Opener

from streamhouse.core.errors import ConfigError
from streamhouse.metadata.postgres import database
from streamhouse.metadata.postgres.durability import standby_warning
from streamhouse.metadata.postgres.store import PostgresMetadata

LEVEL = "SELECT current_setting('synchronous_commit')"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == database.__name__]


@pytest.mark.parametrize("weak", ["off", "local"])
async def test_r23_a_databases_weak_default_is_overridden_and_told_once(
    dsn: str, open_store: Opener, operator: asyncpg.Connection, caplog: pytest.LogCaptureFixture, weak: str
) -> None:
    await operator.execute(f'ALTER DATABASE "{dsn.rpartition("/")[2]}" SET synchronous_commit = {weak}')
    with caplog.at_level(logging.WARNING):
        store = await open_store()
        assert await store._database.fetchval(LEVEL) == "on"
    (line,) = told(caplog)
    assert f"synchronous_commit={weak} (set by: database)" in line
    assert "synchronous_commit=on in its own sessions" in line


@pytest.mark.parametrize("strong", ["on", "remote_write", "remote_apply"])
async def test_r23_a_stronger_default_stays_and_nothing_is_told(
    dsn: str, open_store: Opener, operator: asyncpg.Connection, caplog: pytest.LogCaptureFixture, strong: str
) -> None:
    await operator.execute(f'ALTER DATABASE "{dsn.rpartition("/")[2]}" SET synchronous_commit = {strong}')
    with caplog.at_level(logging.WARNING):
        store = await open_store()
        assert await store._database.fetchval(LEVEL) == strong
    assert told(caplog) == []


@pytest.mark.parametrize("weak", ["off", "local"])
@pytest.mark.parametrize("asked", ["synchronous_commit={}", "options=-c%20synchronous_commit%3D{}"])
async def test_r23_a_url_that_asks_for_less_is_refused(dsn: str, open_store: Opener, weak: str, asked: str) -> None:
    with pytest.raises(ConfigError, match=f"sets synchronous_commit={weak}") as refused:
        await open_store(f"{dsn}?{asked.format(weak)}")
    assert refused.value.hint == "remove synchronous_commit from metadata.url"


async def test_r23_standbys_that_no_commit_waits_for_are_told_of(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    """The server's view of its standbys is replaced by a table that has some."""

    async def warned(*states: str | None, names: str = "") -> str:
        await operator.execute("DROP TABLE IF EXISTS pg_temp.pg_stat_replication")
        await operator.execute("CREATE TEMP TABLE pg_stat_replication (state text, pid integer)")
        for state in states:
            await operator.execute("INSERT INTO pg_temp.pg_stat_replication VALUES ($1, 0)", state)
        return await standby_warning(_As(operator, names), "db:5432/streamhouse")

    assert await warned() == ""
    assert "has a standby and no synchronous_standby_names" in await warned("streaming")
    assert "has 2 standbys and no" in await warned("streaming", None, "startup")
    assert await warned("streaming", names="standby_1") == ""


async def test_r23_a_role_that_may_not_look_is_told_nothing(
    store: PostgresMetadata, operator: asyncpg.Connection
) -> None:
    class Forbidden:
        async def fetchval(self, query: str) -> Any:
            raise asyncpg.InsufficientPrivilegeError("permission denied for view pg_stat_replication")

    assert await standby_warning(Forbidden(), "db:5432/streamhouse") == ""
    assert await standby_warning(operator, "db:5432/streamhouse") == ""  # the real views, with no standby


class _As:
    """The session of a server with these ``synchronous_standby_names``, and the temporary table in front."""

    def __init__(self, operator: asyncpg.Connection, names: str) -> None:
        self._operator = operator
        self._names = names

    async def fetchval(self, query: str) -> Any:
        seen = query.replace("current_setting('synchronous_standby_names')", f"'{self._names}'")
        return await self._operator.fetchval(seen.replace("pg_stat_replication", "pg_temp.pg_stat_replication"))
