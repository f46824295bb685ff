"""An agent inside of a program: a private Redis, a worker, one turn, and its answer.

    python examples/embed.py "count to two"

The provider is the model stub, so that the example needs no key. For a real one leave `provider` out and
set `OPENAI_API_KEY`; everything else stays as it is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from orchestrator import Event, SettingsSources, load_settings, new_session, opened, run_turn, run_worker
from orchestrator.stub import StubConfig, behaviour, running


def show(event: Event) -> None:
    if event.type == "exec_command_begin":
        print("runs", event.msg["command"])


async def main(prompt: str, folder: Path) -> None:
    async with running(StubConfig(behaviour("shell:2"))) as provider:
        environ = {
            **os.environ,
            "DENDRO_HOME": str(folder / "home"),
            "OPENAI_BASE_URL": provider.base_url,
            "OPENAI_API_KEY": "the stub needs none",
        }
        settings = load_settings(SettingsSources(cwd=folder, environ=environ))
        async with opened(settings) as deployment, run_worker(settings):
            client = deployment.client()
            session = await new_session(settings, client)
            turn = await run_turn(client, session, prompt, show)
    print(turn.answer or f"no answer: {turn.aborted or turn.error}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(" ".join(sys.argv[1:]) or "count to two", Path(folder)))
