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

**It repairs nothing.** What may be repaired without any loss is a part of its own, maintenance/repair/, and only runs
when it is asked to. It takes what this package finds, entry by entry (``DamagedEntry``).
"""

from streamhouse.maintenance.verify.findings import DamagedEntry, Finding, FindingKind
from streamhouse.maintenance.verify.options import VerifyDepth, VerifyOptions, VerifyProgress, VerifySummary
from streamhouse.maintenance.verify.verifier import Tell, TellDamaged, Verifier

__all__ = [
    "DamagedEntry",
    "Finding",
    "FindingKind",
    "Tell",
    "TellDamaged",
    "Verifier",
    "VerifyDepth",
    "VerifyOptions",
    "VerifyProgress",
    "VerifySummary",
]
