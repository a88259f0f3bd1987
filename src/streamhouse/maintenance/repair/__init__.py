"""Repairs what a verification has found, where that loses nothing: a damaged object whose record batches are all whole.

    damages.py     pure: which entries may be repaired, and why the others may not
    layout.py      where the batches of a segment with a damaged end lie
    salvage.py     pure: the new segment out of the batches, each of them proven
    outcomes.py    what became of each entry
    repairer.py    the run: claims, reads, the commit, and the verification afterwards

A repair is a compaction of one entry. Readers get the same batches, byte for byte, at the same offsets, and the right
times for lookups by time. The damaged object is not touched. It is dereferenced, and vacuum deletes it after its grace,
unless other entries name it.

All else that a verification may find is left as it is. What is missing has no other copy here, and what is wrong in the
metadata is wrong in the only copy: to move a watermark, to close a gap or to drop an entry decides that records are
given up, and a person must decide that.
"""

from streamhouse.maintenance.repair.damages import DamageList, JudgedEntry
from streamhouse.maintenance.repair.outcomes import EntryRepair, RepairOutcome, RepairSummary, TellRepair
from streamhouse.maintenance.repair.repairer import Repairer

__all__ = [
    "DamageList",
    "EntryRepair",
    "JudgedEntry",
    "RepairOutcome",
    "RepairSummary",
    "Repairer",
    "TellRepair",
]
