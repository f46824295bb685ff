"""The `view_image` tool: an image file of the machine, shown to the model."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.events import ViewImageToolCall
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.items import InputImage
from orchestrator.protocol.wire import JsonObject
from orchestrator.sandbox.place import Place
from orchestrator.tools.arguments import Arguments, parsed
from orchestrator.tools.images import data_url
from orchestrator.tools.places import place_of
from orchestrator.tools.site import CallSite, ToolConfig
from orchestrator.tools.specs import function, string
from orchestrator.tools.tool import Tool, task_of, unsupported

VIEW_IMAGE = function(
    "view_image",
    "Lets you see an image file of the machine that you work on.",
    {"path": string("The file, relative to the session's folder.")},
    ["path"],
)


class ImageArguments(Arguments):
    path: str


class ViewImage(Tool):
    """The tool of images; it only reads."""

    names = ("view_image",)
    beside = frozenset({"plan", "review"})
    parallel_safe = True
    repeatable = True

    def __init__(self, config: ToolConfig) -> None:
        self._config = config

    def offered(self, state: State) -> JsonObject | None:
        return VIEW_IMAGE if state.facts.view_image else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if not site.state.facts.view_image:
            return unsupported(call)
        given = parsed(ImageArguments, call.item["arguments"])
        path = Path(task_of(site.state).settings.cwd, given.path)
        try:
            url = await asyncio.to_thread(self._url, path, place_of(site.state.facts))
        except (OSError, ValueError) as error:
            return Immediate(f"the image {path} could not be read: {error}")
        event = ViewImageToolCall(call_id=CallId(call.call_id), path=str(path))
        return Immediate((InputImage(image_url=url),), (event,))

    def _url(self, path: Path, place: Place | None) -> str:
        if place is None:
            return data_url(path, self._config.hidden)
        file = place.followed(path)
        # The copies lie in the data folder, which is hidden from commands but for their own. Where the name
        # leads may have changed by now.
        own = next((it for it in (place.here, place.temporary) if file.is_relative_to(it)), None)
        return data_url(file, self._config.hidden if own is None else (), own)
