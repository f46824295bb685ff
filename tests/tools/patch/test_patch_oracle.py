"""The matcher against a slow one that says its rules in a few lines: each search looks at every place."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.tools.patch.grammar import Chunk, ChunkLine, LineKind
from orchestrator.tools.patch.plan import ChunkMismatch, apply_chunks
from tests.commit_seed import examples

LINES = st.sampled_from(["", "a", "a ", " a", "b", "}", "\u2013", "-"])
CHUNKS = st.lists(
    st.builds(
        Chunk,
        st.lists(LINES.filter(str.strip), max_size=1).map(tuple),
        st.lists(st.builds(ChunkLine, st.sampled_from(LineKind), LINES), min_size=1, max_size=5).map(tuple),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
).map(tuple)

VIEWS = (str, str.rstrip, str.strip, lambda line: line.strip().replace("\u2013", "-"))


def place_of(lines: list[str], block: list[str], start: int, *, at_end: bool) -> int | None:
    if not block:
        return start
    last = len(lines) - len(block)
    for view in VIEWS:
        for place in range(max(start, last) if at_end else start, last + 1):
            if [view(line) for line in lines[place : place + len(block)]] == [view(line) for line in block]:
                return place
    return None


def slowly_applied(text: str, chunks: tuple[Chunk, ...]) -> str | None:
    """The text with every chunk applied; None if one of them has no place."""
    lines = text.splitlines()
    cursor, replacements, appended = 0, [], []
    for chunk in chunks:
        for context in chunk.contexts:
            found = place_of(lines, [context], cursor, at_end=False)
            if found is None:
                return None
            cursor = found + 1
        old = [line.text for line in chunk.lines if line.kind is not LineKind.ADD]
        new: list[str | int] = []
        for line in chunk.lines:
            if line.kind is LineKind.ADD:
                new.append(line.text)
            elif line.kind is LineKind.KEEP:
                # A kept line is the file's own, by its number among the old ones.
                before = chunk.lines[: chunk.lines.index(line)]
                new.append(sum(one.kind is not LineKind.ADD for one in before))
        if not old:
            appended += [line.text for line in chunk.lines]
            continue
        start = place_of(lines, old, cursor, at_end=chunk.end_of_file)
        if start is None and old[-1] == "":
            size = len(old) - 1
            if new and (new[-1] == "" or (isinstance(new[-1], int) and old[new[-1]] == "")):
                new.pop()
            new = ["" if line == size else line for line in new]
            old = old[:-1]
            start = place_of(lines, old, cursor, at_end=chunk.end_of_file)
        if start is None:
            return None
        replacements.append((start, len(old), new))
        cursor = start + len(old)
    result, copied = [], 0
    for start, length, new in replacements:
        result += lines[copied:start]
        result += [lines[start + line] if isinstance(line, int) else line for line in new]
        copied = start + length
    return "".join(f"{line}\n" for line in [*result, *lines[copied:], *appended])


def distinct(chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
    """The same chunks with no line object twice: the oracle finds a line by which one it is."""
    return tuple(
        Chunk(chunk.contexts, tuple(dict.fromkeys(chunk.lines)), chunk.end_of_file) for chunk in chunks
    )


@settings(max_examples=examples(1_500), deadline=None)
@given(st.lists(LINES, max_size=7), CHUNKS)
@example(["a", "b"], (Chunk((), (ChunkLine(LineKind.KEEP, ""), ChunkLine(LineKind.ADD, "c"))),))
@example(["a", "b", "a"], (Chunk((), (ChunkLine(LineKind.DROP, "b"),), end_of_file=True),))
def test_the_matcher_does_what_its_rules_say(lines: list[str], chunks: tuple[Chunk, ...]) -> None:
    text, chunks = "".join(f"{line}\n" for line in lines), distinct(chunks)
    try:
        changed = apply_chunks(text, chunks)
    except ChunkMismatch:
        changed = None
    assert changed == slowly_applied(text, chunks)
