"""Turns for programs that start a process for each: `dendro exec`.

writer    the changes of a turn as lines of exec-json
one_turn  the turn itself: handed in, followed to its end, stopped by a signal
"""
