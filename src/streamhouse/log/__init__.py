"""The log engine: the write-ahead log, the two ways to write, the one way to read.

Owns how batches become durable and readable. Knows no client and no protocol.
"""
