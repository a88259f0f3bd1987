"""Compactions, cursors and claims: they come back whole, and are refused where they do not fit together."""

from __future__ import annotations

import pytest
from document_samples import (
    DROP,
    KEY,
    check_refused,
    compactions,
    texts,
    times,
)
from hypothesis import given

from streamhouse.metadata import documents
from streamhouse.metadata.contract import (
    NEVER_MS,
    Claim,
    Compaction,
)


@given(compactions())
def test_s2_9_compaction_records_round_trip(compaction: Compaction) -> None:
    assert documents.parse_compaction(documents.encode_compaction(compaction), KEY) == compaction


@given(texts, times, times)
def test_s2_13_claims_round_trip(owner: str, claimed_at: int, expires_at: int) -> None:
    claim = Claim(name="compact/1", owner=owner, claimed_at_ms=claimed_at, expires_at_ms=expires_at)
    assert documents.parse_claim(documents.encode_claim(claim), "compact/1") == claim


@given(times)
def test_s2_33_cursors_round_trip(offset: int) -> None:
    assert documents.parse_cursor(documents.encode_cursor(offset)) == offset


def test_s2_13_a_claim_without_expiry_ends_with_its_session() -> None:
    claim = documents.parse_claim(b'{"compactor_id":"c-1","claimed_at_ms":5}', "x")
    assert (claim.owner, claim.claimed_at_ms, claim.expires_at_ms) == ("c-1", 5, NEVER_MS)


@pytest.mark.parametrize(
    ("kind", "path", "value", "complaint"),
    [
        ("compaction", "state", "DONE", "may be WRITING_COMPACTED_INDEX, DELETING_OLD, UPDATING_CURSOR"),
        ("compaction", "tail_start_offset", 4, "not where the last source begins"),
        ("compaction", "tail_start_offset", DROP, "is missing"),
        ("compaction", "sources", [], "names no entries"),
        ("compaction", "sources.1.start_offset", 6, "not consecutive"),
        ("compaction", "end_offset", 10, "turns offsets 0-9 into 0-10"),
        ("compaction", "msg_count", 11, "does not fit"),
        ("compaction", "sources.0.size", 1, "unknown fields"),
        ("cursor", "offset", -1, "outside"),
        ("cursor", "offset", DROP, "is missing"),
        ("claim", "compactor_id", 7, "a number where a text belongs"),
    ],
)
def test_a_malformed_document_is_refused_with_what_and_where(
    kind: str, path: str, value: object, complaint: str
) -> None:
    check_refused(kind, path, value, complaint)
