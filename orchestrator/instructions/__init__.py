"""Instructions that lie in files: `AGENTS.md`, skills, and the prompts that a person saved.

Everything here reads, and nothing is written. A repository is somebody else's work, so every number that
its files could drive up has a bound: files, bytes, depth, entries of a folder. Knows neither sessions nor
settings.
"""
