"""Audits of trees, beyond what `dendro verify` shows of them."""

from __future__ import annotations

from typing import Any, cast

from orchestrator.rollouts.chain_check import audit_tree


async def test_tree_that_was_deleted_meanwhile_has_no_findings() -> None:
    nowhere = cast(Any, None)
    assert [audit async for audit in audit_tree(nowhere, [])] == []
