"""Settings of sessions and trees: how a new one starts, and what its agents may do and use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from orchestrator.tables.base import KIB, Table, named, setting, settings_of, unfit
from orchestrator.tables.commands import SandboxPolicy

ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
APPROVAL_POLICIES = ("untrusted", "on-request", "on-failure", "never")
"""From the one that asks most to the one that never does."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Summary = Literal["auto", "concise", "detailed", "none"]
Verbosity = Literal["low", "medium", "high"]
Personality = Literal["none", "friendly", "pragmatic"]
INSTRUCTIONS_BYTES = 32 * KIB
MOST_FALLBACKS = 16


class SessionDefaults(Table):
    """The start of a new session. It travels with the session, wherever that runs."""

    cwd: Path

    model: str = setting("gpt-5", "model", folder="free")
    """Model of the first turn; `user_turn` and `override_turn_context` may change it."""

    model_provider: str = setting("openai", "model_provider", folder="trusted")
    """Name of a provider; its URL and key are looked up by the worker that runs the turn."""

    effort: Effort | None = setting(
        None, "model_reasoning_effort", folder="free", shown_default="the model's own"
    )
    """How much the model thinks."""

    summary: Summary = setting("auto", "model_reasoning_summary", folder="free")
    """How much of that thinking it tells."""

    verbosity: Verbosity | None = setting(
        None, "model_verbosity", folder="free", shown_default="the model's own"
    )
    """Length of answers; sent to `gpt-5` models only."""

    personality: Personality | None = setting(
        None, "personality", folder="free", shown_default="the model's own"
    )
    """The model's way of speaking; `none` takes back what was chosen before."""

    approval_policy: ApprovalPolicy = setting("on-request", "approval_policy", folder=APPROVAL_POLICIES)
    """The person is asked before a command: always unless it is known to be safe, after a denial by the
    sandbox, when the model asks for more, or never."""

    approval_timeout_s: float | None = setting(
        None, "approval_timeout_s", folder="down", at_least=1, shown_default="never"
    )
    """Seconds after which an open approval is denied in the timer's name."""

    on_user_input: Literal["replace", "steer"] = setting("replace", "on_user_input", folder="free")
    """The effect of input on a running task: end it and start anew, or join it."""

    item_events: Literal["plan", "all"] = setting("plan", "item_events", folder="free")
    """The items of a turn of which clients are told when they begin and end (`item_started`,
    `item_completed`): proposed plans alone, or all of them, beside the older events."""

    pool: str = setting("", "pool", folder="trusted", shown_default="`host:<machine id>`")
    """Which workers may run the session."""

    base_instructions: str | None = setting(
        None, "base_instructions", folder="trusted", shown_default="Dendro's own"
    )
    """Replaces the system prompt. `model_instructions_file` names a file that holds it."""

    user_instructions: str | None = setting(None, "user_instructions", folder="free", shown_default="none")
    """Added to the first message of every session."""

    project_doc_max_bytes: int = setting(
        INSTRUCTIONS_BYTES, "project_doc_max_bytes", folder="down", at_least=0, at_most=64 * KIB
    )
    """Bytes that are read of a repository's `AGENTS.md` files, and of your own; 0 reads none."""

    project_doc_fallbacks: tuple[str, ...] = setting(
        (), "project_doc_fallback_filenames", folder="trusted", shown_default="none"
    )
    """Names of files that stand in for `AGENTS.md` in a folder that has none, tried in this order."""

    history: Literal["save-all", "none"] = setting("save-all", "history.persistence", folder="free")
    """Keep the prompts that a client adds to your history, which all your sessions share; `none` writes
    nothing."""

    sandbox: SandboxPolicy = SandboxPolicy()

    @field_validator("project_doc_fallbacks")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(names) > MOST_FALLBACKS or any(not name or "/" in name or "\0" in name for name in names):
            raise unfit(f"at most {MOST_FALLBACKS} names of files, without a folder")
        return names

    _named = field_validator("model", "model_provider")(named)


SESSION_KEYS: Mapping[str, str] = {name: mark.key for name, mark in settings_of(SessionDefaults)} | {
    "sandbox": dict(settings_of(SandboxPolicy))["mode"].key
}
"""The key of each field that a new session begins with; of the sandbox that of its mode."""


class AgentSettings(Table):
    """Trees: what the agents of one may do and use, settled when its root is made."""

    enabled: bool = setting(True, "agents.enabled", folder=(False, True))
    """Offer the model the tools that make agents."""

    slots: int = setting(8, "max_active_subagents", folder="down", at_least=1, at_most=10_000)
    """Agents of one tree that may be at work at once. A model that makes more is refused until one is
    done; 64 is plenty for one machine, a fleet may take more."""

    spawned: int = setting(200, "agents.max_spawned", folder="down", at_least=1)
    """Agents that one tree may make in all, finished ones counted: what ends a tree that breeds."""

    depth: int = setting(4, "agents.max_depth", folder="down", at_least=1, at_most=32)
    """Generations below the root."""

    autosubmit: bool = setting(True, "subagent_root_inbox_autosubmit", folder=(False, True))
    """Let a child's result begin a turn of its idle parent. Otherwise it waits for the next input."""

    await_floor_s: float = setting(300.0, "agents.await_floor_s", folder="up", at_least=0, at_most=1800)
    """Shortest wait that `subagent_await` accepts. The protocol's is 300 s; lower it for tests only: a
    model that polls costs tokens."""

    watchdog_floor_s: float = setting(30.0, "agents.watchdog_floor_s", folder="up", at_least=1)
    """Shortest interval of a watchdog. Each bark may begin a turn of whoever is watched, so a short one costs
    tokens all the time; lower it for tests only."""

    watchdogs: int = setting(16, "agents.max_watchdogs", folder="down", at_least=0)
    """Watchdogs that one agent may keep."""

    budget_tokens: int | None = setting(
        None, "agents.budget_tokens", folder="down", at_least=1, shown_default="no limit"
    )
    """Tokens that one tree may use, the root's too. Reserved before each request and settled after it: the
    overshoot is what is in flight. At the end of a budget the tree pauses, and goes on when more is added."""

    budget_cost: float | None = setting(
        None, "agents.budget_cost", folder="down", at_least=0, shown_default="no limit"
    )
    """Dollars, by `model_prices`. A model without a price is refused then."""

    budget_requests: int = setting(10_000, "agents.budget_requests", folder="down", at_least=1)
    """Model requests of one tree. A night of eight agents that each ask every 23 s comes to 10,000; so does a
    model that only repeats itself, and it is paused then instead of being paid for for ever. At 80 % people
    are warned; `dendro budget ID --add requests=N` lets a tree go on."""

    budget_wall_s: float | None = setting(
        None, "agents.budget_wall_s", folder="down", at_least=1, shown_default="no limit"
    )
    """Seconds since the tree was made."""
