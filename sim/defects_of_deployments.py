"""Defects that some deployments show: with replicas or a chain key, on a server that refuses or forgets."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from orchestrator.broker import connection, seal
from orchestrator.broker.claims import Claims
from orchestrator.broker.connection import Connection
from orchestrator.broker.errors import OutOfMemory
from orchestrator.gateways.client import Client
from orchestrator.runtime.renewal import Leases
from orchestrator.runtime.runner import Copies
from orchestrator.runtime.side_work import SideWork
from sim.mutant import Mutant, lua, swapped, text


def _thinks_it_is_there(real: Any) -> Any:
    async def submit(self: Client, *given: Any) -> Any:
        with suppress(OutOfMemory):
            return await real(self, *given)

    return submit


def _trusts_for(seconds: float) -> Any:
    def make(real: Any) -> Any:
        def built(self: Leases, times: Any, *given: Any, **named: Any) -> None:
            real(self, times.model_copy(update={"trust_s": seconds}), *given, **named)

        return built

    return make


DEFECTS = (
    Mutant(
        "renewals count unconfirmed",
        "a holder trusts a renewal that no replica has",
        text(Leases, "_confirmed", "return counts", "return [True] * len(held)"),
        "primaries",
    ),
    Mutant(
        "calls begin unconfirmed",
        "a call starts before replicas have the decision to start it",
        text(SideWork, "_run_call", "if not await self._is_confirmed():", "if False:"),
        "primaries",
    ),
    Mutant(
        "a full server ends renewals",
        "whoever asks replicas is not ready for a server without memory",
        text(Claims, "confirmed", "except (Unavailable, OutOfMemory):", "except Unavailable:"),
        "primaries",
    ),
    Mutant(
        "confirmed by another branch",
        "whoever asks replicas does not ask the primary for what they are to have",
        text(Claims, "confirmed", "holder == claim.claim_id.encode() and int(length) >= seq and ", ""),
        "primaries",
    ),
    Mutant(
        "unknown scripts are named again",
        "a script that Redis does not know is asked for by its name again, and never sent",
        text(
            Connection,
            "run",
            'self.command("EVAL", call.script.source, *shape)',
            'self.command("EVALSHA", call.script.sha, *shape)',
        ),
    ),
    Mutant(
        "unknown scripts are sent bare",
        "a script that Redis does not know is sent without its arguments",
        text(
            Connection,
            "run",
            "call.script.source, *shape)",
            "call.script.source, *shape[: 1 + len(call.keys)])",
        ),
    ),
    Mutant(
        "no time for the supervisor",
        "trust ends so late that a slow supervisor kills behind the end of the lease",
        swapped(Leases, "__init__", _trusts_for(5.8)),
        "lapses",
    ),
    Mutant(
        "progress counts as a try",
        "`commit` does not forget the claims that came to nothing before it",
        lua("_commit_writes", "    set[#set + 1], set[#set + 2] = 'tries', '0'\n", ""),
        "poison",
    ),
    Mutant(
        "refused is acknowledged",
        "a client takes a submission that Redis has no memory for as one that it has",
        swapped(Client, "submit", _thinks_it_is_there),
        "refusals",
    ),
    Mutant(
        "read-only is an error of the program",
        "a server that was made a replica is not asked again",
        text(connection, "mapped", "isinstance(error, foreign.ReadOnlyError)", "False"),
        "refusals",
    ),
    Mutant(
        "entries without the chain key",
        "a worker chains what it writes as if the deployment had no key",
        text(seal, "seal", "writer.secret", 'b""'),
    ),
    Mutant(
        "snapshots without the chain key",
        "a snapshot is stored without proof of who wrote it",
        text(Copies, "snapshot", 'key.secret if key else b""', 'b""'),
    ),
)
