"""Differences between two texts by lines, and their unified rendering.

The shortest edit script by Myers' linear-space method ("An O(ND) Difference Algorithm and
Its Variations", 1986, section 4b): the same family as git's and Codex's, so diffs of one
change read alike. Its cost grows with the number of differences; where two regions share
too little, they are cut at lines that occur once in both, and if there are none, shown as
replaced: a diff is for people, and a rewritten file has no better one.

It must not know of files, paths or patches: texts in, text out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

# Steps of the two searches together before a region counts as rewritten. 256 differing
# lines a region are ~100 ms of Python in the worst case; edits by a patch stay far below.
MAX_SEARCH_DEPTH = 256

NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines `old_start:old_end` become lines `new_start:new_end`; one of them may be empty."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


def split_lines(text: str) -> list[str]:
    """Lines with their newlines; only "\\n" ends a line, as git has it."""
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def unified_diff(old: str, new: str, context: int = 3) -> str:
    """Hunks of a unified diff, without file headers; empty if the texts are equal."""
    old_lines, new_lines = split_lines(old), split_lines(new)
    edits = line_edits(old_lines, new_lines)
    return "".join(
        text for group in _grouped(edits, context) for text in _render(group, old_lines, new_lines, context)
    )


def line_edits(old: Sequence[str], new: Sequence[str]) -> list[Edit]:
    """The edits that turn `old` into `new`, in order, none touching the next."""
    ids: dict[str, int] = {}
    old_ids = [ids.setdefault(line, len(ids)) for line in old]
    new_ids = [ids.setdefault(line, len(ids)) for line in new]
    whole = Edit(0, len(old), 0, len(new))
    return _settled(_edits(old_ids, new_ids, whole), old_ids, new_ids)


def _edits(old: list[int], new: list[int], whole: Edit) -> Iterator[Edit]:
    pending = [whole]
    while pending:
        region = _trimmed(old, new, pending.pop())
        if region.old_start == region.old_end and region.new_start == region.new_end:
            continue
        if region.old_start == region.old_end or region.new_start == region.new_end:
            yield region
            continue
        parts = _split(old, new, region)
        if parts == [region]:
            yield region
        else:
            pending.extend(reversed(parts))


def _trimmed(old: list[int], new: list[int], region: Edit) -> Edit:
    """The region without the lines that both sides share at its ends."""
    i, i_end, j, j_end = region.old_start, region.old_end, region.new_start, region.new_end
    while i < i_end and j < j_end and old[i] == new[j]:
        i += 1
        j += 1
    while i < i_end and j < j_end and old[i_end - 1] == new[j_end - 1]:
        i_end -= 1
        j_end -= 1
    return Edit(i, i_end, j, j_end)


def _split(old: list[int], new: list[int], region: Edit) -> list[Edit]:
    """Smaller regions that together are `region`, or the region alone if nothing joins its sides."""
    point = _middle_point(
        old[region.old_start : region.old_end],
        new[region.new_start : region.new_end],
    )
    if point is not None:
        corners = [(region.old_start + point[0], region.new_start + point[1])]
    else:
        corners = _common_unique_lines(old, new, region)
    ends = [(region.old_start, region.new_start), *corners, (region.old_end, region.new_end)]
    return [Edit(i, i_end, j, j_end) for (i, j), (i_end, j_end) in pairwise(ends)]


def _middle_point(a: list[int], b: list[int]) -> tuple[int, int] | None:
    """Where a shortest path meets the search from the other end; None if that is too far.

    `forward[k]` and `backward[k]` are the furthest x reached on diagonal k = x - y, counted
    from the search's own corner. Neither text is empty, and they differ at both ends.
    """
    n, m = len(a), len(b)
    delta = n - m
    odd = delta % 2 != 0
    limit = min((n + m + 1) // 2, MAX_SEARCH_DEPTH) + 1
    # Negative diagonals index from the list's end; the two halves never meet.
    forward, backward = [0] * (2 * limit + 2), [0] * (2 * limit + 2)
    for depth in range(limit):
        for k in range(depth, -depth - 1, -2):
            start = x = _furthest(forward, k, depth)
            y = x - k
            while x < n and 0 <= y < m and a[x] == b[y]:
                x += 1
                y += 1
            forward[k] = x
            if odd and abs(k - delta) < depth and x + backward[delta - k] >= n:
                return _inside(start, start - k, n, m)
        for k in range(depth, -depth - 1, -2):
            x = _furthest(backward, k, depth)
            y = x - k
            while x < n and 0 <= y < m and a[n - x - 1] == b[m - y - 1]:
                x += 1
                y += 1
            backward[k] = x
            if not odd and abs(k - delta) <= depth and x + forward[delta - k] >= n:
                return _inside(n - x, m - y, n, m)
    return None


def _furthest(reached: list[int], k: int, depth: int) -> int:
    if k == -depth or (k != depth and reached[k - 1] < reached[k + 1]):
        return reached[k + 1]
    return reached[k - 1] + 1


def _inside(x: int, y: int, n: int, m: int) -> tuple[int, int] | None:
    # A split at a corner would hand the same region back for ever.
    if 0 <= x <= n and 0 <= y <= m and (x, y) not in {(0, 0), (n, m)}:
        return x, y
    return None


def _common_unique_lines(old: list[int], new: list[int], region: Edit) -> list[tuple[int, int]]:
    """Pairs of positions of lines that occur once on each side, rising on both."""
    in_new = _unique_positions(new, region.new_start, region.new_end)
    in_old = _unique_positions(old, region.old_start, region.old_end)
    pairs = [(i, in_new[line]) for line, i in in_old.items() if line in in_new]
    # The longest rising run by patience sorting; `back` leads from each pair to its predecessor.
    tops: list[int] = []
    piles: list[int] = []
    back: list[int] = []
    for index, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        back.append(piles[pile - 1] if pile else -1)
        tops[pile : pile + 1] = [j]
        piles[pile : pile + 1] = [index]
    run: list[tuple[int, int]] = []
    index = piles[-1] if piles else -1
    while index >= 0:
        run.append(pairs[index])
        index = back[index]
    return run[::-1]


def _unique_positions(lines: list[int], start: int, end: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for position in range(start, end):
        line = lines[position]
        found[line] = -1 if line in found else position
    return {line: position for line, position in found.items() if position >= 0}


def _settled(edits: Iterator[Edit], old: list[int], new: list[int]) -> list[Edit]:
    """Joins edits that touch, and moves pure insertions and deletions down as far as they go.

    In a run of equal lines any place is right; the lowest is where people expect it
    (a function added after its neighbour, not inside of it).
    """
    joined: list[Edit] = []
    for edit in edits:
        last = joined[-1] if joined else None
        if last and last.old_end == edit.old_start and last.new_end == edit.new_start:
            edit = Edit(last.old_start, edit.old_end, last.new_start, edit.new_end)
            joined.pop()
        joined.append(edit)
    settled = [Edit(len(old), len(old), len(new), len(new))]
    for edit in reversed(joined):
        edit = _lowered(edit, settled[-1], old, new)
        # Joined with the one that it reached, it may go further down still.
        while len(settled) > 1 and edit.old_end == settled[-1].old_start:
            reached = settled.pop()
            both = Edit(edit.old_start, reached.old_end, edit.new_start, reached.new_end)
            edit = _lowered(both, settled[-1], old, new)
        settled.append(edit)
    return settled[:0:-1]


def _lowered(edit: Edit, bound: Edit, old: list[int], new: list[int]) -> Edit:
    i, i_end, j, j_end = edit.old_start, edit.old_end, edit.new_start, edit.new_end
    if i == i_end:
        while j_end < bound.new_start and new[j] == new[j_end]:
            i, i_end, j, j_end = i + 1, i_end + 1, j + 1, j_end + 1
    elif j == j_end:
        while i_end < bound.old_start and old[i] == old[i_end]:
            i, i_end, j, j_end = i + 1, i_end + 1, j + 1, j_end + 1
    return Edit(i, i_end, j, j_end)


def _grouped(edits: list[Edit], context: int) -> Iterator[list[Edit]]:
    group: list[Edit] = []
    for edit in edits:
        if group and edit.old_start - group[-1].old_end > 2 * context:
            yield group
            group = []
        group.append(edit)
    if group:
        yield group


def _render(group: list[Edit], old: list[str], new: list[str], context: int) -> Iterator[str]:
    lead = min(context, group[0].old_start)
    tail = min(context, len(old) - group[-1].old_end)
    old_start, old_end = group[0].old_start - lead, group[-1].old_end + tail
    new_start, new_end = group[0].new_start - lead, group[-1].new_end + tail
    yield f"@@ -{_range(old_start, old_end)} +{_range(new_start, new_end)} @@\n"
    position = old_start
    for edit in group:
        yield from _marked(" ", old[position : edit.old_start])
        yield from _marked("-", old[edit.old_start : edit.old_end])
        yield from _marked("+", new[edit.new_start : edit.new_end])
        position = edit.old_end
    yield from _marked(" ", old[position:old_end])


def _range(start: int, end: int) -> str:
    # An empty range names the line before it (POSIX diff, "Diff -u Output Format").
    if end == start:
        return f"{start},0"
    return f"{start + 1}" if end == start + 1 else f"{start + 1},{end - start}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line
        if not line.endswith("\n"):
            yield "\n" + NO_NEWLINE
