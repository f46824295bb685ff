"""A folder on one machine: snapshots of it as objects of git, packs of them, and folders made from packs.

Knows no Redis, no session and no store: paths and bytes come in, records (`outcomes.py`) go out. `Copy`
does the work where it is called; `Keeper` has it done by a confined process under a deadline.
"""
