"""Who leads what: membership, leases, the assigner and transfers. Knows agents and leases, never a record.

``member.Member`` is the whole for one agent; ``contract`` says what it needs from and gives to the application.
"""
