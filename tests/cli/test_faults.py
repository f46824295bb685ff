"""From any error to one line and an exit code that a script can tell apart."""

from __future__ import annotations

import errno

import pytest

from orchestrator.settings import SettingsError
from orchestrator.terminal import faults
from orchestrator.terminal.faults import ExitCode, Fault, explain, refuse, report

KINDS: list[tuple[type[Exception], ExitCode, str]] = [
    *(
        (kind, ExitCode.USAGE, "")
        for kind in (*faults._misuse(), *faults._misuse_of_the_stub(), SettingsError)
    ),
    *((kind, ExitCode.FAILED, "") for kind in faults._failures()),
    *(
        (kind, ExitCode.USAGE, " (`dendro doctor` says what is missing)")
        for kind in faults._setup()
        if kind is not SettingsError
    ),
]


def made(kind: type[Exception], text: str) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    return error


@pytest.mark.parametrize(("kind", "code", "hint"), KINDS, ids=[kind.__name__ for kind, _, _ in KINDS])
def test_each_kind_of_error_has_its_exit_code_and_is_told_on_one_line(
    kind: type[Exception], code: ExitCode, hint: str
) -> None:
    error = made(kind, "two\n  lines")
    told, found = explain(error)
    assert (told, found) == (f"two lines{hint}", code)
    for grouped in (ExceptionGroup("g", [error]), ExceptionGroup("g", [ExceptionGroup("h", [error])])):
        assert explain(grouped) == (told, found), "however deep it lies in groups"


def test_error_that_is_of_several_kinds_is_the_narrower_one() -> None:
    """A session that is gone is no deployment that lacks something."""
    for kind in faults._failures():
        if issubclass(kind, faults._setup()):
            assert explain(made(kind, "gone")) == ("gone", ExitCode.FAILED)


@pytest.mark.parametrize("code", ExitCode)
def test_fault_of_a_command_carries_its_own_exit_code(code: ExitCode) -> None:
    assert explain(Fault("a\tb\nc", code)) == ("a b c", code)


def test_error_of_the_system_names_its_file() -> None:
    assert explain(OSError(errno.ENOENT, "not there", "/a/b")) == ("/a/b: not there", ExitCode.FAILED)
    assert explain(OSError(errno.ENOENT, "not there")) == ("not there", ExitCode.FAILED)
    assert explain(OSError("words alone")) == ("words alone", ExitCode.FAILED)


def test_any_other_error_is_a_defect_and_says_how_to_see_where() -> None:
    told, code = explain(KeyError("a\nb"))
    assert code is ExitCode.FAILED
    assert told.startswith("internal error: KeyError: 'a\\nb' (set DENDRO_DEBUG=1 to see where")


@pytest.mark.parametrize("debugs", ["", "1"])
def test_report_is_one_line_that_steers_no_terminal_and_a_trace_only_where_it_is_asked_for(
    debugs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DENDRO_DEBUG", debugs)
    assert report(Fault("a\x1b[2J\nb\u202e", ExitCode.WAITING)) == ExitCode.WAITING
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "dendro: a␛[2J b\\u202e"
    assert (len(lines) > 1) is bool(debugs)


def test_first_wrong_use_is_the_one_that_is_told() -> None:
    refuse((False, "one"), (False, "two"))
    for uses in ([(True, "two"), (True, "three")], [(False, "one"), (True, "two"), (True, "three")]):
        with pytest.raises(Fault, match=r"^two$") as refused:
            refuse(*uses)
        assert refused.value.code is ExitCode.USAGE
