"""Kafka messages: bytes ↔ fields, bounded. No IO, and nothing about what a message means.

primitives.py  numbers, strings, lengths: a reader that never trusts one, and what a writer appends
schema.py      every API's fields by version, from schemas.json; read and write a message by them
message.py     a request as its handler sees it
headers.py     the header before every request and response
"""
