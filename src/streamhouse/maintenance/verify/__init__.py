"""Verifies logs: that the entries of a partition tile it, and that every object holds what its entries say.

    findings.py         what a finding is, its kinds, and what to do about each
    options.py          depth and bounds of a run, progress, summary
    verifier.py         the run: pages, parallel reads, second looks
    objects.py          the requests for one entry's object
    entry_pages.py      pure: the entries of a page, the fields of an entry
    epochs.py           pure: which epoch led at which offset
    slice_map.py        pure: no two entries name the same bytes of a blob
    segment_checks.py   pure: a segment's head, footer, index and blocks against its entry
    slice_checks.py     pure: a slice of a shared blob against its entry and the blob's header
    batches.py          pure: record batches one by one, and their records

It proves invariants 2, 3 and 5 of docs/architecture.md from the log start on, and of 4 and 6 what can be seen
afterwards: each entry's epoch led at its offsets, and an object of compaction is whole, in place and counted right. It
does not compare an object of compaction with what it has replaced, which may be deleted.

What it cannot see, because the contract does not show it: the size of an object as the metadata store has it, the
running maximum of timestamps that time lookups use, and the number of references to an object.

**It repairs nothing.** What is broken in the metadata is broken in the only copy: to move a watermark, to close a gap
or to drop an entry decides that records are given up, and a person must decide that (``advance_log_start`` does it, by
way of DeleteRecords). What is broken in an object has no other copy here to be restored from. Only one repair would
lose nothing: an entry whose segment is damaged in its head, its footer or its index alone, while every batch is whole,
may be written anew as an object of compaction (``begin_compaction`` and ``apply_compaction`` allow it today). That
is a compaction of one entry, which needs compaction's own executor and its claim, so it belongs there. The other two
calls that lose nothing, a repeated ``advance_log_start`` and ``purge_deleted_topics``, finish work that no finding
speaks of; retention does that.
"""

from streamhouse.maintenance.verify.findings import Finding, FindingKind
from streamhouse.maintenance.verify.options import VerifyDepth, VerifyOptions, VerifyProgress, VerifySummary
from streamhouse.maintenance.verify.verifier import Tell, Verifier

__all__ = [
    "Finding",
    "FindingKind",
    "Tell",
    "Verifier",
    "VerifyDepth",
    "VerifyOptions",
    "VerifyProgress",
    "VerifySummary",
]
