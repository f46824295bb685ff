"""`evolve` of the tree view: one fact about agents applied to what a session knows of its tree."""

from __future__ import annotations

from typing import assert_never

from orchestrator.core import facts as f
from orchestrator.core.frozen import replace
from orchestrator.core.tree import TreeView


def evolve_tree(tree: TreeView, fact: f.AgentFact) -> TreeView:
    """The view after a fact of the session's own log."""
    match fact:
        case f.AgentChanged(changes):
            return replace(tree, **changes)
        case f.ChildMade(child):
            return replace(tree, children={**tree.children, child.agent_id: child})
        case f.ChildChanged():
            return _child_changed(tree, fact)
        case f.ChildrenChanged():
            return _children_changed(tree, fact)
        case f.ToEnd(agent_ids, reason):
            return replace(tree, to_end=agent_ids, end_reason=reason)
        case f.ToldToEnd(count):
            return replace(tree, to_end=tree.to_end[count:])
        case f.MailReceived(mail):
            return replace(tree, inbox=(*tree.inbox, mail))
        case f.MailTaken(keys):
            return _mail_taken(tree, frozenset(keys))
        case f.WatchdogSet(watchdog):
            return replace(tree, watchdogs={**tree.watchdogs, watchdog.agent_id: watchdog})
        case f.WatchdogEnded(gone):
            kept = {id: dog for id, dog in tree.watchdogs.items() if id != gone}
            return replace(tree, watchdogs=kept)
        case _:
            assert_never(fact)


def _child_changed(tree: TreeView, fact: f.ChildChanged) -> TreeView:
    child = tree.children.get(fact.agent_id)
    if child is None:
        return tree
    changed = replace(child, **fact.changes)
    return replace(tree, children={**tree.children, child.agent_id: changed})


def _children_changed(tree: TreeView, fact: f.ChildrenChanged) -> TreeView:
    named = frozenset(fact.agent_ids)
    children = {
        id: replace(child, **fact.changes) if id in named else child for id, child in tree.children.items()
    }
    return replace(tree, children=children)


def _mail_taken(tree: TreeView, taken: frozenset[str]) -> TreeView:
    return replace(tree, inbox=tuple(mail for mail in tree.inbox if mail.key not in taken))
