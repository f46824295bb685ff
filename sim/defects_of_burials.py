"""Defects of how a dead worker's sessions are given to others."""

from __future__ import annotations

from orchestrator.broker.claims import Claims
from orchestrator.tools.exec.supervisor_process import _Supervisor
from sim.mutant import Mutant, both, lua, text

DEFECTS = (
    Mutant(
        "buried before the sweep",
        "a supervisor says that its worker is dead before what it kills has ended",
        both(
            text(_Supervisor, "_is_done", " and not self._shims", ""),
            text(_Supervisor, "_bury", " and self._is_alone(until)", ""),
        ),
        "burials",
    ),
    Mutant(
        "buried at the end of the socket",
        "a supervisor takes the end of its worker's socket for the worker's death",
        text(_Supervisor, "_bury", "self._worker_has_ended(until) and ", ""),
        "burials",
    ),
    Mutant(
        "buried with a survivor",
        "a supervisor says that nothing of its worker runs though a process cannot be killed",
        text(_Supervisor, "_is_alone", "return False", "return True"),
        "burials",
    ),
    Mutant(
        "buried without its epoch",
        "`bury` gives a session back whoever holds it by then",
        lua(
            "bury",
            "if not revoked and (s.owner ~= worker or s.claim ~= claim or s.epoch ~= epoch) "
            "then return {'FENCED', num(s.epoch)} end\n",
            "",
        ),
        "burials",
    ),
    Mutant(
        "revoked claim is buried half",
        "`bury` of a revoked claim leaves the mark that its holder may still run",
        lua("bury", "if revoked then redis.call('HDEL', KEYS[1], 'revoked') end\n", ""),
        "burials",
    ),
    Mutant(
        "revoked claim is buried early",
        "`bury` goes by the mark of a revoked claim, whosever it is",
        lua(
            "bury",
            "local revoked = s.owner == worker and s.revoked == claim and num(s.epoch) == num(epoch) + 1",
            "local revoked = s.revoked",
        ),
        "burials",
    ),
    Mutant(
        "buried at the third try",
        "a session that has killed three workers in a row is given to the fourth at once",
        text(Claims, "bury", "most_tries=BURIED_TRIES", "most_tries=3"),
        "poison",
    ),
    Mutant(
        "buried again and again",
        "a session that kills its workers behind a commit is given to the next one at once each time",
        lua("bury", " or since_ms >= 0 and since_ms < pause_ms", ""),
        "burials",
    ),
)
