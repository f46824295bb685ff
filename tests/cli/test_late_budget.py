"""A budget for a tree that was made without one, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.machine import Machine, says

pytestmark = pytest.mark.realredis


def test_person_limits_a_tree_that_was_made_without_a_budget(machine: Machine) -> None:
    with machine.model(says("hello"), says("hello again")) as user:
        assert user.run("run", "say hello").returncode == 0
        [session] = user.session_ids()
        before = json.loads(user.run("budget", session, "--json").stdout)
        assert before["budget"]["requests"] | {"held": 0} == before["budget"]["requests"]
        assert (before["budget"]["requests"]["spent"], before["budget"]["requests"]["limit"]) == (1, 10_000)
        given = user.run("budget", session, "--add", "requests=-9999,wall=2h", "--json")
        assert given.returncode == 0, given.stderr
        assert json.loads(given.stdout)["limits"]["requests"] == 1
        taken = user.run("budget", session, "--add", "tokens=-5")
        assert (taken.returncode, "no budget of tokens to take from" in taken.stderr) == (1, True)
        twice = user.run("budget", session, "--add", "tokens=5,tokens=6")
        assert (twice.returncode, "names tokens twice" in twice.stderr) == (2, True)
        endless = user.run("budget", session, "--add", f"tokens={10**23}")
        assert (endless.returncode, "nothing was changed" in endless.stderr) == (1, True)
        refused = user.run("budget", session, "--add", "cost=1.50")
        assert refused.returncode == 1
        assert 'set model_prices."gpt-5", here and where the workers run' in refused.stderr
        with user.terminal("run", "--resume", session, "and again") as person:
            person.wait_for("budget of requests is spent")
            more = user.run("budget", session, "--add", "requests=1")
            assert "1 agent waited for this" in more.stdout, more.stdout + more.stderr
            person.wait_for("hello again")
            assert person.exit_code() == 0


PRICES = '[model_prices."gpt-5"]\ninput = 1000000\noutput = 1000000\n'
"""A dollar a token: few requests are a large sum."""


def test_person_limits_the_cost_of_a_tree_that_was_made_without_prices(machine: Machine) -> None:
    with machine.model(says("one"), says("two"), says("three")) as user:
        first = user.run("run", "first")
        assert first.returncode == 0
        assert "· up to 10,000 model requests (agents.budget_requests)" in first.stdout + first.stderr
        [session] = user.session_ids()
        (Path(user.environ["DENDRO_HOME"]) / "dendro.toml").write_text(PRICES)
        given = user.run("budget", session, "--add", "cost=0.01")
        assert given.returncode == 0, given.stderr
        assert "cost: 1 earlier request ran where no price was known: not counted" in given.stdout
        assert user.run("run", "--resume", session, "second").returncode == 0, "nothing is spent yet"
        account = json.loads(user.run("budget", session, "--json").stdout)["budget"]["cost"]
        assert account["spent"] > account["limit"] == 10_000
        (Path(user.environ["DENDRO_HOME"]) / "dendro.toml").unlink()
        unpriced = user.run("run", "--resume", session, "third")
        assert unpriced.returncode == 1
        assert 'model gpt-5 has no price: set model_prices."gpt-5"' in unpriced.stdout + unpriced.stderr


def test_without_a_terminal_a_spent_budget_ends_the_command_and_says_who_can_go_on(machine: Machine) -> None:
    with machine.model(says("hello"), says("hello again")) as user:
        assert user.run("run", "say hello").returncode == 0
        [session] = user.session_ids()
        assert user.run("budget", session, "--add", "requests=-9999").returncode == 0
        for _ in range(2):
            # The second one hears no warning: that was told once.
            ran = user.run("run", "--resume", session, "and again")
            assert ran.returncode == 3, ran.stdout + ran.stderr
            assert "waiting for more budget, which only a person can give" in ran.stderr
            assert f"dendro budget {session}" in ran.stderr


def test_without_a_terminal_a_root_that_waits_for_agents_without_budget_ends_the_command(
    machine: Machine,
) -> None:
    def call(name: str, **args: object) -> dict[str, object]:
        return {"items": [{"call": name, "args": args}]}

    root = [call("subagent_spawn", label="one", prompt="work"), call("subagent_await"), says("done")]
    agents = [{"label": "one", "steps": [call("shell", command=["true"]), says("worked")]}]
    with machine.playing(json.dumps({"steps": root, "agents": agents})) as user:
        first = user.run("run", "go", "-c", "agents.budget_requests=3", "-c", "approval_policy=never")
        assert first.returncode == 3, first.stdout + first.stderr
        (session,) = (each["session_id"] for each in user.sessions() if each["agent_id"] == 0)
        # The warning was told once: this run hears of nothing.
        again = user.run("run", "--resume", session)
        assert again.returncode == 3, again.stdout + again.stderr
        assert "waiting for more budget, which only a person can give" in again.stderr
        assert user.run("budget", session, "--add", "requests=9").returncode == 0
        done = user.run("run", "--resume", session)
        assert (done.returncode, done.stdout.endswith("done\n")) == (0, True), done.stdout + done.stderr
