"""Defects of a notary, and of redactions."""

from __future__ import annotations

from typing import Any

from orchestrator.broker.logs import Logs
from orchestrator.broker.open_requests import Requests
from orchestrator.core import compaction
from orchestrator.rollouts import bundle_writer, deletion, redaction, register
from orchestrator.rollouts.notary import Notary
from orchestrator.rollouts.notary_state import NotaryState
from sim.mutant import Mutant, lua, swapped, text


def _forgetful(real: Any) -> Any:
    async def nothing(self: Logs, session: Any) -> dict[int, Any]:
        return {}

    return nothing


def _forgets_none(real: Any) -> Any:
    async def nothing(self: Requests, who: str, is_meant: Any) -> int:
        return 0

    return nothing


DEFECTS = (
    Mutant(
        "bundle takes what has come since",
        "a bundle takes of a log what is there when it is read, and not what its head named",
        text(
            bundle_writer._Writer,
            "_session",
            "self._found.log(head.session, end)",
            "self._found.log(head.session, end + 1)",
        ),
        "receipts",
    ),
    Mutant(
        "prompts keep the words",
        "a redaction leaves the prompts of a person's history as they are",
        swapped(Requests, "forget_prompts", _forgets_none),
        "redactions",
    ),
    Mutant(
        "removed tree forgets its forks",
        "a tree is deleted whose log alone says that words of a fork are still to be redacted",
        text(
            deletion,
            "_check_redactions",
            "if others := owed_to_others(words, tree, sessions):",
            "if others := owed_to_others([], tree, sessions):",
        ),
        "redactions",
    ),
    Mutant(
        "notary forgets who changed",
        "a look that loses Redis behind the list of changed sessions does not ask for their ends again",
        text(
            Notary,
            "_due",
            "if session not in self._growing]",
            "if session not in self._growing]; self._changed.clear()",
        ),
        "receipts",
    ),
    Mutant(
        "notary takes any place",
        "a notary signs the next size, though another one has taken the place behind the one before",
        swapped(register, "_take_place", lambda real: lambda objects, folder, step: None),
        "receipts",
    ),
    Mutant(
        "notary with a backup goes on",
        "a notary starts with a state that is older than what is published, and continues no place",
        text(
            register,
            "_take_place",
            "objects.get(name) != text",
            "objects.get(name) is None",
        ),
        "receipts",
    ),
    Mutant(
        "roots without what stood before",
        "the root of the next size is made of a frontier from before the last transaction",
        text(
            NotaryState,
            "add",
            "own.frontier, own.ms = frontier, ms",
            "own.frontier, own.ms = own.frontier if own.frontier.size else frontier, ms",
        ),
        "receipts",
    ),
    Mutant(
        "segments keep the words",
        "where a redaction died, the words are read from segments until upkeep has written them anew",
        swapped(Logs, "instead_of", _forgetful),
        "redactions",
    ),
    Mutant(
        "segments are not written anew",
        "a redaction leaves the words in sealed segments",
        text(
            redaction,
            "_finish",
            "if all(entries[seq - segment.first].digest for seq in inside):",
            "if inside is not None:",
        ),
        "redactions",
    ),
    Mutant(
        "redaction leaves the snapshot",
        "a commit that redacts leaves the snapshot that was folded with the words",
        lua("_commit_writes", "redis.call('DEL', snapshot, KEYS[3])", "redis.call('DEL', KEYS[3])"),
        "redactions",
    ),
    Mutant(
        "redaction forgets its other entries",
        "a commit of a redaction marks its session with copies alone, and with no entry that is still to go",
        text(
            redaction, "_commit", "rests=(*([own] if left else ()), *owed.rests[1:])", "rests=owed.rests[1:]"
        ),
        "redactions",
    ),
    Mutant(
        "upkeep goes on with copies alone",
        "upkeep removes what a redaction has left of copies, and takes no entry",
        text(redaction, "_go_on", "if owed.rests:", "if owed.rests and restore is None:"),
        "redactions",
    ),
    Mutant(
        "compaction forgets redacted words",
        "a compaction keeps no message whose words were redacted",
        text(
            compaction,
            "_newest_of",
            "texts = [*before, *_user_texts(history, shown)]",
            "texts = [one for one in (*before, *_user_texts(history, shown)) if one != '[redacted]']",
        ),
        "redactions",
    ),
    Mutant(
        "redacted words say nothing",
        "a conversation with redacted words is not compacted, as if nothing had been said in it",
        text(
            compaction,
            "nothing_said",
            "return all(",
            "history = list(history); return '[redacted]' in str(history) or all(",
        ),
        "redactions",
    ),
    Mutant(
        "upkeep redacts in its own name",
        "what a dead process has left of a redaction is taken with a reason of upkeep's own",
        text(redaction, "_act_of", "Act(last.why,", "Act(f'{last.why} (upkeep)',"),
        "redactions",
    ),
)
"""Found by the workloads `receipts` and `redactions`."""
