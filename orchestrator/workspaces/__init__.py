"""Workspaces on a machine and in the store: packs, copies of folders, and the runtime's way to both.

Knows what a folder's snapshot is (`orchestrator.folders`) and where objects are kept; decides nothing.
"""
