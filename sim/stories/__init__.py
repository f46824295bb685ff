"""Kept stories: what calm runs show to everybody outside, held against what was kept of it.

calm       runs in which nothing takes time on its way, and faults have defined places
told       the story of a run: who was told what, line by line
chosen     which runs are kept, and why
kept       the files of stories, and what differs
"""
