"""Tests of the instructions that lie in files."""
