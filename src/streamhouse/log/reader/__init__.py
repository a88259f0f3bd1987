"""One way to read, for both ways to write: batches by offset or by time, from wherever they are nearest.

reader.py     LogReader: what is asked, in which order places are looked at, long polls
cursor.py     one partition's share of a read: what was taken, what still fits. Pure
times.py      lookups by timestamp
leading.py    what the reader wants to know of partitions led in this process
views.py      each partition's watermark and log start, as last read from the metadata
entries.py    the sparse index, a few pages of it in memory
objects.py    entries to blocks: ranged GETs, caches, checks, shared downloads
blocks.py     batches that lie end to end, checked and searchable. Pure
damage.py     objects that are missing or damaged: told, counted, checked again
ahead.py      who reads on and on, and what to fetch before he asks
waiting.py    who waits for what, and what wakes them
sharing.py    calls that several wait for, calls asked together, bytes under way
lru.py        the least used goes first, by bytes. Pure
options.py    what can be set, what is counted

Owns nothing durable: every answer can be had again from metadata and object store.
"""
