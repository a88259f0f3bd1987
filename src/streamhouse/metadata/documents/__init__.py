"""JSON documents for a metadata store with compare-and-swap per key (Oxia): dataclasses to bytes and back. Pure; no IO.

That store is not built yet; nothing but the tests uses these documents (docs/metadata.md).

    llog/{topic}/partitions/{partition}/meta/control             log state, watermark, fence, the pending append
                                       /meta/compaction-cursor   {offset}
                                       /meta/compaction          the compaction under way
                                       /meta/compactor-claim     who compacts (scheduling only)
                                       /index/{end_offset:020d}  one entry, covering [base_offset, end_offset]
                                       /producers/{id:020d}      one idempotent producer's last batches (R9)
                                       /appends/{append_id}      what one append became (R5)

A store with compare-and-swap per key and no transactions keeps the contract with these. ``control`` is the only key
that decides: one swap of it checks epoch, state, horizon and watermark, moves the watermark and sets ``pending``, which
says everything a crash may leave undone: the index entries, the producers' windows, the append's record, the sink share
it adopts. Any process finishes a pending append before it makes the next; each step writes the same bytes again.

Field names are those of the protocol's first description. What the contract needs beyond it stands in further fields
with defaults, so that a document of that first shape is read too (except a compaction without ``sources``: nothing
could be verified without them). One difference: offsets start at 0, and ``sequence_counter`` is the next offset, our
high watermark. ``data_key`` is our object key. An unknown field is an error, because writing the document back would
lose it.
"""

from streamhouse.metadata.documents.compaction import (
    encode_claim,
    encode_compaction,
    encode_cursor,
    parse_claim,
    parse_compaction,
    parse_cursor,
)
from streamhouse.metadata.documents.control import AdoptedShare, Control, PendingAppend, encode_control, parse_control
from streamhouse.metadata.documents.index import (
    NO_TIMESTAMP,
    WHOLE_OBJECT,
    IndexEntry,
    encode_index_entry,
    parse_index_entry,
)
from streamhouse.metadata.documents.keys import (
    append_key,
    claim_key,
    compaction_key,
    control_key,
    cursor_key,
    index_key,
    index_range,
    parse_control_key,
    parse_index_key,
    partition_root,
    producer_key,
    routing_key,
)
from streamhouse.metadata.documents.records import (
    AppendRecord,
    encode_append_record,
    encode_producer,
    parse_append_record,
    parse_producer,
)

__all__ = [
    "NO_TIMESTAMP",
    "WHOLE_OBJECT",
    "AdoptedShare",
    "AppendRecord",
    "Control",
    "IndexEntry",
    "PendingAppend",
    "append_key",
    "claim_key",
    "compaction_key",
    "control_key",
    "cursor_key",
    "encode_append_record",
    "encode_claim",
    "encode_compaction",
    "encode_control",
    "encode_cursor",
    "encode_index_entry",
    "encode_producer",
    "index_key",
    "index_range",
    "parse_append_record",
    "parse_claim",
    "parse_compaction",
    "parse_control",
    "parse_control_key",
    "parse_cursor",
    "parse_index_entry",
    "parse_index_key",
    "parse_producer",
    "partition_root",
    "producer_key",
    "routing_key",
]
