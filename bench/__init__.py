"""Dendro's benchmarks: `python -m bench`, or `make bench`. What each line means: docs/benchmarks.md.

They run the product as users do: worker, stub, supervisor and Redis are processes of their own,
the client is the bench. Nothing in the product knows of them.
"""
