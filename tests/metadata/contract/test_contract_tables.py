"""No table grows without end (R22): each has a bound or a collector, and nothing is left of a deleted topic."""

from __future__ import annotations

import re
from pathlib import Path

from builders import TTL_MS, batch, compaction_of, intent, intent_slice
from harness import Backend

from streamhouse.metadata.contract import HeldLease, IntentKey, MetadataStore, OffsetCommit
from streamhouse.metadata.rows.layer import RowStore

PAGE = (Path(__file__).parents[3] / "docs" / "metadata.md").read_text()
LISTED = PAGE.partition("\n| Table | Bound | Removed by |\n")[2].partition("\n\n")[0].splitlines()[1:]
OPERATIONS = {name for name in dir(MetadataStore) if not name.startswith("_")}
TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
    "postgres": "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'test_clock'",
}
WITH_TOPIC_ID = {
    "sqlite": "SELECT m.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c "
    "WHERE m.type = 'table' AND c.name = 'topic_id'",
    "postgres": "SELECT c.table_name FROM information_schema.columns AS c JOIN pg_tables AS t "
    "ON t.schemaname = c.table_schema AND t.tablename = c.table_name "
    "WHERE c.table_schema = 'public' AND c.column_name = 'topic_id'",
}
OUTLIVE_THEIR_TOPIC = {"partition_leases"}
COLLECTED_LATER = {"entries": "purge_deleted_topics", "lease_transfers": "expire_transfers"}
NOT_WRITTEN_YET = {"aborted_transactions"}


async def ask(backend: Backend, query: str, *args: object) -> list[str]:
    assert isinstance(backend.store, RowStore)
    return sorted(str(row[0]) for row in await backend.store._fetch(query, *args))


def listed() -> dict[str, tuple[str, str]]:
    """Table → bound and collectors, as the page has them."""
    found: dict[str, tuple[str, str]] = {}
    for line in LISTED:
        names, bound, removed_by = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`(\w+)`", names):
            assert name not in found, f"{name} is listed twice"
            found[name] = (bound, removed_by)
    return found


async def test_r22_every_table_of_the_store_has_a_bound_or_a_collector(backend: Backend) -> None:
    tables, known = await ask(backend, TABLES[backend.name]), listed()
    assert len(tables) > 20
    for table in tables:
        assert table in known, f"docs/metadata.md does not tell what keeps {table} from growing for ever"
        assert any(known[table]), f"docs/metadata.md lists {table} with neither a bound nor a collector"
    if backend.name == "postgres":  # which has all of them
        assert known.keys() == set(tables), "tables that are not there"


def test_r22_the_collectors_are_calls_of_the_contract() -> None:
    for table, (_, removed_by) in listed().items():
        named = set(re.findall(r"`(\w+)`", removed_by))
        assert named <= OPERATIONS, f"{table} is said to be collected by {named - OPERATIONS}"
        assert named or not removed_by, f"{table}: {removed_by!r} names no call"


async def test_r22_nothing_of_a_deleted_topic_is_left(backend: Backend) -> None:
    """Each table that knows topics gets rows of one, so that a new table cannot be forgotten here."""
    holder, target = backend.holder(), backend.holder("agent-2")
    await backend.register(target)
    led = await backend.led(holder=holder)
    topic_id = led.key.topic_id
    held = HeldLease(key=led.key, epoch=led.epoch)
    for state in ("ended", "open"):
        transfer = backend.uuid()
        await backend.store.initiate_transfer(transfer, held, holder=holder, to_agent="agent-2", timeout_ms=TTL_MS)
        if state == "ended":
            await backend.store.reject_transfer(transfer, agent_id="agent-2", reason="busy")
    await led.append(batch(1, producer=1))
    await backend.advance(10)
    await backend.store.expire_producers(idle_ms=1, limit=10)
    await led.append(batch(1, producer=2))
    await backend.store.begin_compaction(
        compaction_of(led.key, await backend.entries(led.key), backend.object(), backend.ids)
    )
    await backend.store.register_intent(
        intent(IntentKey(query_id="query", topic_id=topic_id, batch_id=0), intent_slice(0, backend.object()))
    )
    await backend.store.request_flush(backend.uuid(), [led.key], ttl_ms=TTL_MS)
    await backend.store.commit_offsets_simple("group", [OffsetCommit(key=led.key, offset=1)])

    tables = await ask(backend, WITH_TOPIC_ID[backend.name])
    for table in set(tables) - NOT_WRITTEN_YET:
        assert await ask(backend, f"SELECT 1 FROM {table} WHERE topic_id = $1", topic_id), f"no row in {table}"
    await backend.store.delete_topic(topic_id)

    async def left() -> set[str]:
        return {table for table in tables if await ask(backend, f"SELECT 1 FROM {table} WHERE topic_id = $1", topic_id)}

    assert await left() == OUTLIVE_THEIR_TOPIC | COLLECTED_LATER.keys()
    assert await backend.store.purge_deleted_topics(limit=100) == 2
    await backend.advance(2)
    await backend.store.expire_transfers(keep_ms=1)
    assert await left() == OUTLIVE_THEIR_TOPIC
