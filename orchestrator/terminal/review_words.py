"""Words that a person types about a review, as the request that they mean."""

from __future__ import annotations

import re

from orchestrator.protocol.review import BaseBranch, Commit, CustomReview, ReviewRequest, UncommittedChanges

_SHA = re.compile(r"[0-9a-f]{7,64}")


def typed_request(words: str) -> ReviewRequest:
    """The request that a person means.

    None, or `uncommitted`: what is not committed. One: a commit if it looks like one, else a branch. Several
    are instructions.
    """
    text = words.strip()
    if text in ("", "uncommitted"):
        return ReviewRequest(target=UncommittedChanges())
    if len(text.split()) > 1:
        return ReviewRequest(target=CustomReview(instructions=text))
    if _SHA.fullmatch(text):
        return ReviewRequest(target=Commit(sha=text))
    return ReviewRequest(target=BaseBranch(branch=text))
