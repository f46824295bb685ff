"""Turns of a session and their items, as newer clients draw them: made of events, live and from a log.

    turn_records  turns, items, and the changes of them
    projector     the step from an event to changes, and items of calls
    open_turn     the turn that runs, and its items that are streamed
    log_events    entries of a log as a projector's events

Pure: no door and no wire format is known here.
"""
