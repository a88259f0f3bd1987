"""The background loops of an agent. They do not serve clients.

    adoptions.py           puts uploads of Spark sinks into the logs led here (R13)
    flush_requests.py      flushes partitions for readers of objects (Spark) that ask for it
    topic_watch.py         tells the log of changed topic configs
    expiry.py              deletes rows of the metadata store that are past their time (R5, R22)
    metadata_progress.py   marks how far the metadata had come, and refuses an older copy of it (R23)
    background.py          runs such loops: an error is reported, and ends none of them

Compaction, retention and vacuum will be here too. app/ starts the loops; no front end and no broker call needs them.
"""
