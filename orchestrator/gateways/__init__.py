"""Gateways to sessions: they submit and follow, and never run anything.

A gateway checks what comes in, puts it into the SQ, and passes on what the EQ says. It may
die at any moment: the session does not notice, and another gateway goes on from a cursor.
"""
