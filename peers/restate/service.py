"""The service that Restate calls: a turn is a handler, each request and each command a step."""

from __future__ import annotations

import asyncio
import sys

import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from peers.work import ask, calls, client, run, said

talk = restate.VirtualObject("talk")
HTTP = client()


@talk.handler()
async def turn(ctx: restate.ObjectContext, text: str) -> int:
    """Takes a turn of the conversation that is the object's key."""
    items = [*(await ctx.get("items", type_hint=list) or ()), said(text)]
    while True:
        answer = await ctx.run_typed("think", ask, restate.RunOptions(), HTTP, items)
        items += answer
        for call in calls(answer):
            items.append(await ctx.run_typed("act", run, restate.RunOptions(), call))
        if not calls(answer):
            ctx.set("items", items)
            return len(items)


@talk.handler(kind="shared")
async def length(ctx: restate.ObjectSharedContext) -> int:
    """Counts the items of the conversation."""
    return len(await ctx.get("items", type_hint=list) or ())


app = restate.app([talk])


if __name__ == "__main__":
    config = Config()
    config.bind = sys.argv[1:]
    # In this process, not in one below it that outlives it.
    asyncio.run(serve(app, config))
