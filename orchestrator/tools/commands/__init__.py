"""Classification of a command by its words: plain or not, safe, dangerous, and the files that it reads.

Nothing here runs a command or looks at a file. The classification decides who must approve a command
before it runs and how it is shown; the sandbox limits what a command *can* do.
"""
