"""Whole conversations with the installed program, as a client of it sees them."""
