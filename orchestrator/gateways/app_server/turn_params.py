"""The words and the settings that a turn begins with in the app-server protocol, and how these are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field, ValidationError

from orchestrator.config_keys import SESSION_KEYS
from orchestrator.core.settings import OF_TURNS, TurnSettings
from orchestrator.gateways.app_server.messages import bad_params, invalid
from orchestrator.gateways.app_server.method import Params
from orchestrator.protocol import inputs, ops
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue

Policy = Literal["untrusted", "on-request", "on-failure", "never"]
Reviewer = Literal["user", "auto_review", "guardian_subagent"]
Mode = Literal["read-only", "workspace-write", "danger-full-access"]

SANDBOX_TYPES: Mapping[str, str] = {
    "read-only": "readOnly",
    "workspace-write": "workspaceWrite",
    "danger-full-access": "dangerFullAccess",
}
_MODES = {type: mode for mode, type in SANDBOX_TYPES.items()}
_ROOTS = {
    "writable_roots": "writableRoots",
    "network_access": "networkAccess",
    "exclude_tmpdir_env_var": "excludeTmpdirEnvVar",
    "exclude_slash_tmp": "excludeSlashTmp",
}
EMPTY: Final = "input must not be empty: send a text, an image, a skill or a mention"
USER = "user"
"""The reviewer of approvals: there is no model that does."""


# ── words ─────────────────────────────────────────────────────────────────────────────────────────


class RangeParams(Params):
    """A span of a text in bytes of UTF-8, the end excluded."""

    start: Annotated[int, Field(ge=0)]
    end: Annotated[int, Field(ge=0)]


class ElementParams(Params):
    """A part of a text that a client draws in its own way."""

    byte_range: RangeParams
    placeholder: str | None = None


class Text(Params):
    """Plain text."""

    type: Literal["text"]
    text: str
    text_elements: Annotated[tuple[ElementParams, ...], Field(alias="text_elements")] = ()


class Image(Params):
    """An image by its URL, usually one of data."""

    type: Literal["image"]
    url: str


class LocalImage(Params):
    """An image file where the session runs."""

    type: Literal["localImage"]
    path: str


class Named(Params):
    """A skill or a connector that the person named."""

    type: Literal["skill", "mention"]
    name: str
    path: str


class Sound(Params):
    """Speech, which no model here is given."""

    type: Literal["audio", "localAudio"]


Said: TypeAlias = Annotated[Text | Image | LocalImage | Named | Sound, Field(discriminator="type")]


def input_items(said: tuple[Said, ...]) -> tuple[inputs.InputItem, ...]:
    """The input of an operation; raises `RpcError` for what is not taken."""
    if not said:
        # A turn would end before it begins, and the client wait for its end.
        raise bad_params(EMPTY)
    return tuple(map(_item, said))


def _item(said: Said) -> inputs.InputItem:
    match said:
        case Text():
            elements = tuple(map(_element, said.text_elements))
            return inputs.TextInput(text=said.text, text_elements=elements or None)
        case Image():
            return inputs.ImageInput(image_url=said.url)
        case LocalImage():
            return inputs.LocalImageInput(path=said.path)
        case Named(type="skill"):
            return inputs.SkillInput(name=said.name, path=said.path)
        case Named():
            return inputs.MentionInput(name=said.name, path=said.path)
        case Sound():
            raise bad_params(f"input: {said.type} is not taken: send text or images")


def _element(element: ElementParams) -> inputs.TextElement:
    place = inputs.ByteRange(start=element.byte_range.start, end=element.byte_range.end)
    return inputs.TextElement(byte_range=place, placeholder=element.placeholder)


# ── settings, as params name them ─────────────────────────────────────────────────────────────────


class SettingsParams(Params):
    """Params that name settings of turns; what is left out, or null, stays as it is."""

    def named(self) -> dict[str, Any]:
        """The settings that are named, by their own names and in their own form; raises `RpcError`."""
        values = {name: getattr(self, name, None) for name in OF_TURNS}
        return {name: value for name, value in values.items() if value is not None}

    def override(self) -> ops.OverrideTurnContext | None:
        """The change of the session's settings; None if there is none. Raises `RpcError`."""
        named = self.named()
        try:
            return ops.OverrideTurnContext.model_validate(named) if named else None
        except ValidationError as error:
            raise invalid(error) from None


class NamedSettings(SettingsParams):
    """Settings of a thread or a conversation that begins, or is come back to."""

    cwd: str | None = None
    model: str | None = None
    approval_policy: Policy | None = None
    sandbox: str | None = None

    def named(self) -> dict[str, Any]:
        """The same; the sandbox is named by its mode alone."""
        sandbox = {} if self.sandbox is None else {"sandbox_policy": {"mode": self.sandbox}}
        return {**super().named(), **sandbox}

    def by_keys(self) -> dict[str, Any]:
        """The settings that are named, by the keys of the configuration file."""
        values = {key: getattr(self, name, None) for name, key in SESSION_KEYS.items()}
        return {key: value for key, value in values.items() if value is not None}


class CollaborationSettings(Params):
    """A mode's own settings, in snake case on the wire."""

    model: str
    reasoning_effort: str | None = Field(None, alias="reasoning_effort")
    developer_instructions: str | None = Field(None, alias="developer_instructions")


class CollaborationParams(Params):
    """The mode of a turn and those after it."""

    mode: Literal["plan", "default"]
    settings: CollaborationSettings


class TurnSettingsParams(SettingsParams):
    """Settings of a turn and those after it."""

    cwd: str | None = None
    model: str | None = None
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    approval_policy: Policy | None = None
    sandbox_policy: dict[str, Any] | None = None
    collaboration_mode: CollaborationParams | None = None
    personality: Literal["none", "friendly", "pragmatic"] | None = None

    def named(self) -> dict[str, Any]:
        """The same; a mode brings its model."""
        named = super().named()
        if (mode := self.collaboration_mode) is not None:
            named |= {"model": mode.settings.model, "collaboration_mode": mode.model_dump()}
        if self.sandbox_policy is not None:
            named["sandbox_policy"] = sandbox_of(self.sandbox_policy)
        return named


# ── settings, as answers tell them ────────────────────────────────────────────────────────────────


def sandbox_json(policy: JsonMapping) -> JsonObject:
    """A `SandboxPolicy`."""
    type = SANDBOX_TYPES.get(str(policy["mode"]), "readOnly")
    if type == "dangerFullAccess":
        return {"type": type}
    if type == "readOnly":
        return {"type": type, "networkAccess": False}
    flags = {name: bool(policy.get(ours)) for ours, name in _ROOTS.items() if ours != "writable_roots"}
    return {"type": type, "writableRoots": list(policy.get("writable_roots") or ()), **flags}


def sandbox_of(policy: JsonMapping) -> JsonObject:
    """The policy of a client in our own form; raises `RpcError`."""
    mode = _MODES.get(str(policy.get("type")))
    if mode is None:
        raise bad_params(
            f"sandboxPolicy.type: {policy.get('type')!r} is not offered: {', '.join(SANDBOX_TYPES.values())}"
        )
    if mode != "workspace-write":
        return {"mode": mode}
    return {"mode": mode, **{ours: policy[name] for ours, name in _ROOTS.items() if name in policy}}


def approval_json(policy: str) -> str:
    """An `AskForApproval`: newer clients do not know `on-failure`, which asks when `on-request` may."""
    return "on-request" if policy == "on-failure" else policy


def session_json(settings: TurnSettings) -> JsonObject:
    """The settings of a session as the answers to start, resume and fork carry them, beside the thread."""
    return {
        "model": settings.model,
        "modelProvider": settings.model_provider,
        "serviceTier": None,
        "disabledPluginIds": [],
        "cwd": settings.cwd,
        "runtimeWorkspaceRoots": [settings.cwd],
        "instructionSources": [],
        "approvalPolicy": approval_json(settings.approval_policy),
        "approvalsReviewer": USER,
        "sandbox": sandbox_json(settings.sandbox_policy),
        "activePermissionProfile": None,
        "reasoningEffort": settings.effort,
        "multiAgentMode": "explicitRequestOnly",
    }


def settings_json(settings: TurnSettings) -> JsonObject:
    """A `ThreadSettings`."""
    mode = settings.collaboration_mode or {}
    return {
        "cwd": settings.cwd,
        "approvalPolicy": approval_json(settings.approval_policy),
        "approvalsReviewer": USER,
        "sandboxPolicy": sandbox_json(settings.sandbox_policy),
        "activePermissionProfile": None,
        "model": settings.model,
        "modelProvider": settings.model_provider,
        "serviceTier": None,
        "disabledPluginIds": [],
        "effort": settings.effort,
        "summary": settings.summary,
        "collaborationMode": {"mode": _mode_json(mode.get("mode")), "settings": _mode_settings(settings)},
        "multiAgentMode": "explicitRequestOnly",
        "personality": settings.personality,
    }


def _mode_json(mode: JsonValue) -> str:
    return "plan" if mode == "plan" else "default"


def _mode_settings(settings: TurnSettings) -> JsonObject:
    return {"model": settings.model, "reasoning_effort": settings.effort, "developer_instructions": None}
