"""The offer of a deployment to new sessions: its settings as a door may tell of them.

The tables hold keys of providers; nothing here hands one on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from orchestrator.core.frozen import record
from orchestrator.instructions.skills import Skills
from orchestrator.tables import McpServerSettings, ModelSettings, SessionDefaults, ToolSettings


@record
class Offer:
    """The settings in force for new sessions, and the skills of this machine."""

    defaults: SessionDefaults
    models: ModelSettings
    tools: ToolSettings
    skills: Skills
    servers: Mapping[str, McpServerSettings] = field(default_factory=dict)
