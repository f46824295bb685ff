"""Who needs a person, where, since when and for what: an open request with what surrounds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from orchestrator.broker.records import SessionHead
from orchestrator.cli.deciding import Asked
from orchestrator.cli.live import variables_text
from orchestrator.cli.opening import Opened
from orchestrator.cli.sessions import age
from orchestrator.cli.short_ids import short_ids
from orchestrator.cli.text import one_line
from orchestrator.core.ids import SessionId
from orchestrator.core.registry import Agent, projected


@dataclass(frozen=True, slots=True)
class Needed:
    """One request before a person who knows nothing of its tree."""

    asked: Asked
    tree: str
    """The root's id, short."""
    title: str
    label: str
    folder: str

    def lines(self, now_ms: float) -> Iterator[tuple[str, str]]:
        """Two lines with their styles."""
        agent = f"agent {self.asked.agent_path}" + (f" ({self.label})" if self.label else "")
        waits = f"{age((now_ms - self.asked.opened_ms) / 1000):<4}"
        parts = (self.title, agent if self.asked.agent_id else "the root", self.folder)
        yield f"{waits} {self.tree}  {one_line(' · '.join(part for part in parts if part))}", "bold"
        yield f"     {one_line(f'{self.asked.call}  {self._wish()}')}", ""

    def _wish(self) -> str:
        request = self.asked.request
        verb = "run" if request["type"] == "exec_approval_request" else "change"
        variables = variables_text(request) if verb == "run" else ""
        parts = (f"{verb} {self.asked.subject}", f"with {variables}" if variables else "")
        reason = f" ({request['reason']})" if request.get("reason") else ""
        return " ".join(part for part in parts if part) + reason

    def value(self) -> dict[str, Any]:
        """For programs."""
        return {**self.asked.value(), "title": self.title, "label": self.label or None, "cwd": self.folder}


async def needed(found: Opened, asked: Sequence[Asked]) -> list[Needed]:
    """The requests with names and folders, in the same order."""
    trees = list(dict.fromkeys(one.tree for one in asked))
    sessions = dict.fromkeys((*map(SessionId, trees), *(one.session for one in asked)))
    heads = {head.session: head for head in await found.broker.heads(list(sessions))}
    registries = zip(trees, await found.broker.registries(trees), strict=True)
    agents = {tree: projected(fields).agents for tree, fields in registries}
    shorts = short_ids(map(SessionId, trees))
    return [
        Needed(
            asked=one,
            tree=shorts[SessionId(one.tree)],
            title=_title(_meta(heads.get(SessionId(one.tree)))),
            label=_label(agents[one.tree].get(one.agent_id)),
            folder=str(_meta(heads.get(one.session)).get("cwd") or ""),
        )
        for one in asked
    ]


def _meta(head: SessionHead | None) -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads(head.meta) if head is not None and head.meta else {}
    return found


def _title(meta: Mapping[str, Any]) -> str:
    return str(meta.get("name") or meta.get("title") or "")


def _label(agent: Agent | None) -> str:
    return str(agent.record.get("label") or "") if agent is not None else ""
