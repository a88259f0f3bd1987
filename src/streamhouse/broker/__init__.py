"""The decisions, once for all front ends: produce, fetch, topics, groups. Knows no protocol.

Whatever it refuses is an error of core/errors/; each carries its Kafka code and HTTP status.
"""
