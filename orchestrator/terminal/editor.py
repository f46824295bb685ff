"""The line that a person types at a terminal while an agent's events are drawn above it.

Editing and history are prompt_toolkit's. What is asked stands in the line's own place and in the bar
above it, so that no event moves it out of sight. Knows neither sessions nor ops.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import TextIOBase
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.patch_stdout import patch_stdout
from rich.console import Console

from orchestrator.private_files import make_folder, open_file, write_file
from orchestrator.terminal.streams import STDOUT
from orchestrator.terminal.text import one_line

if TYPE_CHECKING:
    from prompt_toolkit.output import Output

HISTORY_BYTES = 1 << 20
"""Of the history file; the older half goes when it is passed."""
PROMPT = "› "


class Interrupted(Exception):
    """Ctrl-C was pressed; nothing was typed."""


class History(FileHistory):
    """Lines of this and earlier conversations, in a file that only the user may read."""

    def __init__(self, file: Path, worth: Callable[[str], bool]) -> None:
        _prepare(file)
        super().__init__(str(file))
        self._worth = worth

    def append_string(self, string: str) -> None:
        if self._worth(string):
            super().append_string(string)


def _prepare(file: Path) -> None:
    make_folder(file.parent)
    os.close(open_file(file, os.O_APPEND | os.O_WRONLY))
    data = file.read_bytes()
    if len(data) > HISTORY_BYTES:
        # An entry begins with an empty line: what is kept begins with one.
        rest = data[-HISTORY_BYTES // 2 :]
        write_file(file, rest[rest.find(b"\n\n") + 1 :])


class PressedKeys(Vt100Input):
    """Keys as they are pressed, also while an event is drawn above the line.

    prompt_toolkit gives the terminal back to the kernel for that moment: a Ctrl-D that is pressed then is
    the end of a file that nobody reads, and is lost.
    """

    def cooked_mode(self) -> AbstractContextManager[None]:
        return nullcontext()


class Editor:
    """Reads lines, one after another."""

    def __init__(self, history: Path, words: Sequence[str], term: str | None) -> None:
        self.question = ""
        """The question that is open now, on one line; empty if a message may be typed."""
        self.bar: Callable[[], str] = str
        """The line above the input; it is erased with the input."""
        self.hid = False
        """Whether the line that was read last was not shown while it was typed."""
        self._hides = False
        self._draft = ""
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            history=History(history, lambda line: not self.question and bool(line.strip())),
            completer=_slash_words(words),
            complete_while_typing=False,
            erase_when_done=True,
            is_password=Condition(lambda: self._hides),
            input=PressedKeys(sys.stdin),
            output=_output(term),
            reserve_space_for_menu=2,
        )

    async def read(self) -> str | None:
        """The next line, None at the end of input; raises `Interrupted`."""
        self.hid = self._hides
        try:
            return await self._session.prompt_async(default=self._took_draft(), handle_sigint=False)
        except KeyboardInterrupt:
            raise Interrupted from None
        except EOFError:
            return None

    def _message(self) -> FormattedText:
        columns = _size().columns
        bar = one_line(self.bar())
        shown = bar if len(bar) < columns else bar[: max(0, columns - 2)] + "…"
        style = "reverse" if self.question else "fg:ansibrightblack"
        return FormattedText([(style, shown), ("", f"\n{self.question or PROMPT}")])

    def ask(self, question: str, *, hides: bool = False) -> None:
        """Puts a question, or none: what was typed before it is no answer, and is kept for later.

        With `hides` the answer is not shown.
        """
        self._hides = hides
        if question == self.question:
            self.hid = self.hid or hides
            return
        # The line begins anew: nothing of it was typed unseen before.
        self.hid = hides
        buffer = self._session.default_buffer
        if not self.question:
            self._draft = buffer.text
        self.question = question
        buffer.text = "" if question else self._took_draft()
        buffer.cursor_position = len(buffer.text)
        self.draw()

    def draw(self) -> None:
        """Draws the line and the bar again."""
        if self._session.app.is_running:
            self._session.app.invalidate()

    def _took_draft(self) -> str:
        if self.question:
            return ""
        draft, self._draft = self._draft, ""
        return draft


def _slash_words(words: Sequence[str]) -> Completer:
    return WordCompleter(list(words), sentence=True)


def _output(term: str | None) -> Output:
    """Asks the terminal for no report of its cursor: not every one answers."""
    assert sys.__stdout__ is not None
    return Vt100_Output(sys.__stdout__, _size, term=term, enable_cpr=False)


def _size() -> Size:
    columns, rows = os.get_terminal_size(STDOUT)
    return Size(rows=rows or 24, columns=columns or 80)


class _WholeLines(TextIOBase):
    """Passes on whole lines: a part of one would stand where the person types."""

    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        if lines:
            sys.stdout.write("".join(f"{line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()

    def isatty(self) -> bool:
        return True


@contextmanager
def above_the_line() -> Iterator[Console]:
    """A console whose lines are drawn above the line that is typed."""
    with patch_stdout(raw=True):
        # rich asks `file` for its encoding, and this one has that of the terminal.
        yield Console(file=_WholeLines(), force_terminal=True, highlight=False)  # type: ignore[arg-type]
