"""What Spark's modules write through the metadata contract, module by module. A new write is added here on purpose.

The import contracts (pyproject.toml) give Spark the whole contract, because its tasks and drivers run without an agent.
This list keeps away what is a leader's alone: leases, commits of a leased log, members of groups.

spark/maintenance is not in the list, and must not come into it: it writes through streamhouse.maintenance alone, whose
steps are safe to repeat. No other module of Spark's may import that package.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from streamhouse.metadata.contract import MetadataStore

SPARK = Path(__file__).parents[2] / "src/streamhouse/spark"

WRITES = {
    "definitions/catalog.py": {"create_definition", "update_definition", "report_definition", "delete_definition"},
    "definitions/claims.py": {"acquire_claim", "release_claim"},
    "flushing.py": {"request_flush"},
    "pins.py": {"create_pin", "renew_pins", "release_pins"},
    "pipelines/service.py": {"delete_definition"},
    "pipelines/target_topic.py": {"create_definition", "update_definition", "delete_definition"},
    "sink_commit.py": {"register_intent", "adopt_intent"},
    "stream.py": {"commit_offsets_simple"},
    "tables/service.py": {"create_topic"},
}

READS = {
    "cluster_info", "epoch_history", "fetch_offsets", "find_entry", "find_entry_by_timestamp",
    "find_max_timestamp_entry", "find_unreferenced", "get_compaction", "get_definition", "get_group", "get_intent",
    "get_partitions", "get_topic", "get_topic_by_id", "last_batch", "list_agents", "list_claims", "list_compactions",
    "list_definitions", "list_dereferenced", "list_flush_requests", "list_groups", "list_leases", "list_pins",
    "list_topics", "list_transfers", "list_unadopted", "load_producers", "now_ms", "pending_flush", "scan_entries",
    "subscribe", "sum_waiting_objects",
}  # fmt: skip
LIFECYCLE = {"open", "close"}
"""Files have methods of these names, too."""


def operations() -> set[str]:
    return {name for name, _ in inspect.getmembers(MetadataStore, inspect.isfunction) if not name.startswith("_")}


def writes_of(tree: ast.AST) -> set[str]:
    """The write operations that a module names, called or passed on."""
    writes = operations() - READS - LIFECYCLE
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in writes}


def test_every_operation_of_the_contract_that_is_said_to_read_exists() -> None:
    assert operations() >= READS | LIFECYCLE


def test_the_writes_of_sparks_modules_are_those_listed() -> None:
    found = {
        path.relative_to(SPARK).as_posix(): writes
        for path in sorted(SPARK.rglob("*.py"))
        if (writes := writes_of(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == WRITES


def imports_maintenance(path: Path) -> bool:
    return any(
        isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamhouse.maintenance")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def test_only_sparks_maintenance_uses_the_passes_of_maintenance() -> None:
    found = {path.relative_to(SPARK).parts[0] for path in SPARK.rglob("*.py") if imports_maintenance(path)}
    assert found == {"maintenance"}


def test_a_write_is_seen() -> None:
    source = "await metadata.commit_leased(slices)\nrun(partial(store.grow_topic, 3))\nstore.get_topic('t')"
    assert writes_of(ast.parse(source)) == {"commit_leased", "grow_topic"}
