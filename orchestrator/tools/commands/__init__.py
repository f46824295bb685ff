"""What a command is, judged from its words: plain or not, safe, dangerous, and what it reads.

Nothing here runs a command or looks at a file. The judgements decide who has to be asked
before a command runs and how it is shown; what a command *can* do is the sandbox's matter.
"""
