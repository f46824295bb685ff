"""Dendro as a library: what a program needs that runs agents, or watches and answers them.

Every name is loaded when it is first used, so that a program which only lists sessions does not load what
a worker runs, and `dendro --help` loads nothing of it. docs/api.md tells of each; `examples/` shows them
at work. What is not in `__all__` may change with any version.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing's import costs a command's supervisor more than its own code
if TYPE_CHECKING:
    import typing

    from orchestrator.broker.errors import BrokerError
    from orchestrator.broker.follow import BEGINNING, EqCursor
    from orchestrator.broker.records import SessionHead
    from orchestrator.core.ids import SessionId, TreeId
    from orchestrator.gateways.client import Client
    from orchestrator.gateways.submit import decide
    from orchestrator.gateways.turn_follower import Turn, run_turn
    from orchestrator.protocol.ids import SubmissionId
    from orchestrator.protocol.policy import ReviewDecision
    from orchestrator.protocol.submission import Submission
    from orchestrator.settings import Settings, SettingsError, SettingsSources, load_settings
    from orchestrator.tools.custom import CustomTool, ToolPlace, ToolRequest
    from orchestrator.views import ViewError
    from orchestrator.views.agent_past import Page, Place, page_before
    from orchestrator.views.approvals import Asked, Decided, open_requests_of
    from orchestrator.views.event import Event
    from orchestrator.views.sessions import Filter, Listing, sessions_listed, trees_listed
    from orchestrator.views.tree import TreePicture, TreeReader
    from orchestrator.wiring.embedded_worker import run_worker
    from orchestrator.wiring.open_deployment import Opened, new_session, opened

__all__ = [
    "BEGINNING",
    "Asked",
    "BrokerError",
    "Client",
    "CustomTool",
    "Decided",
    "EqCursor",
    "Event",
    "Filter",
    "Listing",
    "Opened",
    "Page",
    "Place",
    "ReviewDecision",
    "SessionHead",
    "SessionId",
    "Settings",
    "SettingsError",
    "SettingsSources",
    "Submission",
    "SubmissionId",
    "ToolPlace",
    "ToolRequest",
    "TreeId",
    "TreePicture",
    "TreeReader",
    "Turn",
    "ViewError",
    "decide",
    "load_settings",
    "new_session",
    "open_requests_of",
    "opened",
    "page_before",
    "run_turn",
    "run_worker",
    "sessions_listed",
    "trees_listed",
]

_MODULES = {
    "broker.errors": ("BrokerError",),
    "broker.follow": ("BEGINNING", "EqCursor"),
    "broker.records": ("SessionHead",),
    "core.ids": ("SessionId", "TreeId"),
    "gateways.submit": ("decide",),
    "gateways.client": ("Client",),
    "gateways.turn_follower": ("Turn", "run_turn"),
    "protocol.ids": ("SubmissionId",),
    "protocol.policy": ("ReviewDecision",),
    "protocol.submission": ("Submission",),
    "settings": ("Settings", "SettingsError", "SettingsSources", "load_settings"),
    "tools.custom": ("CustomTool", "ToolPlace", "ToolRequest"),
    "views.approvals": ("Asked", "Decided", "open_requests_of"),
    "views": ("ViewError",),
    "views.event": ("Event",),
    "views.agent_past": ("Page", "Place", "page_before"),
    "views.sessions": ("Filter", "Listing", "sessions_listed", "trees_listed"),
    "views.tree": ("TreePicture", "TreeReader"),
    "wiring.embedded_worker": ("run_worker",),
    "wiring.open_deployment": ("Opened", "new_session", "opened"),
}
"""Where each name is; the same as above for type checkers, which a test holds against each other."""


def __getattr__(name: str) -> typing.Any:
    for module, names in _MODULES.items():
        if name in names:
            found = getattr(import_module(f"orchestrator.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
