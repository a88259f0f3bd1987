"""Codecs written by hand for the requests that come with every batch. The others are read by the table (wire/).

Same guarantees: a length is compared with the bytes left before it is used, and counts are bounded. Bytes behind the
last field are left alone, as Kafka does. Pure: bytes in, plain objects out, and back.
"""
