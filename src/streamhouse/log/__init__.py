"""The log engine: the write-ahead log, the leased way to write, and the one way to read.

Owns how batches become durable and readable. Knows no client and no protocol.
"""
