"""Rules of portable folders, and of the machines that have them."""

from __future__ import annotations

from sim.rule import Case, Rule

FOLDER_RULES = {
    "folder": Rule(
        (
            "The portable folder that a call meets is the fold of the log's snapshots, made under the call's"
            " own claim."
        ),
        Case("a call began in a folder that was written under an earlier claim"),
    ),
    "set_up": Rule(
        (
            "A call meets a folder in which its session's set-up has run since the folder was made there; the"
            " set-up runs alone, as its log says, and what it wrote is recorded before calls begin."
        ),
        Case("a set-up began under a later claim than the first"),
    ),
    "one_writer": Rule(
        "Nobody but the holder of a session's claim writes to its portable folder.",
        Case("a portable folder was made, or found clean, under a claim", ("fact workspace_made",)),
    ),
    "packed": Rule(
        (
            "An entry that names a snapshot, or what an agent offers and began with, comes after its packs"
            " are in the store, and they make that snapshot, file by file."
        ),
        Case("a snapshot was recorded", ("fact workspace",)),
    ),
    "unborn": Rule(
        (
            "A client stores nothing for a session before it has announced it; what it stored for one that"
            " was never made is gone when days have passed; and the store has each pack that a log names"
            " last."
        ),
        Case("packs were removed of a session that was never made"),
    ),
    "recorded": Rule(
        (
            "When a call has its output, what it wrote to a portable folder is in the log's snapshot, or the"
            " log says that it is not stored; so is what a process wrote, when a look at it tells of its end."
        ),
        Case("a call had its output that was killed while it wrote"),
    ),
    "sealed": Rule(
        (
            "Where packs have a key, a worker stores none that is not encrypted; and a machine that has all"
            " keys reads what any of them has sealed."
        ),
        Case("a folder could not be made because a key was not on its machine", ("case keyless",)),
    ),
    "begun_with": Rule(
        "An agent of a portable tree begins with its maker's folder as that one's log has it just then.",
        Case("an agent was made by one whose folder had changed since it began"),
    ),
    "three_ways": Rule(
        (
            "A merge leaves in a folder what three ways make of it, all or nothing: of a text that both"
            " sides have changed each place; and it conflicts only where both have changed the same, or what"
            " cannot be merged. What it needs of packs the store has."
        ),
        Case("a merge was written into a folder that had changed, too", ("case merged_by_three_ways",)),
    ),
    "taken_back": Rule(
        (
            "A merge that did not come to its end is taken back, or its folder is made anew: what somebody"
            " has changed since stays, all else is as before, and no new folder is left. What is told as not"
            " written, or is not in the log when the next claim has judged it, is not there."
        ),
        Case("a merge was taken back in the middle of which its keeper was killed"),
    ),
    "rolled_back": Rule(
        "A call of a lost holder that says that the folder is as before it has left nothing there.",
        Case("a call that may have written was in doubt"),
    ),
    "copied": Rule(
        (
            "An agent that works in a copy of its maker's folder begins with one that was taken for this very"
            " response, and with all that the maker's calls have written there by then."
        ),
        Case("an agent began with a copy of a folder that calls had written to"),
    ),
    "placed": Rule(
        (
            "A session whose folder's changes are on one machine alone is claimed there, or that machine's"
            " heartbeat is gone, or a person gave them up; its hash says of the folder what its log says; and"
            " the machine finds them."
        ),
        Case("a session was left to the machine that has its unsaved changes"),
    ),
    "taken": Rule(
        (
            "A session that is due is left to a machine for a moment only, and no longer than that machine is"
            " there; and what a person has given up is not waited for."
        ),
        Case("a session was claimed that its worker had passed over before"),
    ),
    "roomy": Rule(
        (
            "A worker whose machine has no room for folders says so with a heartbeat, and claims no portable"
            " session while another machine has room; unless its changes are there alone."
        ),
        Case("a worker without room passed over a portable session"),
    ),
    "given_up": Rule(
        "What a person gives up of a folder is gone, and the log says who did it, and of nobody else.",
        Case("unsaved changes were given up"),
    ),
}

FOLDER_CASES = {
    "keeper_killed": Case("a keeper was killed between two writes of what it did to a folder"),
    "pack_lost": Case("an entry named packs of which the store had lost one"),
    "conflicts": Case("a merge conflicted"),
    "offered_anew": Case("an agent offered a folder whose packs were made anew since it began"),
    "read_to_its_end": Case("a process in a portable folder was looked at, and had ended"),
}
