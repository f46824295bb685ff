"""The reference page's list of served operations and sent events is true of the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from orchestrator.protocol import events, ops
from tests.core.driver import Session
from tests.coverage_page import enumerations
from tests.protocol.served import NEVER_SENT, NEVER_SERVED, ONLY_READ, SENT_EVENTS, SERVED_OPS
from tests.protocol.test_wire_ops import submit
from tests.protocol.wire_examples import examples

PRODUCT = Path(__file__).parents[2] / "orchestrator"
REFUSAL = "this version does not serve"
ADAPT = "adapt tests/protocol/served.py, then: python -m tests.protocol_page > docs/protocol/reference.md"
EVENT_TAGS = {model.__name__: tag for tag, model in events.EVENTS.items()}


class Builders(ast.NodeVisitor):
    """The events that a module builds or names: annotations, patterns and type tests do not count."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self._names: dict[str, str] = {}
        self._modules: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if node.module == "orchestrator.protocol" and alias.name == "events":
                self._modules.add(alias.asname or alias.name)
            elif (node.module or "").startswith("orchestrator.protocol.events"):
                self._names[alias.asname or alias.name] = alias.name

    def visit_Name(self, node: ast.Name) -> None:
        self._note(self._names.get(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            self._note(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if getattr(node.func, "id", "") not in ("isinstance", "issubclass", "tag_of", "cast"):
            self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for pattern in (*node.patterns, *node.kwd_patterns):
            self.visit(pattern)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for statement in (*node.args.defaults, *node.body):
            self.visit(statement)

    def _note(self, name: str | None) -> None:
        if name in EVENT_TAGS:
            self.tags.add(EVENT_TAGS[name])
        elif name in events.EVENTS and hasattr(events, name):
            # Some payloads are made by a function with the event's tag for a name.
            self.tags.add(name)


def built_events() -> Iterator[str]:
    for path in PRODUCT.rglob("*.py"):
        if not path.is_relative_to(PRODUCT / "protocol"):
            found = Builders()
            found.visit(ast.parse(path.read_text(encoding="utf-8")))
            yield from found.tags


def refused_ops() -> Iterator[str]:
    """The ops that a session without a task answers as not served."""
    for op in {example["type"]: example for example in examples("ops")}.values():
        seen = Session().submit(submit(op))
        if any(REFUSAL in error["message"] and op["type"] in error["message"] for error in seen.all("error")):
            yield op["type"]


def test_every_op_that_a_session_decides_is_listed_as_served() -> None:
    assert sorted(set(ops.OPS) - set(refused_ops())) == sorted(SERVED_OPS), ADAPT


def test_every_event_that_the_product_builds_is_listed_as_sent() -> None:
    assert sorted(set(built_events())) == sorted(SENT_EVENTS), ADAPT


def test_what_is_left_to_other_programs_is_in_the_protocol_and_never_served_nor_sent() -> None:
    assert set(ops.OPS) > NEVER_SERVED
    assert not NEVER_SERVED & SERVED_OPS
    assert set(events.EVENTS) > NEVER_SENT
    assert not NEVER_SENT & SENT_EVENTS


def test_value_that_is_only_read_is_one_that_no_session_names() -> None:
    enums = {enum.__name__: enum for enum in enumerations()}
    members = {
        f"{name}.{enums[name](value).name}": value for name, values in ONLY_READ.items() for value in values
    }
    sessions = [
        path for part in ("core", "runtime", "tools", "instructions", "mcp") for path in _modules(part)
    ]
    named = {
        f"{node.value.id}.{node.attr}"
        for path in sessions
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert {"SkillScope.USER", "SkillScope.REPO"} <= named, "the test sees what a session names"
    assert sorted(members.keys() & named) == [], ADAPT


def _modules(part: str) -> Iterator[Path]:
    return (PRODUCT / part).rglob("*.py")
