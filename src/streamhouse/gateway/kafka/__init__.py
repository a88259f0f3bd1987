"""The Kafka door.

api.py       what an API is: versions, handler, how it registers itself
wire/        bytes ↔ messages; bounded
handlers/    one file per API, named by key and name
server.py    listeners; connection.py: frames in, ordered answers out
"""
