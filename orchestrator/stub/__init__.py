"""The model stub: a real HTTP server that speaks the Responses API and chat completions without one.

It answers from a scenario file or from a small built-in behaviour, on loopback only, for
the demo, the tests, and users who want deterministic runs. It never hides: every response
names its model `stub:<script>`. It must not know the model client, nor anything of
sessions but the id that a request carries.
"""

from orchestrator.stub.answers import Script
from orchestrator.stub.scenario import Scenario, ScenarioError, UnknownBehaviour, behaviour
from orchestrator.stub.server import (
    CannotListen,
    Pace,
    RunningStub,
    StubConfig,
    build_app,
    running,
    serve,
)

__all__ = [
    "CannotListen",
    "Pace",
    "RunningStub",
    "Scenario",
    "ScenarioError",
    "Script",
    "StubConfig",
    "UnknownBehaviour",
    "behaviour",
    "build_app",
    "running",
    "serve",
]
