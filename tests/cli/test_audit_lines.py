"""Lines of `dendro audit`: each fact of a call and of a sum, with its entries and what it is worth."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from orchestrator.cli import audit
from orchestrator.terminal.faults import ExitCode
from orchestrator.views.audit_cost import Cost
from orchestrator.views.audit_who import Decided, Source


def logs(faults: tuple[str, ...] = (), unchecked: str = "") -> Source:
    return cast(Source, SimpleNamespace(faults=[*faults], unchecked=unchecked))


WHOLE, BROKEN, UNKNOWN = logs(), logs(("s:3: it does not follow",)), logs(unchecked="keyed by 'k'")
WORTH = [(WHOLE, "proved"), (BROKEN, "stated"), (UNKNOWN, "stated")]
CALL: dict[str, Any] = {
    "session": "s",
    "agent": "0/3",
    "call_id": "c1",
    "command": "make all",
    "cwd": "/w",
    "sandboxed": True,
    "entries": ["s:1", "s:2", "s:3"],
}
ANSWERED: dict[str, Any] = {"decision": "approved", "by": "ann at the terminal", "by_entry": "s:2"}


def lines(source: Source = WHOLE, **more: Any) -> list[str]:
    return list(audit._decided(Decided(**{**CALL, **more}), source))


@pytest.mark.parametrize(("source", "worth"), WORTH)
@pytest.mark.parametrize(
    ("sandboxed", "where"), [(True, "in the sandbox"), (False, "OUTSIDE THE SANDBOX"), (None, "no command")]
)
def test_call_is_told_with_where_it_ran(
    sandboxed: bool | None, where: str, source: Source, worth: str
) -> None:
    first, *_ = lines(source, sandboxed=sandboxed)
    assert first == f"0/3/c1  make all  /w {where}  s:1, s:2, s:3 {worth}"
    assert lines(source, cwd="")[0].startswith("0/3/c1  make all   in the sandbox  ")


@pytest.mark.parametrize(("source", "worth"), WORTH)
def test_call_was_decided_or_let_run_unasked_or_did_not_run(source: Source, worth: str) -> None:
    (decided,) = lines(source, **ANSWERED, unasked="by a rule")[1:]
    assert decided == "  approved   by ann at the terminal  s:2 stated"
    (unasked,) = lines(source, unasked="known to be safe")[1:]
    assert unasked == f"  unasked    known to be safe  s:1, s:2, s:3 {worth}"
    (neither,) = lines(source)[1:]
    assert neither == f"  not run    s:1, s:2, s:3 {worth}"


@pytest.mark.parametrize(
    ("key", "signed", "said"),
    [
        ("ada+1+k", True, "by ada+1+k, over this decision and what was shown  s:2 proved"),
        ("ada+1+k", False, "as ada+1+k, WHICH IT IS NOT  s:2 stated"),
        ("ada+1+k", None, "as ada+1+k, whose key was not told (--trust)  s:2 stated"),
        ("", None, None),
    ],
)
def test_signature_is_told_as_what_it_is(key: str, signed: bool | None, said: str | None) -> None:
    told = lines(**ANSWERED, key=key, signed=signed, shown="run make")[1:]
    wanted = [] if said is None else [f"  signed     {said}"]
    assert told[1:] == [*wanted, "  shown      run make  s:2 stated"]


def test_each_other_fact_has_a_line_of_its_own_with_its_own_entry() -> None:
    more: dict[str, Any] = {
        "worker": "w1 on build-2",
        "worker_entry": "s:7",
        "behalf": "ben",
        "behalf_entry": "s:8",
        "result": "exit 0",
    }
    told = lines(**ANSWERED, **more)[1:]
    assert told == [
        "  worker     w1 on build-2  s:7 stated",
        "  approved   by ann at the terminal  s:2 stated",
        "  on behalf  ben  s:8 stated",
        "  result     exit 0  s:2, s:3 stated",
    ]


@pytest.mark.parametrize("uncounted", [0, 1, 40])
@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 9])
def test_entries_are_named_up_to_six_and_the_others_counted(count: int, uncounted: int) -> None:
    places = [f"s:{n}" for n in range(count)]
    left = count - 6 + uncounted
    # None is uncounted before six stand there.
    more = f" and {left} more" if count > 6 else ""
    assert audit._entries(places, uncounted) == ", ".join(places[:6]) + more


@pytest.mark.parametrize("unpriced", [0, 1, 3])
def test_sum_has_its_figures_and_requests_without_a_price_are_not_free(unpriced: int) -> None:
    one = Cost("ann", 4, 1_000, 20, 2_500_001, unpriced, ["s:1", "s:2"])
    (line,) = audit._spent(one)
    unknown = f", {unpriced} requests of unknown cost" if unpriced else ""
    assert line == f"ann  4 requests, 1000 in, 20 out, $2.500001{unknown}  s:1, s:2 stated"
    more = Cost("ann", 400, 1, 1, 0, 0, [f"s:{n}" for n in range(9)], 391)
    assert next(audit._spent(more)).endswith("s:5 and 394 more stated")


@pytest.mark.parametrize(("source", "worth"), WORTH)
def test_program_reads_each_fact_with_what_its_entries_are_worth(source: Source, worth: str) -> None:
    (line,) = audit._as_json(Decided(**CALL, **ANSWERED), source)
    told = json.loads(line)
    assert told["entries_are"] == worth
    assert {name: told[name] for name in (*CALL, *ANSWERED)} == {**CALL, **ANSWERED}


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        (WHOLE, None, ["dendro: " + audit.WORTH]),
        (UNKNOWN, audit.UNCHECKED, ["dendro: not proved: keyed by 'k'"]),
        (BROKEN, ExitCode.FAILED, ["dendro: not proved: s:3: it does not follow"]),
        (logs(("a", "b"), "keyed"), ExitCode.FAILED, ["dendro: not proved: a", "dendro: not proved: b"]),
        (
            logs(tuple(map(str, range(9)))),
            ExitCode.FAILED,
            [f"dendro: not proved: {n}" for n in range(audit.ENTRIES_SHOWN)],
        ),
    ],
)
def test_answers_end_with_what_they_are_worth_and_its_exit_code(
    source: Source, code: int | None, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if code is None:
        audit._end(source)
    else:
        with pytest.raises(typer.Exit) as ended:
            audit._end(source)
        assert ended.value.exit_code == code
    assert capsys.readouterr().err.splitlines() == said


@pytest.mark.parametrize(
    ("value", "cell"), [(None, ""), ("a\tb\nc", "a b c"), (0, "0"), (False, "False"), ("", ""), (1.5, "1.5")]
)
def test_cell_of_a_table_is_on_one_line_and_in_its_column(value: object, cell: str) -> None:
    assert audit._cell(value) == cell
