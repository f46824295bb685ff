"""Turns of a session and their items, as newer clients draw them: made of events, live and from a log.

    records    turns, items, and the changes of them
    projector  the fold from events to changes

Pure: no door and no wire format is known here.
"""
