"""Defects of what folders hold: of snapshots, packs, merges, offers, the way back, and folders made anew."""

from __future__ import annotations

from orchestrator.core import evolve
from orchestrator.core.decide import agent
from orchestrator.folders import keeper_process, merge, names, stat_cache
from orchestrator.folders.build import Build
from orchestrator.folders.merge import Planner
from orchestrator.folders.scan import Scan
from orchestrator.runtime.side_work import FolderWork
from orchestrator.tools import subagents
from orchestrator.workspaces import claimed_folder
from orchestrator.workspaces.copies import Copy
from orchestrator.workspaces.service import MachineFolders
from sim.mutant import Mutant, text

DEFECTS = (
    Mutant(
        "offers lack the packs of their bases",
        "an agent whose folder was packed anew offers it without the packs of what it began with",
        text(agent, "offered", "(*known.base_packs, *known.packs)", "known.packs"),
        "contents",
    ),
    Mutant(
        "nobody keeps the packs of a beginning",
        "a session forgets which packs make what it began with as soon as it has begun",
        text(evolve, "evolve_workspace", "base_packs=packs", "base_packs=packs[1:]"),
        "contents",
    ),
    Mutant(
        "ends that a look tells of are not recorded",
        "what a process wrote last, read to its end by a look at it, is in no snapshot",
        text(FolderWork, "around", "if writes or finished.over is not None:", "if writes:"),
        "contents",
    ),
    Mutant(
        "packs before the last one are forgotten",
        "a session's folder is made from its first pack and the last one, without those between",
        text(evolve, "_saved", "(*known.packs, fact.pack)", "(*known.packs[:1], fact.pack)"),
        "contents",
    ),
    Mutant(
        "whole packs are flat",
        "a pack that stands alone holds the files of the top, and of no folder below",
        text(stat_cache, "closure", "pending.append(entry.sha)", "pass"),
        "contents",
    ),
    Mutant(
        "files of one length are the same",
        "a file whose size and inode did not change is not read again",
        text(
            Scan,
            "_from_listing",
            "(now.st_ctime_ns, now.st_size, now.st_ino) == file[:3]",
            "(now.st_size, now.st_ino) == file[1:3]",
        ),
        "contents",
    ),
    Mutant(
        "programs are made as files",
        "a folder that is made from packs has no executable file",
        text(
            Build, "_file", "new_file(fd, name, content, file.mode)", "new_file(fd, name, content, 0o100644)"
        ),
        "contents",
    ),
    Mutant(
        "snapshots know no programs",
        "an executable file is recorded as any other one",
        text(names, "mode_of", "PROGRAM if st_mode & stat.S_IXUSR else FILE", "FILE"),
        "contents",
    ),
    Mutant(
        "merges bring back what was deleted",
        "a file that was deleted here and changed there is there again",
        text(
            Planner,
            "_step",
            'raise Refused("deleted here, changed there")',
            "return self._taken(change.path, ours, theirs)",
        ),
        "contents",
        test="tests/folders/test_merge.py::test_conflict_leaves_the_folder_as_it_is",
    ),
    Mutant(
        "merges take the other side",
        "of a text that both sides have changed the agent's is taken as it is",
        text(
            Planner,
            "_merged",
            "elif ours.sha in (base.sha, theirs.sha):",
            "elif ours.sha:",
        ),
        "contents",
        test="tests/folders/test_merge.py::test_changes_of_both_sides_to_one_file_are_joined",
    ),
    Mutant(
        "merges delete no file",
        "a file that an agent has deleted stays where it was merged into",
        text(Planner, "plan", "if step is not None:", "if step is not None and step.after is not None:"),
        "contents",
        test="tests/folders/test_merge.py::test_changes_of_both_sides_to_one_file_are_joined",
    ),
    Mutant(
        "merges read one pack",
        "a merge brings the last pack of an offer from the store, and no other",
        text(claimed_folder, "_merged", "list(work.packs)", "list(work.packs)[-1:]"),
        "contents",
    ),
    Mutant(
        "later merges begin at the beginning",
        "a second merge of an agent brings what the first one has brought, too",
        text(subagents, "_merge", "offer.base if known is None else known.snapshot", "offer.base"),
        "contents",
    ),
    Mutant(
        "folders are made as the store has them",
        "a machine that has unsaved changes makes the folder of before them, and says that it has them",
        text(MachineFolders, "_build", "if standing == stored:", "if stored:"),
        "folders",
    ),
    Mutant(
        "unsaved snapshots count as stored",
        "the next snapshot follows one that the store has not got",
        text(
            MachineFolders,
            "changed",
            "held.standing = FolderSnapshot(result.snapshot)",
            "held.standing = held.stored = FolderSnapshot(result.snapshot)",
        ),
        "folders",
    ),
    Mutant(
        "askers do not wait for each other",
        "a call that ends while another one is recorded follows the snapshot of before both",
        text(
            MachineFolders,
            "changed",
            "await held.asking.acquire()",
            "held.asking = asyncio.Lock()\n            await held.asking.acquire()",
        ),
        "contents",
    ),
    Mutant(
        "copies stay clean",
        "a copy is not noted as written to before a call begins",
        text(Copy, "dirty", 'if (found.kind, found.claim) != ("dirty", claim):', "if found.kind == 'none':"),
        "folders",
    ),
    Mutant(
        "merges are taken back in part",
        "of a merge that was broken off the last step alone is taken back",
        text(
            merge,
            "take_back",
            "reversed(list(enumerate(steps)))",
            "reversed(list(enumerate(steps))[-1:])",
        ),
        "contents",
    ),
    Mutant(
        "the way back is told and not gone",
        "a merge whose keeper was lost is said not to be written, and stays",
        text(keeper_process, "_take_back_merge", "copy.take_back_merge()", "pass"),
        "contents",
    ),
    Mutant(
        "agents begin where their makers began",
        "an agent's folder is a copy of what its maker's was at first",
        text(
            agent,
            "began_with",
            "f.WorkspaceBegun(known.snapshot, known.packs, known.omitted)",
            "f.WorkspaceBegun(known.base, known.base_packs, known.omitted)",
        ),
        "contents",
    ),
)
