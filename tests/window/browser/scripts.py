"""The scripts of the model in browser tests: a session's first words choose one."""

from __future__ import annotations

from typing import Any

BIDI = "echo safe \u202egpj.exe\u202c; echo \u200bend  "
HOSTILE = (
    '<img src=x onerror="alert(1)"><script>alert(2)</script>',
    "[click](javascript:alert(3)) [paper](https://evil.example.com/a) ![shot](https://evil.example.com/b.png)",
    "<style>*{display:none}</style> \u202eevil\u202c &lt;b&gt; {{assets}} ${alert(4)}",
    "# Dendro: session expired\n\n**Allow** [Sign in again](https://evil.example.com/login)",
)
EVIL = '<img src=x onerror="alert(5)"> \u202eevil\u202c [out](https://evil.example.com) ${alert(6)}'
"""A name: of a tree, an agent, a file, a worker, an option."""
LONG = "cat <<'EOF'\n" + "\n".join(f"line {n}" for n in range(200)) + "\nEOF"


def _runs(command: list[str], before: str = "") -> list[dict[str, Any]]:
    said = [{"text": before}] if before else []
    return [
        {"items": [*said, {"call": "shell", "args": {"command": command}}]},
        {"items": [{"text": "It is done."}]},
    ]


PATCH = """*** Begin Patch
*** Add File: notes.txt
+first line
+second \u202e line
*** Add File: a\u202eb<i>.md
+third <script>alert(7)</script>
*** End Patch"""

THOUGHT = "**Weighing <b>both</b>**\n" + "One side, [then](javascript:alert(10)) the other. " * 4
LOUD = r"printf '\033]0;evil title\007\033[31mred\033[0m <b>\n'; seq 1 30; exit 3"
AT_ODDS = """*** Begin Patch
*** Update File: poem.txt
@@
-roses are red
+roses are <b>white</b>
 violets are blue
*** Add File: alone.txt
+of one alone
*** End Patch"""

LATER = """*** Begin Patch
*** Add File: later.md
+of later
*** End Patch"""

DROPPED = """*** Begin Patch
*** Update File: notes.txt
@@
-first line
+another line
*** End Patch"""

POEM = "roses are red\nviolets are blue\nsame\n" + "x " * 300 + "\nlast\n"
REWORD = f"""{PATCH.removesuffix("*** End Patch")}*** Update File: poem.txt
@@
-roses are red
-violets are blue
+roses are <img src=x onerror="alert(8)">red
+violets \u202eare [blue](javascript:alert(9))\u200b
+added alone
 same
-{"x " * 300}
+{"x " * 300}y
 last
*** End Patch"""

SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "touch one": _runs(["touch", "one.txt"], "I make a file."),
    "fetch a": _runs(["curl", "-fsS", "http://127.0.0.1:9/a"]),
    "fetch b": _runs(["curl", "-fsS", "http://127.0.0.1:9/b"]),
    "folders": [
        {"items": [{"call": "shell", "args": {"command": ["mkdir", "-p", "one"]}}]},
        {"items": [{"call": "shell", "args": {"command": ["mkdir", "-p", "two"]}}]},
        {"items": [{"text": "They are made."}]},
    ],
    "permit": [
        {"items": [{"call": "mcp__asking__permit", "args": {}}]},
        {"items": [{"text": "The server is answered."}]},
    ],
    "client tool": [
        {"items": [{"call": "look_up", "args": {"name": "x"}}]},
        {"items": [{"text": "Nobody has looked."}]},
    ],
    "compound": _runs(["bash", "-lc", "curl -fsS http://127.0.0.1:9/c | sh"]),
    "bidi": _runs(["bash", "-lc", BIDI]),
    "long": _runs(["bash", "-lc", LONG]),
    "hostile": [
        {
            "items": [
                {"text": "\n\n".join(HOSTILE)},
                {"call": "shell", "args": {"command": ["bash", "-lc", HOSTILE[0]]}},
            ]
        },
        {"items": [{"text": "It is done."}]},
    ],
    "patch": [
        {"items": [{"call": "apply_patch", "args": {"input": PATCH}}]},
        {"items": [{"text": "It is written."}]},
    ],
    "reword": [
        {"items": [{"call": "apply_patch", "args": {"input": REWORD}}]},
        {"items": [{"text": "It is reworded."}]},
    ],
    "brood of poets": [
        {
            "items": [
                {"call": "subagent_spawn", "args": {"label": "left", "prompt": "reword"}},
                {"call": "subagent_spawn", "args": {"label": EVIL, "prompt": "at odds"}},
            ]
        },
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"text": "Both are back."}]},
    ],
    "at odds": [
        {"items": [{"call": "apply_patch", "args": {"input": AT_ODDS}}]},
        {"items": [{"text": "It is white."}]},
    ],
    "two changes": [
        {"items": [{"call": "apply_patch", "args": {"input": PATCH}}]},
        {"items": [{"text": "It is written."}]},
        {"items": [{"call": "apply_patch", "args": {"input": LATER}}]},
        {"items": [{"text": "More is written."}]},
    ],
    "many changes": [
        {"items": [{"call": "apply_patch", "args": {"input": PATCH}}]},
        {"items": [{"text": "It is written."}]},
        {"items": [{"call": "apply_patch", "args": {"input": LATER}}]},
        {"items": [{"text": "More is written."}]},
        {"items": [{"call": "apply_patch", "args": {"input": DROPPED}}]},
        {"items": [{"text": "It is dropped."}]},
    ],
    "question": [
        {
            "items": [
                {
                    "call": "ask_user_question",
                    "args": {
                        "questions": [
                            {
                                "header": "Colour",
                                "question": "Which colour?",
                                "multiSelect": False,
                                "options": [
                                    {"label": "green", "description": "as leaves"},
                                    {"label": "red", "description": "as <b>rust</b>"},
                                ],
                            }
                        ]
                    },
                }
            ]
        },
        {"items": [{"text": "Thank you."}]},
    ],
    "plan": [
        {
            "items": [
                {
                    "call": "approve_plan",
                    "args": {
                        "proposal": {
                            "title": "Upgrade in place",
                            "summary": "In **two** steps.",
                            "plan": {
                                "plan": [
                                    {"step": "Copy <b>all</b>", "status": "pending"},
                                    {"step": "Switch over", "status": "pending"},
                                ]
                            },
                        }
                    },
                }
            ]
        },
        {"items": [{"text": "It is planned."}]},
    ],
    "family": [
        {
            "items": [
                {"call": "subagent_spawn", "args": {"label": "scout", "prompt": "touch one, and tell of it"}}
            ]
        },
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"text": "The scout is back."}]},
    ],
    "writer of letters": [
        {"items": [{"call": "subagent_spawn", "args": {"label": "reader", "prompt": "echo, and read"}}]},
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"call": "subagent_send_message", "args": {"agent_id": 1, "prompt": "echo once more"}}]},
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"text": "It was read."}]},
    ],
    "evil brood": [
        {"items": [{"call": "subagent_spawn", "args": {"label": EVIL, "prompt": "evil riddle"}}]},
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"text": "It is over."}]},
    ],
    "evil riddle": [
        {
            "items": [
                {
                    "call": "ask_user_question",
                    "args": {
                        "questions": [
                            {
                                "header": "<b>Who</b>",
                                "question": "\n".join(HOSTILE),
                                "multiSelect": False,
                                "options": [
                                    {"label": EVIL[:40], "description": HOSTILE[0]},
                                    {"label": "red", "description": HOSTILE[3]},
                                ],
                            }
                        ]
                    },
                }
            ]
        },
        {"items": [{"text": "Thank you."}]},
    ],
    "evil design": [
        {
            "items": [
                {
                    "call": "approve_plan",
                    "args": {
                        "proposal": {
                            "title": EVIL,
                            "summary": "\n\n".join(HOSTILE),
                            "plan": {"plan": [{"step": HOSTILE[0], "status": "pending"}]},
                        }
                    },
                }
            ]
        },
        {"items": [{"text": "It is planned."}]},
    ],
    "many words": [{"items": [{"text": f"Message {n} of many. " + "More words. " * n} for n in range(90)]}],
    "sleep on": _runs(["sleep", "600"], "I wait."),
    "keeper of sleepers": [
        {"items": [{"call": "subagent_spawn", "args": {"label": "sleeper", "prompt": "sleep on"}}]},
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"text": "It has slept."}]},
    ],
    "loud": [
        {"items": [{"call": "shell", "args": {"command": ["bash", "-c", LOUD]}}]},
        {"items": [{"text": "It was loud."}]},
    ],
    "think": [
        {"items": [{"reasoning": THOUGHT}, {"text": "It is weighed."}]},
    ],
    "echo": [{"items": [{"text": "Words **for you**."}]}],
}
SCENARIO = {
    "steps": [{"items": [{"text": "Nothing to do."}]}],
    "agents": [{"prompt": name, "steps": steps} for name, steps in SCRIPTS.items()],
    "after_end": "repeat_last",
}
