"""Vacuum: deletes the objects that no record of the log is in, and never one that a reader or a writer may still need.

    candidates.py   which listed objects may be garbage, and what each of them is; pure
    options.py      how long vacuum waits for writers and for readers
    summary.py      what one vacuum has found and deleted, and what that costs no longer
    deletion.py     deletes from the object store, several requests at a time, and reports what cannot be deleted
    vacuum.py       one vacuum from start to end, and the plan of one

An object becomes garbage in one of three ways, and each is recognised differently:

    never referenced   A writer uploaded it and did not commit it. Nothing in the metadata names it, so it is found by
                       listing the object store. It looks exactly like an upload whose commit is still to come.
    dereferenced       Compaction, retention or a deleted topic has dropped its last entry. The metadata has its name.
    left behind        A process died during an upload in parts or a check at its start. No entry ever names such an
                       object: ``upload-staging/`` and ``store-probe/`` in objectstore/keys.py.

References alone do not make garbage (R24). Before vacuum asks what nothing names, it raises the GC horizon in every
partition: from then on the metadata refuses each commit of an object that is stamped below it (R6). So an object that
is stamped below the horizon and has no reference can never get one. A writer that comes too late is told so, uploads
the same batches under a newer stamp, and commits those. For readers there is a second wait: a dereferenced object stays
for a grace period after its last reference went, and while a pin is live that is as old as that moment (R7).

Vacuum keeps nothing between two runs. Each of its steps may be repeated, or be done by two processes at once, and each
step that is missing leaves more objects, never fewer. So a killed vacuum is finished by the next one.
"""
