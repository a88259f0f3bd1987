"""The reader, for both ways to write: batches by offset or by time, from the nearest place that has them.

reader.py     LogReader: reads of many partitions, the order of the places that are asked, long polls
cursor.py     one partition of a read: what was taken, what still fits. Pure
times.py      lookups by timestamp
protocols.py  what the reader needs of partitions that are led in this process
views.py      the watermark and log start of each partition, as last read from the metadata store
entries.py    the sparse index, with a few pages in memory
objects.py    from entries to blocks: ranged GETs, caches, checks, shared downloads
blocks.py     batches that lie end to end, checked and searchable. Pure
damage.py     objects that are missing or damaged: logged, counted, checked again
ahead.py      read-ahead for sequential readers
waiting.py    long polls: which reader waits for which partition, and what wakes it
sharing.py    one call for many waiters, many questions in one call, a bound on bytes, an LRU cache by bytes
options.py    options and counters

Holds nothing durable: every answer can be read again from the metadata store and the object store.
"""
