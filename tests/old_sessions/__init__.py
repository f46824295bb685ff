"""Sessions that an older version of Dendro left, kept as fixtures; `make.py` says how they were made."""
