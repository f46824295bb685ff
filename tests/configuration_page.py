"""Writes `docs/configuration.md` from the records: the text under a field is its documentation.

`python -m tests.configuration_page > docs/configuration.md`.

Reads the source of the records, because Python does not keep the string under a field.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from orchestrator.config_keys import (
    McpServerSettings,
    ModelPrice,
    ProviderSettings,
    Setting,
    Table,
    limits_of,
    settings_of,
)
from orchestrator.settings.load import bare
from orchestrator.settings.sources import KEYED_RECORDS, variable

WIDTH = 110
INTRODUCTION = """\
# Configuration

This page is generated: `python -m tests.configuration_page > docs/configuration.md`.

Who is heard, from the strongest: flags, `-c key=value`, environment, the chosen profile, the current folder's
file, your own file, the default.

- **Your own file** is TOML: `dendro.toml` in the home folder. **A folder's file** is the `dendro.toml` of
  the folder in which you start `dendro`; it lies over yours, and stderr says that it counts. `--config FILE`
  counts instead of both.
- **Trust**: a folder's file may have come with a stranger's repository, or from an agent that worked there.
  Until you have trusted it, it may set what is marked *a folder may set it*, and make stricter what is
  marked so; all else in it is ignored, and one line on stderr names the keys. `dendro trust` (in the folder,
  or `dendro trust FILE`) trusts the file as it is now: a change has to be trusted again. `dendro trust
  --list` shows what is trusted, `dendro trust --revoke FILE` takes it back. It trusts a folder's
  `.dendro/setup.sh` as well (`workspace.setup`). A content is trusted in its place: the same file in another
  folder is not, nor is one that a link of the name leads to. A confined command cannot change the
  `dendro.toml` of its writable roots, and a patch or a merge that changes one asks. Where a folder has none,
  agents may write one: it is as untrusted as a stranger's, and stderr names the keys that it sets. Where you
  have trusted one that is gone, they may not, because what you trusted would count again: a confined command
  sees an empty folder of that name while it runs, until you say `dendro trust --revoke FILE`.
- **The home folder** holds the private Redis server, exported rollouts and the archive: `DENDRO_HOME`, else
  `$XDG_DATA_HOME/dendro`, else `~/.local/share/dendro`.
- **`DENDRO_PROGRAMS`** names folders, joined by colons, in which no session ever writes. `git`, `bwrap` and
  `redis-server` are started from folders of the system and from those of root that your user cannot write;
  programs in `~/.local/bin`, another folder of yours or another user's count where you name it here.
- **`-c key=value`** takes a dotted key; the value is read as TOML, and as a string if it is none:
  `-c model=gpt-5 -c 'sandbox_workspace_write.writable_roots=["/data"]'`. A table given so replaces the
  file's.
- **The environment**: every key has a variable, named with it below. An empty one counts as not set.
  `OPENAI_API_KEY` and `OPENAI_BASE_URL` are the `openai` provider's key and URL.
- **Profiles**: `profile = "NAME"` lays the table `[profiles.NAME]` over the file's top level.
- Keys that Codex has are spelled as it spells them. Unknown keys are named in a warning and do no harm.
- `model_instructions_file` (also `experimental_instructions_file`) names a file with the system prompt;
  `request_max_retries`, `stream_max_retries` and `stream_idle_timeout_ms` at the top level count for the
  chosen provider.

Only the first three sections travel with a session. Everything else belongs to the worker that runs it: a
client can never choose a URL or a key for somebody else's worker.
"""


def configuration_page() -> str:
    """The whole page."""
    sections = [_section(record, "") for record in KEYED_RECORDS]
    sections.append(_section(ProviderSettings, "model_providers.NAME."))
    sections.append(_section(ModelPrice, 'model_prices."NAME".'))
    sections.append(_section(McpServerSettings, "mcp_servers.NAME."))
    return INTRODUCTION + "\n" + "\n".join(sections)


def field_texts(record: type) -> Mapping[str, str]:
    """The documentation under each field of a record."""
    return dict(_strings_under_fields(_classes(Path(inspect.getfile(record)))[record.__name__].body))


@cache
def _classes(file: Path) -> Mapping[str, ast.ClassDef]:
    """The classes of a module by name: to ask for the source of each would parse the module each time."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _strings_under_fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())


def _section(record: type[Table], prefix: str) -> str:
    texts = field_texts(record)
    lines = [f"## {(inspect.getdoc(record) or '').rstrip('.')}", ""]
    for name, spec in settings_of(record):
        key, field = prefix + (spec.key or name), record.model_fields[name]
        shown = spec.shown_default or _default(field.default, spec)
        env = "" if prefix else f" · `{variable(tuple(key.split('.')))}`"
        about = f"{_type(field, spec)} · default: {shown}{env}{_folder(spec)}"
        lines += [f"### `{key}`", "", about, ""]
        lines += [textwrap.fill(texts[name], WIDTH, break_long_words=False, break_on_hyphens=False), ""]
    return "\n".join(lines)


def _folder(spec: Setting) -> str:
    """The rights of an untrusted folder's file; most keys need trust, so that case is left out."""
    match spec.folder:
        case "free":
            return " · a folder may set it"
        case "down" | "up":
            return f" · a folder may {'lower' if spec.folder == 'down' else 'raise'} it"
        case tuple() as strict_first:
            words = [f"`{json.dumps(each)}`" for each in strict_first]
            return f" · a folder may make it stricter: {', '.join(words)}"
    return ""


def _default(value: Any, spec: Setting) -> str:
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case int() | float():
            shown = value * 1000 if spec.milliseconds else value
            return f"`{int(shown) if shown == int(shown) else shown}`"
        case str() if value:
            return f'`"{value}"`'
        case _:
            return "none" if not value else f"`{value}`"


def _type(field: FieldInfo, spec: Setting) -> str:
    limits = [
        f"{word} {limit:g}" for word, limit in zip("≥≤", limits_of(field), strict=True) if limit is not None
    ]
    if spec.milliseconds:
        limits = ["> 0"]
    if spec.switch:
        return "true / false, or list of strings"
    return " ".join([_type_name(bare(field.annotation)), *limits])


def _type_name(hint: Any) -> str:
    origin = get_origin(hint)
    if origin is Literal:
        return " / ".join(f'`"{each}"`' for each in get_args(hint))
    if origin is tuple:
        return "list of strings"
    if origin is Mapping:
        return "table of strings"
    names = {str: "string", int: "whole number", float: "number", bool: "true / false"}
    return names.get(hint, "path")


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
