"""Defects of portable folders: what is recorded of them, who makes them, and what a fall loses."""

from __future__ import annotations

from orchestrator.broker import claims, commit_requests
from orchestrator.broker.claims import Claims
from orchestrator.core import evolve, outstanding
from orchestrator.core.decide import agent, folder
from orchestrator.folders import keeper_process
from orchestrator.runtime.runner import Runner
from orchestrator.runtime.side_work import FolderWork, SideWork
from orchestrator.workspaces.service import MachineFolders
from orchestrator.workspaces.stored_packs import Packs
from sim.mutant import Mutant, lua, text

DEFECTS = (
    Mutant(
        "keepers wait for nobody",
        "a claim makes its copy in the place of one that the keeper of another claim has in hand",
        text(keeper_process, "_lock", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_UN"),
        "births",
    ),
    Mutant(
        "earlier commits forget what is unsaved",
        "the answer to a commit from before a snapshot was kept on its machine forgets that snapshot",
        text(MachineFolders, "recorded", " and not held.untold", ""),
        "folders",
        test="tests/workspaces/test_service.py"
        "::test_unsaved_changes_stay_while_a_commit_from_before_them_is_answered",
    ),
    Mutant(
        "late holders call copies clean",
        "a holder that stood still notes what its copy was, while the next one writes to it",
        text(MachineFolders, "recorded", "held is None or self._is_over(claim)", "held is None"),
        "births",
        test="tests/workspaces/test_service.py"
        "::test_holder_that_stood_still_calls_no_copy_clean_that_the_next_one_writes",
    ),
    Mutant(
        "interrupts record no folder",
        "what a stopped command has written is not recorded before its task ends",
        text(SideWork, "_stop_all", "await self.folder.record_stopped(elapsed)", "pass"),
        "folders",
    ),
    Mutant(
        "calls end before their snapshot",
        "the end of a call that may have written is told without what it wrote",
        text(FolderWork, "around", "await self._record_end(call, finished)", "pass"),
        "folders",
    ),
    Mutant(
        "copies are clean while calls write",
        "no call notes that the copy it writes to is none of a known snapshot any more",
        text(FolderWork, "around", "await self._folders.writing(state, self._claim)", "pass"),
        "folders",
    ),
    Mutant(
        "copies are clean without a snapshot",
        "a folder whose changes could not be recorded passes for the last snapshot",
        text(FolderWork, "recorded", "not (runs or ahead or", "not (runs or"),
        "folders",
    ),
    Mutant(
        "claims go on in the folder of others",
        "a folder that was made under an earlier claim is not made, or looked at, again",
        text(
            outstanding,
            "_in_folder",
            "made, blocked = known.epoch == epoch",
            "made, blocked = known.epoch > 0",
        ),
        "folders",
    ),
    Mutant(
        "nobody says what a fall loses",
        "a next holder goes on from the last snapshot, and its log does not say so",
        text(folder, "fall_back", "if calls:", "if False:"),
        "folders",
    ),
    Mutant(
        "unsaved changes are given away",
        "a session whose changes are on one machine alone owes nothing, and its claim is released",
        text(outstanding, "_in_folder", "unsaved is not None and unsaved.trying", "False"),
        "folders",
    ),
    Mutant(
        "calls do not wait for the set-up",
        "a call begins in a folder in which the session's script has not run",
        text(outstanding, "_in_folder", "made and lacks_setup(state)", "False and lacks_setup(state)"),
        "folders",
    ),
    Mutant(
        "folders made anew pass for set up",
        "a folder that is made again goes on as one in which the script has run",
        text(
            evolve,
            "evolve_workspace",
            "known.set_up and not anew and machine == known.machine",
            "known.set_up",
        ),
        "folders",
    ),
    Mutant(
        "a stopped task leaves its set-up running",
        "what stops a task does not stop the set-up that it waits for",
        text(SideWork, "_stop_all", "await self.folder.stop_setup()", "pass"),
        "folders",
    ),
    Mutant(
        "nobody records what a set-up writes",
        "a folder counts as set up before its snapshot has what the script wrote",
        text(
            FolderWork,
            "_set_up",
            "await self.record((), setup=True)\n    self._arrivals",
            "self._arrivals",
        ),
        "folders",
    ),
    Mutant(
        "calls begin on a full disk",
        "a call begins that could not be recorded",
        text(outstanding, "_in_folder", "if blocked or unready or not made", "if unready or not made"),
        "folders",
    ),
    Mutant(
        "nobody reads what a folder asks",
        "the instructions of a folder that came from elsewhere never reach the model",
        text(outstanding, "_of_task", "or state.instructions_to_come", "or state.facts.portable is not None"),
        "folders",
    ),
    Mutant(
        "packs come after their entries",
        "an entry names a pack that the store has not got yet",
        text(Packs, "_put", "self._objects.put_file(str(name), file)", "pass"),
        "folders",
    ),
    Mutant(
        "any machine takes what is unsaved",
        "a session whose changes are on one machine alone is left to that machine no longer than others are",
        lua("claim", "if s.unsaved == '1' then return", "if s.unsaved == '2' then return"),
        "folders",
    ),
    Mutant(
        "nobody hears of a copy's set-up",
        "the copy of a folder whose own set-up is not run is taken without a word",
        text(agent, "folder_copied", "if command.warning:", "if False:"),
        "folders",
    ),
    Mutant(
        "nobody hears of a repository's set-up",
        "a folder that a worker has cloned is made without a word about its own set-up, which is not run",
        text(folder, "folder_made", "if command.warning:", "if False:"),
        "folders",
    ),
    Mutant(
        "machines without room take sessions",
        "a worker whose machine has no room for folders is given portable sessions that others could have",
        lua("claim", "if roomless and s.copy_on", "if roomless and not s.copy_on"),
        "folders",
    ),
    Mutant(
        "workers do not say that they lack room",
        "a worker asks for sessions as if its machine had room for their folders",
        text(Claims, "claim", "roomless = unfit and", "roomless = False and"),
        "folders",
    ),
    Mutant(
        "nothing tells that new sessions are portable",
        "a portable session that nobody has claimed yet passes for one that needs no room",
        lua("_birth", "if b.portable then", "if false then"),
        "folders",
    ),
    Mutant(
        "sessions wait where no machine has room",
        "a worker without room leaves a session to others, and nobody else is there",
        text(claims, "others_fit", "return any(", "return True or any("),
        "folders",
    ),
    Mutant(
        "machines are never gone",
        "a session whose changes were on a machine that is gone is left to that one for ever",
        text(claims, "machine_state", "gone=not there", "gone=False"),
        "folders",
    ),
    Mutant(
        "saves leave the session unsaved",
        "a commit that stores a folder's changes leaves its hash saying that they are on one machine alone",
        text(
            commit_requests,
            "_changed_fields",
            'yield "unsaved", "1" if folder.unsaved else ""',
            'yield ("unsaved", "1") if folder.unsaved else ("failed_on", "")',
        ),
        "folders",
    ),
    Mutant(
        "every look is the first",
        "the time for which a session is left to its machine begins anew with each look of another one",
        lua("claim", "redis.call('HSET', KEYS[1], 'left_ms', text(now))", "s.left_ms = nil"),
        "folders",
    ),
    Mutant(
        "what is given up comes back",
        "the next holder is not told that a person gave the unsaved changes up, and saves them",
        text(
            Runner,
            "_begin",
            "c.TookOver(judgements, unsaved, self._claimed.abandoned, shown)",
            'c.TookOver(judgements, unsaved, "", shown)',
        ),
        "folders",
    ),
    Mutant(
        "copies are used again",
        "agents of a later response begin with the copy of a machine's folder that an earlier one had taken",
        text(
            agent,
            "copy_for",
            "if (known.request, known.cwd) == (state.requests, task.settings.cwd) else None",
            "",
        ),
        "folders",
    ),
    Mutant(
        "copies outlive writes",
        "a copy of a machine's folder is given to agents behind a call that has changed the folder",
        text(evolve, "_without_copy", "or not may_write(", "or may_write and ("),
        "contents",
    ),
    Mutant(
        "giving up changes nothing",
        "a session whose unsaved changes a person gave up is left to its machine all the same",
        lua("claim", "elsewhere and (s.abandoned or '') == '' and", "elsewhere and"),
        "folders",
    ),
)
