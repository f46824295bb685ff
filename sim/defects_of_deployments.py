"""Defects that some deployments show: with replicas or a chain key, on a server that refuses or forgets."""

from __future__ import annotations

from orchestrator.broker.broker import Broker
from orchestrator.runtime.renewal import Leases
from orchestrator.runtime.side_work import SideWork
from sim.planting import Mutant, text

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
        text(SideWork, "_run_call", "confirm is not None and not await", "False and await"),
        "primaries",
    ),
    Mutant(
        "a full server ends renewals",
        "whoever asks replicas is not ready for a server without memory",
        text(Broker, "confirmed", "except (Unavailable, OutOfMemory):", "except Unavailable:"),
        "primaries",
    ),
    Mutant(
        "confirmed by another branch",
        "whoever asks replicas does not ask the primary for what they are to have",
        text(Broker, "confirmed", "holder == claim.claim_id.encode() and int(length) >= seq and ", ""),
        "primaries",
    ),
)
