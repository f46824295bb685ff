"""A supervisor that answers an agent's requests by a policy, while the agent works.

    python examples/policy_supervisor.py --allow "touch *" --allow "ls*"

A request that a pattern allows is allowed, any other one is denied: nobody is waited for. The agent is the
model stub with a scenario; the supervisor would do the same for any session of any deployment.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator import (
    Client,
    Opened,
    ReviewDecision,
    SessionId,
    SettingsSources,
    TreeId,
    decide,
    load_settings,
    new_session,
    open_requests_of,
    opened,
    run_turn,
    run_worker,
)
from orchestrator.stub import Scenario, StubConfig, running


def asks_to_run(*words: str) -> dict[str, object]:
    return {"items": [{"call": "shell", "args": {"command": list(words)}}]}


async def supervise(deployment: Opened, client: Client, session: SessionId, allowed: Sequence[str]) -> None:
    """Answers what the session and its agents ask, until the session's turn is over."""
    async for event in client.follow(session):
        if event.type in ("task_complete", "turn_aborted"):
            return
        if not event.type.endswith("_approval_request"):
            continue
        # The event only says that there is something to decide; what is open now is what counts.
        for asked in await open_requests_of(deployment, TreeId(session)):
            fits = any(asked.meant_by(pattern, ReviewDecision.APPROVED) for pattern in allowed)
            decision = ReviewDecision.APPROVED if fits else ReviewDecision.DENIED
            print((await decide(client, deployment, asked, decision)).line(), flush=True)


async def main(allowed: Sequence[str], folder: Path) -> None:
    steps = [
        asks_to_run("touch", "notes.txt"),
        asks_to_run("rm", "notes.txt"),
        {"items": [{"text": "Done."}]},
    ]
    async with running(StubConfig(Scenario.parse(steps))) as provider:
        environ = {
            **os.environ,
            "DENDRO_HOME": str(folder / "home"),
            "DENDRO_APPROVAL_POLICY": "untrusted",
            "DENDRO_SANDBOX_MODE": "workspace-write",
            "OPENAI_BASE_URL": provider.base_url,
            "OPENAI_API_KEY": "the stub needs none",
        }
        settings = load_settings(SettingsSources(cwd=folder, environ=environ))
        async with opened(settings) as deployment, run_worker(settings):
            client = deployment.client()
            session = await new_session(settings, client)
            supervisor = asyncio.create_task(supervise(deployment, client, session, allowed))
            turn = await run_turn(client, session, "tidy up")
            await supervisor
    print(turn.answer or f"no answer: {turn.aborted or turn.error}")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--allow", action="append", default=[], metavar="PATTERN", help="may be repeated")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(options.parse_args().allow, Path(folder)))
