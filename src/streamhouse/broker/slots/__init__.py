"""Coordinator slots: which agent coordinates a group or a transaction, and what this agent may do in that role."""
