"""Defects of births that carry packs: of who announces them, who may still make them, and what is removed."""

from __future__ import annotations

from orchestrator.wiring import portable
from sim.mutant import Mutant, lua, text
from workers import upkeep_packs

_ANNOUNCES = """if first.top is not None:
            announced_ms = await commits.announce(SessionId(birth.facts.session_id))
            folder, found"""

DEFECTS = (
    Mutant(
        "late copies of an announcement stand for it",
        "`create` takes any announcement of its session, also one that arrived when the first was given up",
        lua("create", "session)) ~= announced then", "session)) <= 0 then"),
        "births",
    ),
    Mutant(
        "given up and made all the same",
        "`create` does not ask whether the packs of its session were given up",
        lua("create", "if announced > 0 and num(", "if false and num("),
        "births",
    ),
    Mutant(
        "packs go before they are given up",
        "upkeep removes the packs of an announced session, and does not keep it from being made",
        text(
            upkeep_packs,
            "collect_unborn",
            "since_ms = await commits.give_up(session)",
            "since_ms = now_ms - 1_000_000",
        ),
        "births",
    ),
    Mutant(
        "packs go with the word that gives them up",
        "upkeep removes packs in the round in which it gives their session up, which a failover may undo",
        text(upkeep_packs, "collect_unborn", "or now_ms - since_ms < SETTLED_S * 1000", ""),
        "births",
    ),
    Mutant(
        "nobody announces births",
        "a client stores the packs of a session that Redis has never heard of",
        text(
            portable,
            "with_folder",
            _ANNOUNCES,
            "if first.top is not None:\n            announced_ms = 1\n            folder, found",
        ),
        "births",
    ),
    Mutant(
        "nobody announces copies",
        "a client copies the packs of another session's folder for one that Redis has never heard of",
        text(
            portable,
            "with_folder",
            """.workspace.snapshot is not None:
            announced_ms = await commits.announce(SessionId(birth.facts.session_id))""",
            ".workspace.snapshot is not None:\n            announced_ms = 1",
        ),
        "births",
    ),
    Mutant(
        "births are announced behind their packs",
        "a client stores the packs of a session, and announces it then",
        text(
            portable,
            "with_folder",
            f"{_ANNOUNCES} = await _packed(settings, birth, first.top, first.within)",
            """if first.top is not None:
            folder, found = await _packed(settings, birth, first.top, first.within)
            announced_ms = await commits.announce(SessionId(birth.facts.session_id))""",
        ),
        "births",
    ),
    Mutant(
        "births stay announced",
        "`create` leaves the announcement of the session that it makes",
        lua("create", "if announced > 0 then redis.call('ZREM'", "if false then redis.call('ZREM'"),
        "births",
    ),
    Mutant(
        "refused births leave their packs",
        "what a client stores for a session that is given up already is looked for by nobody",
        lua("create", "  redis.call('ZADD', KEYS[14], 'NX', text(-now), born.session)\n", ""),
        "births",
    ),
    Mutant(
        "births are given up and forgotten",
        "upkeep gives up what was announced, and removes no packs",
        text(upkeep_packs, "collect_unborn", "await packs.remove(name)", "pass"),
        "births",
    ),
    Mutant(
        "packs of all claims are old",
        "upkeep takes each pack of an earlier claim for one that no entry names",
        text(upkeep_packs, "_orphans", "if str(name) not in named]", "]"),
        "births",
    ),
)
