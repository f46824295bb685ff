"""Rules about commands, which the owner of a worker writes into files.

- `rule`: a rule, and which words it means
- `parse`: the text of a file as rules; its syntax is Python's, and nothing of it is run
- `library`: the files, read again when they change, and what is wrong with them
- `verdict`: what the rules say of a command
- `amend`: a rule that a person's answer adds
"""
