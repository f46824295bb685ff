"""`dendro trust`: a person reads each key that they permit, with its value, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.trust import SHOWN_VALUE_CHARS, _lines, _state
from orchestrator.settings import TrustList, keys_to_trust

SERVER = 'mcp_servers.docs.command = "run-me"\n'
LONG = "n" * 300


def told(text: str) -> list[str]:
    return list(_lines(keys_to_trust(Path("dendro.toml"), text.encode())))


@pytest.mark.parametrize(
    "line",
    [
        'model_provider = "mine"',
        'sandbox_mode = "danger-full-access"',
        'notify = ["/home/me/ring", "-x"]',
        'mcp_servers.docs.command = "run-me"',
        'mcp_servers.docs.args = ["-c", "echo hi"]',
        'mcp_servers.docs.env.PYTHONSTARTUP = "/tmp/x.py"',
        'shell_environment_policy.set.LD_PRELOAD = "/tmp/x.so"',
        'model_providers.mine.base_url = "https://elsewhere.example/v1"',
        "worker.concurrency = 3",
        'redis.prefix = "mine:"',
        "unknown.key = true",
    ],
)
def test_each_key_that_is_permitted_is_told_with_its_value(line: str) -> None:
    assert told(f"{line}\n") == [line]
    beside = "" if line == SERVER.strip() else SERVER
    told_beside = told(f'model = "gpt-5"\n{beside}{line}\n')
    assert sorted(told_beside) == sorted(filter(None, [beside.strip(), line])), "but what needs no trust"


SECRETS = [
    'redis.url = "redis://:hush@host"',
    'upkeep.url = "redis://:hush@host"',
    'webhook.url = "https://x.example/?key=hush"',
    'webhook.secret = "hush-hush-hush-hush"',
    'chain.secret = "hush"',
    'model_providers.mine.base_url = "https://ann:hush@x.example/v1"',
    'model_providers.mine.proxy = "http://ann:hush@proxy"',
    'model_providers.mine.query_params.key = "hush"',
    'model_providers.mine.http_headers.X-Any = "hush"',
    'mcp_servers.docs.url = "https://ann:hush@x.example/mcp"',
    'mcp_servers.docs.proxy = "http://ann:hush@proxy"',
    'mcp_servers.docs.http_headers.Authorization = "hush"',
    'mcp_servers.docs.env.API_KEY = "hush"',
    'shell_environment_policy.set.MY_TOKEN = "hush"',
    'upkeep.archive_url = "s3://key:hush@bucket/x"',
]


@pytest.mark.parametrize("line", SECRETS)
def test_no_secret_among_what_is_permitted_is_told_and_its_key_is(line: str) -> None:
    lines = told(SERVER + "\n".join(one for one in SECRETS if one != line) + f"\n{line}\n")
    assert len(lines) == len(SECRETS) + 1, "each key has a line"
    assert not any("hush" in one for one in lines)
    (one,) = (told for told in lines if told.startswith(f"{line.partition(' = ')[0]} = "))
    assert "(hidden)" in one


@pytest.mark.parametrize("name", [LONG, "x" * 80, "a b", "é" * 90])
def test_keys_that_begin_alike_are_each_told_with_their_ends(name: str) -> None:
    """A long name must not hide what it permits, nor one key another."""
    table = f'[mcp_servers."{name}"]\ncommand = "one"\nargs = ["two"]\nenv.LD_PRELOAD = "three"\n'
    lines = told(table)
    assert [line.rpartition(".")[2] for line in lines] == [
        'command = "one"',
        'args = ["two"]',
        'LD_PRELOAD = "three"',
    ]
    assert all(len(line) < 4 * SHOWN_VALUE_CHARS for line in lines)


def test_long_value_is_cut_and_no_text_begins_a_line() -> None:
    (cut,) = told(f'notify = "{"v" * 200}"\n')
    assert cut == 'notify = "' + "v" * (SHOWN_VALUE_CHARS - 1) + "…"
    (whole,) = told(f'notify = "{"v" * (SHOWN_VALUE_CHARS - 2)}"\n')
    assert whole.endswith('v"')
    (one,) = told('"a\\nb\\u001b" = "c\\nd"\n')
    assert "\n" not in one
    assert "\x1b" not in one


@pytest.mark.parametrize("contents", [1, 2, 3])
def test_list_says_of_each_content_whether_the_file_is_still_that_one(tmp_path: Path, contents: int) -> None:
    known, file = TrustList(tmp_path / "home"), tmp_path / "dendro.toml"
    for number in range(contents):
        file.write_text(f'model = "{number}"\n')
        known.add(file, file.read_bytes(), number)
    states = [_state(one) for one in known.entries()]
    assert states == ["(the file is another one now)"] * (contents - 1) + [""]
    file.unlink()
    assert {_state(one) for one in known.entries()} == {"(no such file now)"}
