"""Foreign text at a terminal: nothing of it is obeyed, or stands there and is not seen."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from orchestrator.terminal.text import json_for_stdout, one_line, plain, plain_json, shown

OBEYED = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs")]
"""Controls (C0, DEL, C1), bidirectional overrides and other formats, halves of surrogate pairs."""
UNSEEN = ["\u034f", "\u115f", "\u1160", "\u17b4", "\u180b", "\u180f", "\u2028", "\u2029", "\u3164", "\uffa0"]
UNSEEN += ["\U000e0100", "\U000e01ef"]
HARMLESS = ["a", "é", "名", "😀", "\u0301", " ", "\u00a0", "[red]", "\\u202e", "%s"]


@pytest.mark.parametrize("around", ["{}", "a{}", "{}b", "é{}é", "\t{}\n", "{}{}"])
def test_whatever_a_terminal_obeys_or_shows_nothing_of_is_spelled_wherever_it_stands(around: str) -> None:
    obeyed = [char for char in OBEYED if char not in "\n\t"]
    for char in (*obeyed, *UNSEEN):
        if char == "\r" and around.endswith("}\n"):
            continue  # one line break
        text = plain(around.format(char, char))
        left = text.replace("\n", "").replace("\t", "")
        assert char not in text
        assert not any(unicodedata.category(one) in ("Cc", "Cf", "Cs") for one in left), hex(ord(char))
        code = ord(char)
        assert (chr(0x2400 + code) if code < 0x20 else f"\\u{code:04x}") in text


@pytest.mark.parametrize("text", [*HARMLESS, "\t", "\n", "a\n\tb", "".join(HARMLESS)])
def test_harmless_text_stays_as_it_is(text: str) -> None:
    assert plain(text) == text
    assert str(shown(text)) == text, "and nothing in it is markup"
    assert one_line(text) == text.replace("\n", "␊").replace("\t", "␉")


@pytest.mark.parametrize(("text", "line"), [("a\r\nb", "a␊b"), ("a\rb", "a␍b"), ("a\n\r", "a␊␍"), ("", "")])
def test_line_breaks_of_other_machines_are_one_break_and_a_return_alone_is_shown(
    text: str, line: str
) -> None:
    assert one_line(text) == line
    assert "\r" not in plain(text)


def test_json_for_a_terminal_has_the_same_values_and_nothing_that_a_terminal_obeys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for char in OBEYED:
        if unicodedata.category(char) == "Cs":
            continue  # no JSON of ours holds one
        for value in ({"k": char}, [f"é{char}"], {char: 1}, f"{char}{char}"):
            text = json.dumps(value, ensure_ascii=False, indent=1)
            told = plain_json(text)
            assert json.loads(told) == value
            assert not any(unicodedata.category(one) in ("Cc", "Cf") for one in told if one not in "\n\t")
            assert json_for_stdout(text.encode()) == told.encode()
    ascii_alone = json.dumps({"k": "é\u202e"}, indent=1)
    assert plain_json(ascii_alone) == ascii_alone
    letters = json.dumps({"k": "名é"}, ensure_ascii=False)
    assert plain_json(letters) == letters


def test_json_for_a_program_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    data = '{"k": "\u202e\x7f\u009b"}'.encode()
    assert json_for_stdout(data) == data
