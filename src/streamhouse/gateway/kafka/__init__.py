"""The Kafka front end.

server.py       listeners; bind, open, drain, close
connections.py  what all connections share: limits, counters, time-outs
connection.py   one client: frames in, answers out, when to read and when not
inbox.py        bytes → frames      answers.py  answers in order      budget.py  memory of all requests together
dispatch.py     frame → handler
api.py          what an API is: versions, handler, how it registers itself
handlers/       one file per API, named by key and name
hot/            hand-written codecs of the requests that carry the data
wire/           bytes ↔ messages by the schema table; bounded
codes.py        Kafka's error codes by name
"""
