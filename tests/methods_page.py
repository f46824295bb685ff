"""The page of the app-server's methods: each that the protocol's schema knows, served or refused.

`python -m tests.methods_page > docs/doors/methods.md`; `make check` and a test hold it against the schema
that clients were made from.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from orchestrator.gateways.app_server.method import Method, Whose
from orchestrator.gateways.app_server.methods import METHODS, refusal, v1, v1_machine
from tests.doors.schema import FILE

HEAD = """# Methods of the app-server

Every method of protocol version 2 (0.169), as this version answers it. This page is generated:
`python -m tests.methods_page > docs/doors/methods.md`.

**Scope** is what a [token](tokens.md) needs; policies beyond a person's settings always need `approve`.
*Experimental* methods want `experimentalApi` in the handshake.
"""


def methods_of_schema() -> list[str]:
    """The methods that clients of the protocol may call."""
    requests = orjson.loads(FILE.read_bytes())["definitions"]["ClientRequest"]["oneOf"]
    return sorted(one["properties"]["method"]["enum"][0] for one in requests)


def page() -> str:
    """The page as Markdown."""
    return "\n".join([HEAD, *_served(), "", *_own(), "", *_refused(), ""])


def _served() -> Iterator[str]:
    known = [name for name in methods_of_schema() if name in METHODS]
    yield f"## Served: {len(known)}\n"
    yield "| method | scope | |"
    yield "|---|---|---|"
    for name in known:
        yield f"| `{name}` | {METHODS[name].scope.word} | {_notes(METHODS[name])} |"


def own_methods() -> list[str]:
    """The methods that the protocol does not have, and every door does."""
    known = {*methods_of_schema(), *v1.METHODS, *v1_machine.METHODS}
    return sorted(METHODS.keys() - known)


def _own() -> Iterator[str]:
    yield f"## Dendro's own: {len(own_methods())}\n"
    yield "What the [window](window.md) asks for beside them; every client may.\n"
    yield "| method | scope | |"
    yield "|---|---|---|"
    for name in own_methods():
        yield f"| `{name}` | {METHODS[name].scope.word} | {_notes(METHODS[name])} |"


NOT_FOR = {
    Whose.ANYONES: "",
    Whose.MACHINES: "no namespace's token",
    Whose.KEYS: "no namespace's token",
    Whose.SETTINGS: "the machine's user without a token",
}


def _notes(method: Method) -> str:
    if method.experimental:
        return "experimental"
    fields = ", ".join(f"`{name}`" for name in sorted(method.experimental_fields))
    return f"experimental: {fields}" if fields else NOT_FOR[method.whose]


def _refused() -> Iterator[str]:
    unknown = [name for name in methods_of_schema() if name not in METHODS]
    yield f"## Refused: {len(unknown)}\n"
    yield "Answered by -32601 with a text that names the way there is instead.\n"
    yield "| method | instead |"
    yield "|---|---|"
    for name in unknown:
        yield f"| `{name}` | {refusal(name).partition(': ')[2]} |"


if __name__ == "__main__":
    print(page(), end="")
