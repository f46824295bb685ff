"""The proof: instruments that run a whole deployment for long, and say what grows and what breaks.

Each is a command of its own, ends by itself in the time that it says, and writes its page below
`docs/proof/`.
"""
