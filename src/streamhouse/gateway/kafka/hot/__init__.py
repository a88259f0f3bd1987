"""Codecs written by hand for the requests that come with every batch. The others are read by the table (wire/).

Same guarantees: a length is compared with the bytes left before it is used, counts are bounded, bytes left over are
refused. Pure: bytes in, plain objects out, and back.
"""
