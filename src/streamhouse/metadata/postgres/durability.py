"""Whether an answered commit is safe: what the server does before it answers, and which standby would take over.

A commit acknowledges records. With ``synchronous_commit = off`` the server answers before the commit is on its disk,
and a crash loses it. With ``local`` it answers before a synchronous standby has it, and a fail-over loses it. Such a
default of the server, the database or the role is overridden in our own sessions, and told once. A metadata URL that
asks for it is refused.

A standby that is not in ``synchronous_standby_names`` is asynchronous: it lags, and a fail-over to it loses the newest
commits, with the records they acknowledged (R23). That is the operator's choice, and told once.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import asyncpg

from streamhouse.core.errors import ConfigError

_WEAK: Final = {
    "off": "a crash of the server loses commits that it has answered",
    "local": "a fail-over loses commits that the server has answered",
}
# A value from the URL has the source "client". Any other value is a default of the server, the database or the role,
# and is overridden.
_SECURE: Final = """
SELECT s.setting, s.source,
       CASE WHEN s.setting IN ('off', 'local') AND s.source <> 'client'
            THEN set_config('synchronous_commit', 'on', false) END AS now
FROM pg_settings AS s WHERE s.name = 'synchronous_commit'
"""
# Without the right to see the state of others (pg_monitor) every replica counts. Logical ones are no standbys.
_STANDBYS: Final = """
SELECT count(*) FROM pg_stat_replication AS r
WHERE current_setting('synchronous_standby_names') = '' AND coalesce(r.state, 'streaming') = 'streaming'
    AND NOT EXISTS (SELECT 1 FROM pg_replication_slots AS s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')
"""


async def secure_session(connection: Any, where: str) -> str:
    """Make sure that a commit is answered only when it is on the server's disk and on its synchronous standbys'.

    Returns what was wrong before, as text for people; empty when nothing was. Raises ConfigError for a URL that asks
    for less.
    """
    row = await connection.fetchrow(_SECURE)
    setting, source = row["setting"], row["source"]
    if setting not in _WEAK:
        return ""
    if row["now"] is None:
        raise ConfigError(
            f"the metadata URL for {where} sets synchronous_commit={setting}: {_WEAK[setting]}, and each one"
            " acknowledges records",
            hint="remove synchronous_commit from metadata.url",
        )
    return (
        f"PostgreSQL at {where} has synchronous_commit={setting} (set by: {source}): {_WEAK[setting]}. StreamHouse uses"
        " synchronous_commit=on in its own sessions"
    )


async def standby_warning(connection: Any, where: str) -> str:
    """A text that says how a fail-over could lose commits. Empty when it could not, or when that is not known."""
    with contextlib.suppress(asyncpg.PostgresError):
        count = await connection.fetchval(_STANDBYS)
        if count:
            standbys = "a standby" if count == 1 else f"{count} standbys"
            return (
                f"PostgreSQL at {where} has {standbys} and no synchronous_standby_names: a fail-over loses the newest"
                " commits, and with them acknowledged records. Set synchronous_standby_names on the server"
            )
    return ""
