"""Instructions of a portable folder whose content nobody had when its session was made."""

from __future__ import annotations

from typing import Any

from orchestrator.core import commands as c
from orchestrator.core import facts as f
from orchestrator.core.commands import FolderMade
from orchestrator.core.entries import SESSION_META, Entry, fact
from orchestrator.core.outstanding import OweRequest, ReadInstructions
from orchestrator.core.packs import Pack
from orchestrator.core.settings import PortableFolder, portable_wire
from orchestrator.protocol.ids import SnapshotId
from tests.core.driver import FACTS, Session, op
from tests.core.tree_driver import TreeDriver

SOURCE = {"git": "https://git.example/app.git"}
UNTOLD: Any = portable_wire(PortableFolder("/workspaces", "app", source=SOURCE, untold=True))
APP = f"/workspaces/{FACTS['tree_id']}/app"
PACK = Pack("tree/workspaces/session/1.pack", "1" * 64, 100, whole=True)


def turn(words: str = "go") -> Any:
    return op(
        "user_turn",
        items=[{"type": "text", "text": words}],
        cwd=APP,
        approval_policy="never",
        sandbox_policy={"mode": "read-only"},
        model="gpt-5",
        summary="auto",
    )


def begun() -> Session:
    """A session whose folder the worker that needs it first makes from elsewhere."""
    session = Session(facts={**FACTS, "portable": UNTOLD})
    session.record(Entry(SESSION_META, {"id": "s", "cwd": APP}))
    session.submit(turn(), "u1")
    return session


def works(session: Session) -> None:
    """A call needs the folder, so it is made."""
    session.asks_for("c1")
    session.happens(FolderMade("m1", SnapshotId("s1"), anew=True, fetched=PACK))
    session.runs("c1", "make")
    session.finishes("c1")


def test_model_reads_the_instructions_of_a_folder_once_there_is_one() -> None:
    session = begun()
    assert session.owes() == (OweRequest(),), "nobody can read them yet"
    works(session)
    assert session.owes() == (ReadInstructions(APP),)
    session.happens(c.InstructionsRead(APP, "Be kind."))
    assert session.owes() == (OweRequest(),)
    assert any("Be kind." in text for text in session.texts())


def test_session_that_goes_back_to_before_the_instructions_reads_them_again() -> None:
    session = begun()
    session.answers("hello", "r1")
    session.submit(turn(), "u2")
    works(session)
    session.happens(c.InstructionsRead(APP, "Be kind."))
    session.answers("done", "r2")
    session.say("again", "u3", last_response_id="r1")
    assert session.owes() == (ReadInstructions(APP),)


def a_tree() -> TreeDriver:
    """A tree whose root's folder is there, and whose root has read it."""
    tree = TreeDriver(facts={"portable": UNTOLD})
    root = tree.root
    root.record(Entry(SESSION_META, {"id": root.sid, "cwd": APP}))
    root.submit(turn(), "u1")
    root.record(fact(f.WorkspaceBegun(SnapshotId("s1"), (PACK,))))
    root.happens(c.InstructionsRead(root.state.settings.cwd, "Be kind."))
    return tree


def test_new_agent_reads_the_instructions_itself_and_a_fork_has_them() -> None:
    tree = a_tree()
    child, fork = tree.root.spawns("look"), tree.root.forks("look")
    tree.settle()
    assert child.owes() == (ReadInstructions(child.state.settings.cwd),)
    assert fork.owes() == (OweRequest(),)


def test_session_whose_folder_was_packed_with_its_instructions_reads_nothing() -> None:
    folder: Any = portable_wire(PortableFolder("/workspaces", "app"))
    session = Session(facts={**FACTS, "portable": folder})
    session.record(Entry(SESSION_META, {"id": "s", "cwd": APP}))
    session.submit(turn(), "u1")
    works(session)
    assert session.owes() == (OweRequest(),)
