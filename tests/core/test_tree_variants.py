"""`propose_plan_variants`: three helpers at once, and an output whatever comes of them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.calls import PlanWork
from orchestrator.core.decide.agent_calls import DRAFTED
from orchestrator.core.evolve import stated
from orchestrator.core.facts import Answered
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId
from orchestrator.core.modes import variant
from orchestrator.core.snapshot import decode, encode
from orchestrator.protocol.ids import CallId, SubmissionId
from tests.core.driver import op
from tests.core.tree_driver import Agent, TreeDriver, a_family, answers

SLANTS = ("Minimal", "Correctness", "DX")
PLAN = {"explanation": "Why.", "plan": [{"step": "Read", "status": "pending"}]}


def written(title: str = "My own") -> str:
    return orjson.dumps({"title": title, "summary": "s", "plan": PLAN}).decode()


def asked(tree: TreeDriver) -> c.Variants:
    numbers = [tree.next_id() for _ in SLANTS]
    specs = [tree.spec(n, "draft it", label=f"plan_variant_{place}") for place, n in enumerate(numbers, 1)]
    return c.Variants(tuple(specs), SLANTS)


def planning(**fields: Any) -> TreeDriver:
    tree = TreeDriver(**fields)
    tree.root.submit(op("plan", plan_request={"goal": "Add login"}), "p1")
    return tree


def drafting(tree: TreeDriver, call_id: str = "v") -> list[Agent]:
    """The helpers of a call of the root, which have begun."""
    request = asked(tree)
    assert tree.root.asks(call_id, "propose_plan_variants", request) is None
    tree.settle()
    return [tree.agents[spec.agent_id] for spec in request.specs]


def test_three_helpers_draft_at_once_and_the_output_has_their_plans_in_order() -> None:
    tree = planning()
    one, two, three = drafting(tree)
    begun = tree.root.seen[-1].all("sub_agent_tool_call_begin")
    assert [each["call_id"] for each in begun] == [f"v:plan_variant:{n}" for n in (1, 2, 3)]
    assert [each["invocation"]["description"] for each in begun] == list(SLANTS)
    assert [each["invocation"]["label"] for each in begun] == [f"plan_variant_{n}" for n in (1, 2, 3)]
    assert {agent.state.settings.sandbox_policy["mode"] for agent in (one, two, three)} == {"read-only"}
    assert one.state.settings.collaboration_mode is None
    answers(three, f"Here it is:\n{written()}\nAnything else?")
    answers(one, written())
    tree.settle()
    assert tree.root.status == "waiting"
    assert decode(encode(tree.root.state)) == tree.root.state == tree.root.replayed()
    two.begin()
    two.breaks("fatal", "no such model")
    tree.settle()
    output = orjson.loads(tree.root.output_of("v"))["variants"]
    assert [each["title"] for each in output] == list(SLANTS)
    assert output[0] == {"title": "Minimal", "summary": "s", "plan": PLAN}
    assert output[2]["plan"] == PLAN
    assert output[1]["plan"] == {"explanation": "the helper failed: no such model", "plan": []}
    ends = [end for seen in tree.root.seen for end in seen.all("sub_agent_tool_call_end")]
    assert sorted(end["outcome"] for end in ends) == ["completed", "completed", "failed"]
    tree.check()


def test_too_few_slots_make_nobody_and_the_model_reads_why() -> None:
    tree = planning(limits={"slots": 2, "spawned": 200})
    assert "no slot is free" in tree.root.asks("v", "propose_plan_variants", asked(tree))
    assert list(tree.agents) == [0]
    assert not tree.root.task.drafted
    tree.check()


def test_turn_that_a_result_begins_leaves_the_plan_to_the_persons_next_one() -> None:
    tree, (child,) = a_family()
    answers(tree.root)
    tree.root.submit(op("plan", plan_request={"goal": "Add login"}), "p1")
    tree.root.asks_for("c1", name="approve_plan")
    tree.root.assessed("c1", PlanWork({"title": "t", "summary": "", "plan": PLAN}))
    tree.root.submit(op("resolve_plan_approval", id="c1", response={"type": "approved"}))
    answers(child, "found it")
    tree.settle()
    assert (tree.root.task.id, tree.root.task.pinned) == ("auto-1", None)
    answers(tree.root)
    tree.root.say("go", "u2")
    assert tree.root.task.pinned is not None
    tree.check()


def test_draft_has_its_variants_once_until_the_plan_is_sent_back() -> None:
    tree = planning()
    for helper in drafting(tree):
        answers(helper, written())
    tree.settle()
    assert tree.root.asks("again", "propose_plan_variants", asked(tree)) == DRAFTED
    tree.root.begin()
    tree.root.calls("c1", name="approve_plan")
    tree.root.ends()
    proposal = {"title": "t", "summary": "", "plan": PLAN}
    tree.root.assessed("c1", PlanWork(proposal))
    response = {"type": "revised", "feedback": "shorter"}
    tree.root.submit(op("resolve_plan_approval", id="c1", response=response))
    assert len(drafting(tree, "v2")) == 3


def test_agents_plan_that_is_sent_back_leaves_the_roots_draft_its_one_time() -> None:
    tree = planning()
    for helper in drafting(tree):
        answers(helper, written())
    tree.settle()
    sent_back = Answered(CallId("theirs"), SubmissionId("spawn-1"), "revised", "a person")
    own = stated(tree.root.state, sent_back, 1)
    agents = stated(tree.root.state, replace(sent_back, agent_id=AgentId(1)), 1)
    assert [state.task and state.task.drafted for state in (tree.root.state, own, agents)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(("steps", "taken"), [(0, False), (1, True), (64, True), (65, False)])
def test_variant_has_as_many_steps_as_a_plan_may_have(steps: int, taken: bool) -> None:
    plan = {"explanation": "E", "plan": [{"step": f"{n}", "status": "pending"} for n in range(steps)]}
    answer = orjson.dumps({"title": "T", "summary": "S", "plan": plan}).decode()
    found = variant(answer, "Small", "nothing")
    assert (len(found["plan"]["plan"]), found["title"]) == (steps if taken else 0, "Small")
    assert (found["plan"]["explanation"] == answer) == (not taken)


def test_interrupt_ends_the_helpers_with_the_call() -> None:
    tree = planning()
    one, two, three = drafting(tree)
    answers(one, written())
    tree.settle()
    ends = tree.root.interrupt().all("sub_agent_tool_call_end")
    assert [end["call_id"] for end in ends] == ["v:plan_variant:2", "v:plan_variant:3"]
    assert {end["outcome"] for end in ends} == {"cancelled"}
    tree.settle()
    assert (two.standing, three.standing) == ("canceled", "canceled")
    tree.check()


def test_late_end_of_an_earlier_drafts_helper_is_no_variant_of_the_next() -> None:
    tree = planning()
    one, *_ = drafting(tree)
    one.asks_for("c1")
    one.runs("c1", "ls")
    tree.root.interrupt()
    tree.settle()
    tree.root.submit(op("plan", plan_request={"goal": "Add login"}), "p2")
    drafting(tree, "v2")
    one.stopped(c1=1.0)
    tree.settle()
    assert one.standing == "canceled"
    assert tree.root.told("v2") is None
    tree.check()


@pytest.mark.parametrize("end", ["interrupt", "input", "configure", "shutdown"])
def test_whatever_ends_a_call_ends_each_of_its_helpers(end: str) -> None:
    tree = planning()
    helpers = drafting(tree)
    match end:
        case "interrupt":
            tree.root.interrupt()
        case "input":
            tree.root.say("something else", "u2")
        case "configure":
            tree.root.submit(op("configure_session"))
        case _:
            tree.root.shutdown()
    tree.settle()
    assert [helper.standing for helper in helpers] == ["canceled"] * 3
    tree.check()


def test_helper_proposes_no_variants() -> None:
    tree = planning()
    (helper, *_) = drafting(tree)
    assert "cannot make agents" in helper.asks("w", "propose_plan_variants", asked(tree))


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "{",
        "{}",
        "no plan",
        '{"plan":[]}',
        '{"title":1,"plan":{"plan":[{"step":2}]}}',
        written()[:-2],
        "{}}" * 99,
    ],
)
def test_answer_that_is_no_plan_is_the_explanation_of_one_without_steps(answer: str) -> None:
    drafted = variant(answer, "DX", "it said nothing")
    assert drafted == {
        "title": "DX",
        "summary": "",
        "plan": {"explanation": answer or "it said nothing", "plan": []},
    }


def test_what_a_helper_writes_behind_its_draft_is_no_variant() -> None:
    tree = planning()
    drafted, *others = drafting(tree)
    answers(drafted, "first")
    tree.settle()
    said = op("message_agent", agent_id=drafted.id, text="and now?")
    tree.root.submit(said, who="ann", client="c", agents=(tree.target(drafted.id),))
    tree.settle()
    answers(drafted, "second")
    tree.settle()
    for helper in others:
        answers(helper, "other")
    tree.settle()
    output = orjson.loads(tree.root.output_of("v"))["variants"]
    assert [each["plan"]["explanation"] for each in output] == ["first", "other", "other"]
    tree.check()
