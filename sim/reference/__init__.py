"""Answers and writes of every script of the broker, stated a second time.

Written from the scripts' headers and the catalogue of keys, in plain data structures, to be compared with the
scripts: a line that is lost in one of them, or a comparison that is turned, is a difference here. A statement
says what is true afterwards. In which order a script reads and writes, what it spares itself where nothing
changes, and that a key may be of another type than the catalogue says, is not stated.
"""
