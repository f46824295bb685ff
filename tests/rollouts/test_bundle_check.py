"""The check of a bundle: each rule by a bundle that breaks it alone, and a second checker that agrees."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.chain import ChainKey
from orchestrator.rollouts import bundle_check, bundle_members, bundle_receipts
from orchestrator.rollouts.bundle_check import BundleReport, check_bundle
from orchestrator.rollouts.bundle_form import NewerFormat
from orchestrator.rollouts.bundle_receipts import BadTrust, Trust
from orchestrator.rollouts.signed_notes import SignedAnswers, Signer, Signers
from tests.commit_seed import NIGHT, base_seed
from tests.rollouts import bundles as b
from tests.rollouts.bundles import AGENT, FORK, ROOT, Draft, Json, fact, plain_run, run, said

EXAMPLE = Path(__file__).parents[2] / "examples" / "check_bundle.py"
NEVER_FOUND = frozenset({"made", "by", "key_id", "receipts/consistency.json", "receipts/3.note"})
"""Fields of a manifest that whoever signs it may write as they like. Beside a whole register, an earlier
checkpoint and proofs about checkpoints show nothing more."""


@cache
def example(name: str = "check_bundle") -> Any:
    """A checker for strangers."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLE.with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def codes(report: BundleReport) -> set[str]:
    return {finding.code for finding in report.findings}


def stranger(
    path: Path, trusted: bool, people: Mapping[str, str] | None = None, log: Sequence[str] | None = None
) -> set[str]:
    """The findings of the checker for strangers, who trusts the operator, or the keys of `log`."""
    keys = [*map(example().read_key, log or [str(b.OPERATOR.key)])] if trusted else None
    return {code for code, *_ in example().Check(path, keys, people or {}).run()}


def checked(members: Mapping[str, bytes], folder: Path, **trust: Any) -> set[str]:
    """The findings of both checkers, with a trust file; the bundle has no receipts."""
    path = b.zipped(members, folder / "run.zip")
    found = codes(check_bundle(path, Trust.read(b.trust(**trust))))
    assert stranger(path, trusted=True, people=trust.get("people"), log=trust.get("log")) == found
    assert _by_receipts(path, b.trust(**trust)) == found
    return found


# ── sound ones ────────────────────────────────────────────────────────────────────────────────────


def test_checkers_take_a_bundle_with_everything_in_it(tmp_path: Path) -> None:
    path = b.zipped(run().sealed(), tmp_path / "run.zip")
    report = check_bundle(path, Trust.read(b.trust(people={"ada": str(b.ADA.key)})))
    assert report.findings == []
    assert report.signed_by == (b.ORIGIN,)
    assert (report.answers, report.proved_answers, report.withheld) == (1, 1, 1)
    assert report.redacted == {("ada", "a secret"): 1}
    assert report.texts == {"here": 2, "withheld": 1}
    assert report.packs == {"here": 1, "named": 1}
    assert {log.id: log.entries for log in report.logs.values()} == {
        f"session:{ROOT}": 14,
        f"session:{AGENT}": 6,
        f"session:{FORK}": 6,
        f"tree:{ROOT}": 3,
    }
    assert report.logs[f"session:{AGENT}"].label == "builder"
    assert stranger(path, trusted=True) == set()
    assert stranger(path, trusted=False) == set()


def test_checkers_take_the_same_folder_unpacked(tmp_path: Path) -> None:
    for name, data in run().sealed().items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert codes(check_bundle(tmp_path / "run")) == stranger(tmp_path / "run", trusted=False) == set()
    (tmp_path / "run" / "logs" / "more").symlink_to("/etc/passwd")
    assert (
        codes(check_bundle(tmp_path / "run")) == stranger(tmp_path / "run", trusted=False) == {"member-name"}
    )


def test_checkers_take_a_zip_that_has_its_folders_in_it(tmp_path: Path) -> None:
    assert checked({"logs/": b"", "texts/": b"", **run().sealed()}, tmp_path) == set()
    assert checked({"logs/": b"x", **run().sealed()}, tmp_path) == {"member-name"}
    assert checked({"more/": b"", **run().sealed()}, tmp_path) == {"member-name"}


def test_checkers_take_lines_that_escape_what_is_not_ascii(tmp_path: Path) -> None:
    def escape(members: dict[str, bytes]) -> None:
        name = f"logs/session-{ROOT}.jsonl"
        lines = map(json.loads, members[name].decode().splitlines())
        members[name] = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()

    draft = run()
    draft.members = escape
    assert checked(draft.sealed(), tmp_path) == set()


def test_key_that_is_trusted_signs_for_another_origin_unless_that_one_has_a_key_of_its_own(
    tmp_path: Path,
) -> None:
    draft = run()
    draft.manifest = lambda told: told.update(origin="fleet.example/other")
    members = draft.sealed()
    assert checked(members, tmp_path) == set()
    report = check_bundle(b.zipped(members, tmp_path / "run.zip"), Trust.read(b.trust()))
    assert report.signed_by == (b.ORIGIN,)
    other = Signer("fleet.example/other", b.private("other"))
    assert checked(members, tmp_path, log=[str(b.OPERATOR.key), str(other.key)]) == {"signer"}


def test_root_without_agents_has_a_tree_log_without_entries(tmp_path: Path) -> None:
    alone = Draft({ROOT: b.Log([*b.first_entries(ROOT), said("hello")])}, [])
    assert checked(alone.sealed(), tmp_path) == set()


def test_bundle_without_a_signature_shows_nobody_and_agrees_with_itself(tmp_path: Path) -> None:
    draft = run()
    draft.signer = None
    path = b.zipped(draft.sealed(), tmp_path / "run.zip")
    assert codes(check_bundle(path)) == stranger(path, trusted=False) == set()
    assert checked(draft.sealed(), tmp_path) == {"signer"}


def test_keyed_chain_is_held_against_its_key_where_that_is_configured(tmp_path: Path) -> None:
    draft = run()
    draft.key_id = "2026-11"
    for log in draft.logs.values():
        log.key = b"secret"
    path = b.zipped(draft.sealed(), tmp_path / "run.zip")
    assert codes(check_bundle(path)) == stranger(path, trusted=False) == set(), "a stranger has no key"
    assert codes(check_bundle(path, key=ChainKey("2026-11", b"secret"))) == set()
    assert codes(check_bundle(path, key=ChainKey("2026-11", b"another"))) == {"chain"}
    assert codes(check_bundle(path, key=ChainKey("2025-01", b"another"))) == set()


def test_agent_that_was_deleted_is_left_out_and_named(tmp_path: Path) -> None:
    draft = run()
    del draft.logs[AGENT]
    draft.left_out = [AGENT]
    draft.tree.pop()
    draft.withheld.clear()
    assert checked(draft.sealed(), tmp_path) == set()


def test_later_version_of_the_format_cannot_be_checked(tmp_path: Path) -> None:
    draft = run()
    draft.manifest = lambda told: told.update(version=2)
    path = b.zipped(draft.sealed(), tmp_path / "run.zip")
    with pytest.raises(NewerFormat):
        check_bundle(path)
    with pytest.raises(SystemExit) as ended:
        stranger(path, trusted=False)
    assert ended.value.code == 2


# ── spoiled ones ──────────────────────────────────────────────────────────────────────────────────
# Each breaks one rule, and everything else is made to fit by the operator, who signs it anew.

Spoil = Callable[[Draft], object]
SPOILED: dict[str, tuple[str, Spoil]] = {}


def spoils(code: str) -> Callable[[Spoil], Spoil]:
    def named(spoil: Spoil) -> Spoil:
        SPOILED[spoil.__name__] = (code, spoil)
        return spoil

    return named


def lines_of(log: str, change: Callable[[list[Json]], object]) -> Callable[[dict[str, list[Json]]], object]:
    return lambda lines: change(lines[log])


@spoils("gap")
def entry_left_out(draft: Draft) -> None:
    draft.lines = lines_of(f"session:{FORK}", lambda some: some.pop(4))


@spoils("gap")
def entry_twice(draft: Draft) -> None:
    draft.lines = lines_of(f"session:{FORK}", lambda some: some.insert(5, some[4]))


@spoils("size")
def tail_cut_off(draft: Draft) -> None:
    draft.manifest = lambda told: told["logs"][2].update(size=5)


@spoils("root")
def another_root(draft: Draft) -> None:
    draft.manifest = lambda told: told["logs"][1].update(root="ab" * 32)


@spoils("head")
def another_head(draft: Draft) -> None:
    draft.manifest = lambda told: told["logs"][1].update(head="ab" * 32)


@spoils("chain")
def payload_changed(draft: Draft) -> None:
    other = lambda some: some[3].update(p=some[3]["p"].replace("build", "break"))  # noqa: E731
    draft.lines = lines_of(f"session:{ROOT}", other)


@spoils("line")
def line_with_a_space(draft: Draft) -> None:
    def space(members: dict[str, bytes]) -> None:
        name = f"logs/session-{FORK}.jsonl"
        members[name] = members[name].replace(b'"s":6,', b'"s": 6,')

    draft.members = space


@spoils("line")
def line_with_another_field(draft: Draft) -> None:
    draft.lines = lines_of(f"session:{FORK}", lambda some: some[5].update(who="me"))


@spoils("line")
def number_that_is_true(draft: Draft) -> None:
    draft.lines = lines_of(f"session:{FORK}", lambda some: some[5].update(e=True))


@spoils("line")
def hash_in_capitals(draft: Draft) -> None:
    draft.lines = lines_of(f"session:{FORK}", lambda some: some[4].update(c=some[4]["c"].upper()))


@spoils("line")
def last_line_without_an_end(draft: Draft) -> None:
    def cut(members: dict[str, bytes]) -> None:
        members[f"logs/session-{FORK}.jsonl"] = members[f"logs/session-{FORK}.jsonl"][:-1]

    draft.members = cut


@spoils("key-twice")
def key_twice_in_an_entry(draft: Draft) -> None:
    text = b.compact(said("go"))
    draft.logs[AGENT].entries[3] = text.replace('"role":"user"', '"role":"user","role":"assistant"')


@spoils("entry")
def entry_that_is_no_object(draft: Draft) -> None:
    draft.logs[AGENT].entries[5] = "[1]"


@spoils("entry")
def entry_that_is_no_number(draft: Draft) -> None:
    draft.logs[AGENT].entries[5] = '{"a":NaN}'


@spoils("naming")
def log_of_another_session(draft: Draft) -> None:
    draft.logs[AGENT].entries[0] = b.first_entries(FORK)[0]


@spoils("naming")
def log_of_another_session_by_its_settings(draft: Draft) -> None:
    draft.logs[AGENT].entries[1] = b.first_entries(FORK)[1]


@spoils("naming")
def log_of_another_session_by_its_event(draft: Draft) -> None:
    draft.logs[AGENT].entries[2] = b.first_entries(FORK)[2]


@spoils("naming")
def log_of_another_tree(draft: Draft) -> None:
    draft.logs[AGENT].entries[1] = b.first_entries(AGENT, tree=b.STRANGE)[1]


@spoils("child-absent")
def agent_of_which_nothing_is_there(draft: Draft) -> None:
    draft.logs[ROOT].entries[3] = fact("child", child={"agent_id": 3, "session": b.STRANGE})


@spoils("maker-absent")
def agent_that_nobody_made(draft: Draft) -> None:
    draft.logs[ROOT].entries[7] = said("nothing")


@spoils("fork")
def fork_of_another_past(draft: Draft) -> None:
    parent = {"session": ROOT, "seq": 5, "chain": "ab" * 32}
    draft.logs[FORK].entries[3] = fact("forked", parent=parent, content=b.inherited({"o": b.blob(b.INSIDE)}))


@spoils("fork")
def fork_of_an_entry_that_is_not_there(draft: Draft) -> None:
    parent = {"session": ROOT, "seq": 99, "chain": "ab" * 32}
    draft.logs[FORK].entries[3] = fact("forked", parent=parent, content=b.inherited({"o": b.blob(b.INSIDE)}))


@spoils("cause")
def tree_line_that_no_entry_caused(draft: Draft) -> None:
    draft.lines = lines_of(f"tree:{ROOT}", lambda some: some[1].update(e=9))


@spoils("cause")
def tree_line_of_a_session_that_is_not_there(draft: Draft) -> None:
    draft.lines = lines_of(f"tree:{ROOT}", lambda some: some[1].update(by=b.STRANGE))


@spoils("tree-absent")
def no_log_of_the_tree(draft: Draft) -> None:
    draft.lines = lambda lines: lines.pop(f"tree:{ROOT}")


@spoils("root-absent")
def no_root(draft: Draft) -> None:
    draft.logs.clear()
    draft.tree.clear()
    draft.texts.clear()
    draft.packs.clear()
    draft.withheld.clear()


@spoils("log-file")
def log_of_another_trees_agents(draft: Draft) -> None:
    draft.lines = lambda lines: lines.update({f"tree:{b.STRANGE}": []})


@spoils("log-file")
def log_that_the_manifest_does_not_tell_of(draft: Draft) -> None:
    draft.members = lambda members: members.pop(f"texts/{b.hexed(b.INSIDE)}")
    draft.manifest = _hidden


def _hidden(told: Json) -> None:
    told["logs"] = [log for log in told["logs"] if log["id"] != f"session:{FORK}"]
    told["left_out"].append(FORK)
    del told["texts"][b.hexed(b.INSIDE)]


@spoils("text-missing")
def text_that_is_neither_here_nor_declared(draft: Draft) -> None:
    del draft.texts[b.TEXT]


@spoils("text-missing")
def inherited_text_that_is_neither_here_nor_declared(draft: Draft) -> None:
    del draft.texts[b.INSIDE]


@spoils("text-unnamed")
def text_that_no_entry_names(draft: Draft) -> None:
    draft.texts[b"smuggled"] = "here"


@spoils("text-changed")
def text_that_is_another(draft: Draft) -> None:
    name = f"texts/{b.hexed(b.TEXT)}"
    draft.members = lambda members: members.update({name: members[name].replace(b"large", b"small")})


@spoils("text-changed")
def withheld_text_of_another_length(draft: Draft) -> None:
    draft.manifest = lambda told: told["texts"][b.hexed(b.HELD_BACK)].update(bytes=9)


@spoils("text-file")
def text_that_is_here_and_withheld(draft: Draft) -> None:
    draft.manifest = lambda told: told["texts"][b.hexed(b.TEXT)].update(state="withheld")


@spoils("pack-missing")
def pack_that_is_neither_here_nor_named(draft: Draft) -> None:
    del draft.packs[b.PACK]


@spoils("pack-unnamed")
def pack_that_no_entry_names(draft: Draft) -> None:
    draft.packs[b"smuggled"] = "here"


@spoils("pack-changed")
def pack_that_is_another(draft: Draft) -> None:
    draft.members = lambda members: members.update({f"packs/{b.hexed(b.PACK)}.pack": b"others of a folder."})


@spoils("pack-changed")
def pack_of_another_length(draft: Draft) -> None:
    draft.manifest = lambda told: told["packs"][b.hexed(b.NAMED_PACK)].update(bytes=9)


@spoils("pack-file")
def pack_that_is_here_and_only_named(draft: Draft) -> None:
    draft.manifest = lambda told: told["packs"][b.hexed(b.PACK)].update(state="named")


@spoils("unexplained")
def entry_that_nobody_took_away(draft: Draft) -> None:
    draft.logs[AGENT].bare.add(6)


@spoils("unexplained")
def redaction_of_another_entry(draft: Draft) -> None:
    draft.logs[ROOT].entries[13] = fact("redacted", log=f"session:{ROOT}", seq=7, digest="ab" * 32, who="ada")


@spoils("explained")
def entry_that_is_withheld_and_here(draft: Draft) -> None:
    draft.withheld.append((f"session:{AGENT}", 6))


@spoils("explained")
def entry_that_is_redacted_and_withheld(draft: Draft) -> None:
    draft.withheld.append((f"session:{ROOT}", 7))


@spoils("explained")
def entry_that_is_redacted_and_here(draft: Draft) -> None:
    draft.logs[AGENT].entries[4] = fact("redacted", log=f"session:{AGENT}", seq=6, digest="ab" * 32)
    draft.logs[AGENT].bare.clear()
    draft.withheld.clear()


@spoils("left-out")
def agent_that_is_here_and_left_out(draft: Draft) -> None:
    draft.left_out.append(FORK)


@spoils("manifest")
def manifest_with_another_field(draft: Draft) -> None:
    draft.manifest = lambda told: told.update(price=1)


@spoils("manifest")
def manifest_that_names_a_log_twice(draft: Draft) -> None:
    draft.manifest = lambda told: told["logs"].append(told["logs"][0])


@spoils("manifest")
def manifest_with_a_float(draft: Draft) -> None:
    draft.manifest = lambda told: told["logs"][0].update(size=14.0)


@spoils("manifest")
def manifest_of_a_member_outside(draft: Draft) -> None:
    draft.manifest = lambda told: told["files"].update({"../evil": {"sha256": "ab" * 32, "bytes": 1}})


@spoils("signer")
def bundle_that_another_key_signed(draft: Draft) -> None:
    draft.signer = b.STRANGER


@pytest.mark.parametrize("name", SPOILED)
def test_rule_is_found_broken_and_no_other(name: str, tmp_path: Path) -> None:
    """A checker without the rule would let this bundle pass."""
    code, spoil = SPOILED[name]
    draft = run()
    spoil(draft)
    assert checked(draft.sealed(), tmp_path) == {code}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "another"},
        {"version": 0},
        {"version": True},
        {"origin": ""},
        {"origin": "two\nlines"},
        {"made": 5},
        {"tree": "../x"},
        {"logs": {}},
        {"logs": [{"id": f"session:{ROOT}"}]},
        {"logs": [{"id": "x:y", "size": 0, "root": "00" * 32, "head": "00" * 32, "key_id": ""}]},
        {"logs": [{"id": f"tree:{ROOT}", "size": -1, "root": "00" * 32, "head": "00" * 32, "key_id": ""}]},
        {"logs": [{"id": f"tree:{ROOT}", "size": 0, "root": "00", "head": "00" * 32, "key_id": ""}]},
        {"left_out": "none"},
        {"left_out": ["../x"]},
        {"left_out": [FORK, FORK]},
        {"withheld": [[f"session:{ROOT}"]]},
        {"withheld": [[f"session:{ROOT}", 0]]},
        {"withheld": [[f"session:{ROOT}", 9], [f"session:{ROOT}", 9]]},
        {"texts": []},
        {"texts": {"x": {"bytes": 1, "state": "here"}}},
        {"texts": {"ab" * 32: {"bytes": 1, "state": "named"}}},
        {"packs": {"ab" * 32: {"bytes": 1, "state": "redacted"}}},
        {"files": []},
        {"files": {f"texts/{'ab' * 32}": {"sha256": "x", "bytes": 1}}},
    ],
)
def test_manifest_of_another_form_is_found(changes: Json, tmp_path: Path) -> None:
    draft = run()
    draft.manifest = lambda told: told.update(changes)
    path = b.zipped(draft.sealed(), tmp_path / "run.zip")
    assert codes(check_bundle(path)) == stranger(path, trusted=False) == {"manifest"}


@pytest.mark.parametrize("line", ["[]", "5", '{"s":6}', "null"])
def test_line_that_is_no_entry_is_found(line: str, tmp_path: Path) -> None:
    def replace(members: dict[str, bytes]) -> None:
        name = f"logs/session-{FORK}.jsonl"
        *lines, _ = members[name].splitlines(keepends=True)
        members[name] = b"".join([*lines, line.encode() + b"\n"])

    draft = run()
    draft.members = replace
    assert checked(draft.sealed(), tmp_path) == {"line"}


def test_text_of_an_entry_that_is_no_text_is_found(tmp_path: Path) -> None:
    def number(members: dict[str, bytes]) -> None:
        name = f"logs/session-{FORK}.jsonl"
        *lines, last = members[name].splitlines(keepends=True)
        members[name] = b"".join([*lines, re.sub(rb'"p":".*"}', b'"p":5}', last)])

    draft = run()
    draft.members = number
    assert checked(draft.sealed(), tmp_path) == {"line"}


def test_left_out_session_that_nothing_names_is_found_where_nothing_is_withheld(tmp_path: Path) -> None:
    draft = plain_run()
    assert checked(draft.sealed(), tmp_path) == set()
    draft.left_out.append(b.STRANGE)
    assert checked(draft.sealed(), tmp_path) == {"left-out"}


def test_text_that_is_called_redacted_where_nothing_was_is_found(tmp_path: Path) -> None:
    draft = plain_run()
    draft.texts[b.HELD_BACK] = "redacted"
    assert checked(draft.sealed(), tmp_path) == {"text-changed"}


# ── spoiled by somebody who cannot sign ───────────────────────────────────────────────────────────


def changed(members: dict[str, bytes], **changes: bytes) -> dict[str, bytes]:
    return {**members, **changes}


def test_member_that_is_missing_changed_or_added_is_found(tmp_path: Path) -> None:
    members = run().sealed()
    name = f"texts/{b.hexed(b.TEXT)}"
    without = {other: data for other, data in members.items() if other != name}
    assert checked(without, tmp_path) == {"member-missing"}
    assert checked({**members, name: b"another"}, tmp_path) == {"member-changed"}
    assert checked({**members, f"texts/{b.hexed(b'x')}": b"x"}, tmp_path) == {"member-unlisted"}
    assert checked({**members, "../evil": b"x"}, tmp_path) == {"member-name"}
    assert checked({**members, "logs/../../evil.jsonl": b"x"}, tmp_path) == {"member-name"}
    assert checked({**members, "logs/session-\x1b[2J.jsonl": b"x"}, tmp_path) == {"member-name"}
    for needed in ("manifest.json", "manifest.note"):
        fewer = {other: data for other, data in members.items() if other != needed}
        assert checked(fewer, tmp_path) == {"member-missing"}


def test_manifest_that_its_note_is_not_of_is_found(tmp_path: Path) -> None:
    members = run().sealed()
    other = members["manifest.json"].replace(b"20:00:00", b"20:00:01")
    assert checked({**members, "manifest.json": other}, tmp_path) == {"note"}
    unsigned = members["manifest.note"].partition(b"\n\n")[0]
    assert checked({**members, "manifest.note": unsigned}, tmp_path) == {"note"}
    text, _, signature = members["manifest.note"].decode().rpartition(" ")
    forged = f"{text} {signature[:20]}{'A' if signature[20] != 'A' else 'B'}{signature[21:]}"
    assert checked({**members, "manifest.note": forged.encode()}, tmp_path) == {"note"}


def test_zip_with_a_name_twice_a_link_or_a_cipher_is_found(tmp_path: Path) -> None:
    members, path = run().sealed(), tmp_path / "run.zip"

    b.zipped(members, path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"logs/session-{ROOT}.jsonl", b"another")
    assert both(path) == {"container"}
    for mode in (0o120777, 0o040755, 0o010644, 0o020666, 0o140755):
        b.zipped(members, path)
        with zipfile.ZipFile(path, "a") as archive:
            link = zipfile.ZipInfo(f"texts/{b.hexed(b'x')}")
            link.external_attr = mode << 16
            archive.writestr(link, "/etc/passwd")
        assert both(path) == {"container"}, oct(mode)
    for at, bit in ((8, 1), (8, 0x40), (9, 0x20)):
        data = bytearray(b.zipped(members, path).read_bytes())
        data[data.index(b"PK\x01\x02") + at] |= bit
        path.write_bytes(data)
        assert both(path) == {"container"}, (at, bit)
    path.write_bytes(data[: len(data) // 2])
    assert both(path) == {"container"}


def test_answer_whose_decision_was_turned_is_found_by_the_persons_key(tmp_path: Path) -> None:
    draft = run()
    draft.logs[ROOT].entries[8] = b.signed_answer(ROOT, "denied", turned="approved")
    people = {"ada": str(b.ADA.key)}
    assert checked(draft.sealed(), tmp_path, people=people) == {"answer"}
    assert checked(draft.sealed(), tmp_path) == set(), "without the person's key nothing is shown"
    draft.logs[ROOT].entries[8] = b.signed_answer(FORK, "approved")
    assert checked(draft.sealed(), tmp_path, people=people) == {"answer"}, "of another session"
    draft.logs[ROOT].entries[8] = b.signed_answer(ROOT, "approved", Signer("ada", b.private("eve")))
    assert checked(draft.sealed(), tmp_path, people=people) == {"answer"}, "in another's name"


ASKED = b.asks()
PEOPLE = {"ada": str(b.ADA.key)}


def test_signed_answer_holds_for_the_request_before_it_and_for_no_other(tmp_path: Path) -> None:
    given = b.signed_answer(ROOT, "approved", request=b.request_of(ASKED), words="ab" * 16)
    for entries, found in (
        ([ASKED, given], set()),
        ([b.asks(words="rm"), given], {"answer"}),
        ([b.asks(turn="2"), given], {"answer"}),
        ([given, ASKED], {"answer"}),
        ([ASKED, given, given], {"answer"}),
        ([ASKED, given, ASKED, given], {"answer"}),
        ([ASKED, {**given, "payload": {**given["payload"], "digest": "cd" * 16}}], {"answer"}),
        ([ASKED, {**given, "payload": {**given["payload"], "request": ""}}], {"answer"}),
    ):
        draft = b.plain_run()
        draft.logs[ROOT].entries[8:9] = entries
        assert checked(draft.sealed(), tmp_path, people=PEOPLE) == found, entries


def test_request_whose_text_is_withheld_may_be_the_one_that_was_signed(tmp_path: Path) -> None:
    given = b.signed_answer(ROOT, "approved", request=b.request_of(ASKED))
    for again, found in ((False, set()), (True, {"answer"})):
        draft = b.plain_run()
        draft.logs[ROOT].entries[8:9] = [ASKED, given, *([given] if again else [])]
        draft.logs[ROOT].bare.add(9)
        draft.withheld.append((f"session:{ROOT}", 9))
        assert checked(draft.sealed(), tmp_path, people=PEOPLE) == found


@pytest.mark.parametrize("value", [[], {}, None, 1])
def test_request_or_its_digest_of_another_kind_ends_no_checker(tmp_path: Path, value: object) -> None:
    given = b.signed_answer(ROOT, "approved", request=b.request_of(ASKED))
    draft = b.plain_run()
    draft.logs[ROOT].entries[8:9] = [
        {**ASKED, "payload": {**ASKED["payload"], "type": value}},
        {**given, "payload": {**given["payload"], "request": value}},
    ]
    assert checked(draft.sealed(), tmp_path, people=PEOPLE) == {"answer"}


def test_signature_of_before_proves_one_answer(tmp_path: Path) -> None:
    draft = b.plain_run()
    draft.logs[ROOT].entries[8:9] = [b.signed_answer(ROOT, "approved")] * 2
    assert checked(draft.sealed(), tmp_path, people=PEOPLE) == {"answer"}


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("ada", set()),
        (str(b.ADA.key), set()),
        ("ada+26a23f38", set()),
        ("ada+00000000", {"answer"}),
        ("ada+26a23f3", {"answer"}),
        ("eve+26a23f38", set()),
        ("head of security+26a23f38", set()),
        ("head of security", set()),
        ("head of security+00000000", {"answer"}),
    ],
)
def test_key_under_the_name_of_a_person_is_theirs_or_the_answer_is_a_finding(
    tmp_path: Path, key: str, found: set[str]
) -> None:
    draft = b.plain_run()
    draft.logs[ROOT].entries[8] = b.signed_answer(ROOT, "approved", key=key)
    people = {"head of security": str(b.ADA.key)}
    assert checked(draft.sealed(), tmp_path, people=people) == found
    trust = Trust.read(b.trust(people=people))
    fault = SignedAnswers(Signers(trust.people.values(), trust.people)).fault(
        ROOT, draft.logs[ROOT].entries[8]["payload"], b.hexed(b"run make, outside the sandbox")
    )
    assert bool(fault) is bool(found)


@pytest.mark.parametrize("part", ["shown", "decision", "sig"])
def test_answer_with_half_a_character_is_a_finding_and_ends_no_checker(tmp_path: Path, part: str) -> None:
    draft, answer = run(), b.signed_answer(ROOT, "approved")
    answer["payload"][part] = "half \ud800"
    draft.logs[ROOT].entries[8] = json.dumps(answer, separators=(",", ":"))
    assert checked(draft.sealed(), tmp_path, people={"ada": str(b.ADA.key)}) == {"answer"}


# ── receipts ──────────────────────────────────────────────────────────────────────────────────────

SEEN = {"witnesses": [str(b.witness_key())], "quorum": 1}


def receipted(folder: Path, draft: Draft, **trust: Any) -> set[str]:
    """The findings in a bundle with receipts, for somebody who trusts the witness; of both checkers."""
    path = b.zipped(draft.sealed(), folder / "run.zip")
    told = b.trust(**{**SEEN, **trust})
    found = codes(check_bundle(path, Trust.read(told)))
    assert _by_receipts(path, told) == found
    return found


def _by_receipts(path: Path, trust: bytes) -> set[str]:
    """The findings of the checker for strangers that reads receipts."""
    example()
    module, told = example("check_receipts"), json.loads(trust)
    for name, kind in (("log", 1), ("witnesses", 4)):
        told[name] = [module.read_key(text, kind) for text in told.get(name, [])]
    return {code for code, *_ in module.ReceiptCheck(path, told).run()}


def covered(draft: Draft | None = None, **register: Any) -> Draft:
    """A run under receipts."""
    found = draft or run()
    found.receipts = b.register(**register)
    return found


def note_of(draft: Draft, size: int) -> str:
    """The checkpoint of a size, as somebody kept it."""
    return draft.sealed()[f"receipts/{size}.note"].decode()


def test_run_under_receipts_is_complete_and_continues_what_was_seen(tmp_path: Path) -> None:
    draft = covered()
    path = b.zipped(draft.sealed(), tmp_path / "run.zip")
    trust = Trust.read(b.trust(**SEEN, checkpoint=note_of(draft, 3)))
    report = check_bundle(path, trust)
    assert report.findings == []
    receipts = report.receipts
    assert (receipts.whole, receipts.size, receipts.earlier, receipts.witnesses) == (True, 8, 3, 1)
    assert report.uncovered == 0
    assert codes(check_bundle(path)) == set()


def test_chosen_receipts_are_taken_where_the_auditor_says_so(tmp_path: Path) -> None:
    assert receipted(tmp_path, covered(chosen=True)) == {"chosen"}
    assert receipted(tmp_path, covered(chosen=True), chosen=True) == set()
    before = note_of(covered(), 5)
    assert receipted(tmp_path, covered(chosen=True), chosen=True, checkpoint=before) == set()


def test_auditor_who_names_no_witness_asks_for_receipts_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.zip"
    trust = Trust.read(json.dumps({"log": [str(b.OPERATOR.key)]}).encode())
    assert codes(check_bundle(b.zipped(covered().sealed(), path), trust)) == set()
    assert codes(check_bundle(b.zipped(run().sealed(), path), trust)) == {"receipts"}


def test_checkpoint_between_others_that_was_taken_away_is_missed(tmp_path: Path) -> None:
    for size, found in (("5", {"consistency"}), ("3", set())):
        draft = covered()
        draft.members = lambda members, size=size: members.pop(f"receipts/{size}.note")  # type: ignore[misc]
        assert receipted(tmp_path, draft) == found, "of the first one somebody may have a copy"


def test_receipts_that_were_taken_away_are_missed(tmp_path: Path) -> None:
    assert receipted(tmp_path, run()) == {"receipts"}
    draft = covered()
    draft.members = lambda members: members.pop("receipts/register.jsonl")
    assert receipted(tmp_path, draft) == {"receipts"}


def test_checkpoint_of_another_key_origin_or_size_is_found(tmp_path: Path) -> None:
    assert receipted(tmp_path, covered(signer=b.STRANGER)) == {"checkpoint"}
    draft = covered()
    draft.members = lambda members: members.update({"receipts/9.note": members["receipts/5.note"]})
    assert receipted(tmp_path, draft) == {"checkpoint"}


def test_bundle_that_no_witness_has_seen_is_found(tmp_path: Path) -> None:
    assert receipted(tmp_path, covered(witness=None)) == {"witnesses"}
    assert receipted(tmp_path, covered(witness=Signer(b.WITNESS.name, b.private("eve")))) == {"witnesses"}


def test_register_with_another_statement_is_found(tmp_path: Path) -> None:
    name = "receipts/register.jsonl"
    draft = covered()
    draft.members = lambda members: members.update({name: members[name].replace(b"closed", b"open", 1)})
    assert receipted(tmp_path, draft) == {"register"}
    draft = covered(chosen=True)
    draft.members = lambda members: members.update({name: members[name].replace(b"closed", b"open", 1)})
    assert receipted(tmp_path, draft, chosen=True) == {"register"}


def test_register_that_was_written_anew_is_no_continuation_of_what_was_seen(tmp_path: Path) -> None:
    seen = note_of(covered(), 3)
    anew = covered(strangers=1, texts=lambda texts: texts.__setitem__(0, texts[0].replace("open", "rest")))
    assert receipted(tmp_path, anew, checkpoint=seen) == {"earlier"}
    anew.receipts = b.register(strangers=1, chosen=True, texts=anew.receipts.texts)  # type: ignore[union-attr]
    assert receipted(tmp_path, anew, checkpoint=seen, chosen=True) == {"earlier"}
    later = note_of(covered(strangers=2), 8)
    assert receipted(tmp_path, covered(), checkpoint=later.replace("\n8\n", "\n9\n")) == {"earlier"}


def test_chosen_receipts_whose_checkpoints_are_not_tied_are_found(tmp_path: Path) -> None:
    draft = covered(chosen=True)
    draft.members = lambda members: members.pop("receipts/consistency.json")
    assert receipted(tmp_path, draft, chosen=True) == {"consistency"}
    for draft in (covered(chosen=True), covered()):
        draft.members = _untie
        assert receipted(tmp_path, draft, chosen=True) == {"consistency"}


def _untie(members: dict[str, bytes]) -> None:
    proofs = json.loads(members["receipts/consistency.json"])
    proofs[0]["p"] = proofs[1]["p"]
    members["receipts/consistency.json"] = (b.compact(proofs) + "\n").encode()


def test_history_that_was_rewritten_is_found_by_its_statement(tmp_path: Path) -> None:
    def rewritten(texts: list[str]) -> None:
        parts = texts[1].split("\n")
        texts[1] = "\n".join([*parts[:4], "ab" * 32, *parts[5:]])

    assert receipted(tmp_path, covered(texts=rewritten)) == {"prefix"}


def test_entries_behind_the_last_statement_are_found(tmp_path: Path) -> None:
    draft = covered()
    draft.receipts.seen.pop()  # type: ignore[union-attr]
    draft.receipts.checkpoints = (3, 5, 7)  # type: ignore[union-attr]
    assert receipted(tmp_path, draft) == {"uncovered"}


def test_log_that_is_shorter_than_a_statement_is_found(tmp_path: Path) -> None:
    longer = covered(texts=lambda texts: texts.__setitem__(5, texts[5].replace("\n6\n", "\n9\n", 1)))
    assert receipted(tmp_path, longer) == {"complete"}


def test_agent_that_is_left_out_with_its_making_is_found_by_the_register(tmp_path: Path) -> None:
    draft = run()
    del draft.logs[AGENT]
    draft.tree.pop()
    draft.withheld[:] = [(f"session:{ROOT}", 5)]
    draft.logs[ROOT].bare.add(5)
    assert checked(draft.sealed(), tmp_path) == set(), "the bundle alone cannot show it"
    assert receipted(tmp_path, covered(draft)) == {"complete"}


def test_times_that_fall_or_lie_behind_a_statement_are_found(tmp_path: Path) -> None:
    draft = covered()
    seen = draft.receipts.seen  # type: ignore[union-attr]
    seen[4] = (*seen[4][:2], 1, seen[4][3])
    assert receipted(tmp_path, draft) == {"time"}
    draft = covered()
    draft.logs[FORK].entries[5] = said("thanks", 8 + 301)
    assert receipted(tmp_path, draft) == {"time"}
    draft.logs[FORK].entries[5] = said("thanks", 8 + 299)
    assert receipted(tmp_path, draft) == set()


@pytest.mark.parametrize(
    "spoilt",
    [
        b"[]",
        b'{"log":["x+00000000+AA"]}',
        b'{"quorum":true}',
        f'{{"witnesses":["{b.OPERATOR.key}"]}}'.encode(),
        f'{{"log":["{b.witness_key()}"]}}'.encode(),
        b'{"quorum":1}',
        b'{"quorum":1.5}',
        b'{"logs":[]}',
        b'{"people":["ada"]}',
        b'{"checkpoint":"no note"}',
        b'{"log":[],"log":[]}',
    ],
)
def test_trust_file_that_says_nothing_clear_is_refused(spoilt: bytes) -> None:
    with pytest.raises(BadTrust):
        Trust.read(spoilt)


# ── at random ─────────────────────────────────────────────────────────────────────────────────────

TRIES = 400 if NIGHT else 30


def test_no_flipped_byte_of_the_file_passes(tmp_path: Path) -> None:
    rng, path = random.Random(base_seed()), tmp_path / "run.zip"
    original = covered().sealed()
    sound = bytearray(b.zipped(original, path).read_bytes())
    trust = Trust.read(b.trust(**SEEN))
    for _ in range(TRIES):
        data = bytearray(sound)
        at = rng.randrange(len(data))
        data[at] ^= rng.randrange(1, 256)
        path.write_bytes(data)
        found = codes(check_bundle(path, trust))
        assert found or _members(path) == original, f"byte {at}"
        assert bool(_by_receipts(path, b.trust(**SEEN))) == bool(found), f"byte {at}"


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {info.orig_filename: archive.read(info) for info in archive.infolist()}


def test_no_flipped_byte_of_a_member_passes(tmp_path: Path) -> None:
    rng, path = random.Random(base_seed()), tmp_path / "run.zip"
    original = run().sealed()
    for _ in range(TRIES):
        name = rng.choice(sorted(original))
        data = bytearray(original[name])
        at = rng.randrange(len(data))
        data[at] ^= rng.randrange(1, 256)
        b.zipped({**original, name: bytes(data)}, path)
        found = codes(check_bundle(path, Trust.read(b.trust())))
        assert found, f"byte {at} of {name}"
        assert stranger(path, trusted=True), f"byte {at} of {name}"


def test_no_change_that_the_operator_seals_anew_passes_the_register(tmp_path: Path) -> None:
    rng, path = random.Random(base_seed()), tmp_path / "run.zip"
    trust, old = Trust.read(b.trust(**SEEN)), covered(plain_run()).sealed()
    receipts = {name: data for name, data in old.items() if name.startswith("receipts/")}
    for _ in range(TRIES):
        draft = plain_run()
        draft.receipts = lambda draft, lines: receipts
        told: list[str] = []
        _spoil(draft, rng, told)
        members = draft.sealed()
        b.zipped(members, path)
        found = _verdict(path, trust)
        assert found or members == old or NEVER_FOUND & set(told), told
        if found != {"version"}:
            assert bool(_by_receipts(path, b.trust(**SEEN))) == bool(found), told


def _verdict(path: Path, trust: Trust) -> set[str]:
    try:
        return codes(check_bundle(path, trust))
    except NewerFormat:
        return {"version"}


def _spoil(draft: Draft, rng: random.Random, told: list[str]) -> None:
    """A change of a line, of the lines' order, of a member or of a field of the manifest."""

    def line(lines: dict[str, list[Json]]) -> None:
        some = lines[rng.choice(sorted(lines))]
        at = rng.randrange(len(some))
        field = rng.choice(sorted(some[at]))
        told.append(f"{field} of a line")
        some[at] = {**some[at], field: _other(some[at][field], rng)}

    def order(lines: dict[str, list[Json]]) -> None:
        some = lines[rng.choice(sorted(lines))]
        at, to = rng.randrange(len(some)), rng.randrange(len(some))
        told.append(f"lines {at} and {to}")
        some[at], some[to] = some[to], some[at]
        if rng.random() < 0.5:
            del some[at]

    def member(members: dict[str, bytes]) -> None:
        name = rng.choice([name for name in sorted(members) if not name.startswith("logs/")])
        told.append(name)
        if rng.random() < 0.3:
            del members[name]
        else:
            members[name] += b"x"

    def manifest(value: Json) -> None:
        place: Any = value
        while True:
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            key = rng.choice([*keys])
            told.append(str(key))
            if not isinstance(place[key], dict | list) or not place[key]:
                break
            place = place[key]
        # Whether a pack that is not here was withheld or never fetched is its maker's word alone.
        place[key] = "withheld" if place[key] == "redacted" else _other(place[key], rng)

    match rng.randrange(4):
        case 0:
            draft.lines = line
        case 1:
            draft.lines = order
        case 2:
            draft.members = member
        case _:
            draft.manifest = manifest


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, str) and value:
        at = rng.randrange(len(value))
        return f"{value[:at]}{chr((ord(value[at]) + rng.choice([1, 2, 7])) % 128)}{value[at + 1 :]}"
    if isinstance(value, int):
        return value + rng.choice([-1, 1, 100])
    return rng.choice(["x", 7, None, [b.STRANGE]])


# ── hostile ones ──────────────────────────────────────────────────────────────────────────────────


def both(path: Path) -> set[str]:
    """The findings of both checkers in a file that is meant to harm them, for somebody who trusts nobody."""
    tracemalloc.start()
    found = codes(check_bundle(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 128 << 20
    assert stranger(path, trusted=False) == found
    return found


def test_line_without_an_end_is_read_to_its_bound(tmp_path: Path) -> None:
    draft = run()
    draft.members = lambda members: members.update({f"logs/session-{AGENT}.jsonl": b" " * (17 << 20)})
    assert "line" in both(b.zipped(draft.sealed(), tmp_path / "run.zip"))


def test_member_that_unpacks_to_more_than_it_says_is_read_to_what_it_says(tmp_path: Path) -> None:
    members = run().sealed()
    bomb = {**members, f"texts/{b.hexed(b.TEXT)}": bytes(16 << 20)}
    assert both(b.zipped(bomb, tmp_path / "run.zip")) == {"member-changed"}


def test_directory_of_too_many_members_is_not_read(tmp_path: Path) -> None:
    entry = (
        struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0)
        + b"x"
    )
    directory = entry * 100_001
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(directory), 4, 0)
    path = tmp_path / "run.zip"
    path.write_bytes(b"PK\3\4" + directory + end)
    assert both(path) == {"container"}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000])
def test_json_that_is_nested_deep_ends_no_checker(text: str, tmp_path: Path) -> None:
    draft = run()
    draft.logs[AGENT].entries[5] = text
    assert both(b.zipped(draft.sealed(), tmp_path / "run.zip")) == {"entry"}
    members = run().sealed()
    assert both(b.zipped({**members, "manifest.json": text.encode()}, tmp_path / "run.zip")) == {"manifest"}


def test_half_of_a_surrogate_pair_is_found(tmp_path: Path) -> None:
    def half(members: dict[str, bytes]) -> None:
        name = f"logs/session-{AGENT}.jsonl"
        members[name] = members[name].replace(b'"p":"{', b'"p":"\\ud800{')

    draft = run()
    draft.members = half
    assert "line" in both(b.zipped(draft.sealed(), tmp_path / "run.zip"))


def test_bundle_that_unpacks_to_more_than_the_bound_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, folder = b.zipped(run().sealed(), tmp_path / "run.zip"), tmp_path / "folder"
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder)
        size = sum(info.file_size for info in archive.infolist())
    monkeypatch.setattr(bundle_members, "MOST_BYTES", size)
    for path in (file, folder):
        bundle_members.open_members(path).close()
    monkeypatch.setattr(bundle_members, "MOST_BYTES", size - 1)
    for path in (file, folder):
        with pytest.raises(bundle_members.BadContainer, match="unpacked"):
            bundle_members.open_members(path)


def test_numbers_without_end_are_found(tmp_path: Path) -> None:
    draft = run()
    draft.lines = lines_of(f"session:{FORK}", lambda some: some[5].update(e=1 << 80))
    draft.manifest = lambda told: told["logs"][2].update(root="ab" * 32)
    assert both(b.zipped(draft.sealed(), tmp_path / "run.zip")) == {"line"}


def test_each_rule_has_a_bundle_that_breaks_it() -> None:
    """A code that no test expects would be a rule that could be taken away unseen."""
    modules = (bundle_check, bundle_receipts, bundle_members)
    source = "".join(Path(str(module.__file__)).read_text() for module in modules)
    told = set(re.findall(r'(?:find|_find|_compare)\(\s*"([a-z-]+)"', source))
    told |= set(re.findall(r'code = "([a-z-]+)"', source))
    told |= {f"{kind}-{what}" for kind in ("text", "pack") for what in ("missing", "changed", "file")}
    tests = Path(__file__).read_text()
    assert {code for code in told if f'"{code}"' not in tests} == set()


def test_example_for_strangers_is_short_and_has_nothing_of_ours() -> None:
    for name in ("check_bundle", "check_receipts"):
        source = EXAMPLE.with_name(f"{name}.py").read_text()
        assert len(source.splitlines()) <= 350
        imported = set(re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE))
        assert imported - sys.stdlib_module_names - {"check_bundle"} == {"cryptography"}


@pytest.mark.parametrize("name", ["check_bundle", "check_receipts"])
@pytest.mark.parametrize("words", [[], ["missing.zip"], [__file__, "missing.json"]])
def test_example_for_strangers_asks_for_files_that_are_there(
    name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    example()
    with pytest.raises(SystemExit) as ended:
        example(name).main(*words)
    assert (ended.value.code, f"{name}.py run.zip [trust.json]" in capsys.readouterr().err) == (2, True)
