"""Figures for people and for programs: a table on the terminal, JSON, and a table in a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from bench.figures import Figure, shown

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
Results = Mapping[str, Sequence[Figure]]


def show(console: Console, conditions: Mapping[str, str], results: Results) -> None:
    """The table, with the conditions above it."""
    for name, value in conditions.items():
        console.print(f"[dim]{name:>14}[/]  {value}", highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "p50", "p99", "unit", "target", ""):
        table.add_column(title, justify="right" if title in ("p50", "p99") else "left", no_wrap=True)
    for bench, figures in results.items():
        table.add_row(f"[bold]{bench}[/]")
        for figure in figures:
            table.add_row(*_cells(figure), _verdict(figure))
    console.print(table)


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    p99 = "" if figure.p99 is None else shown(figure.p99)
    target = "" if figure.target is None else str(figure.target)
    return figure.name, shown(figure.value), p99, figure.unit, target


def _verdict(figure: Figure) -> str:
    return {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[figure.met]


def write_json(file: Path, conditions: Mapping[str, str], results: Results) -> None:
    """Everything that the table says, for whoever compares two runs."""
    found = {bench: [figure.wire() for figure in figures] for bench, figures in results.items()}
    file.write_bytes(orjson.dumps({"conditions": conditions, "figures": found}, option=orjson.OPT_INDENT_2))


def write_markdown(file: Path, conditions: Mapping[str, str], results: Results) -> None:
    """Replaces what stands between the two markers of a document; raises ValueError if it has none."""
    text = file.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{file} has no place for the figures: the lines {BEGIN} and {END} are missing")
    table = "\n".join(_markdown(conditions, results))
    file.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")


def _markdown(conditions: Mapping[str, str], results: Results) -> Iterator[str]:
    yield from (f"- {name}: {value}" for name, value in conditions.items())
    for bench, figures in results.items():
        yield f"\n### {bench}\n"
        yield "| | p50 | p99 | unit | target | met |"
        yield "|---|---:|---:|---|---|---|"
        for figure in figures:
            name, *cells = _cells(figure)
            met = {None: "", True: "yes", False: "**no**"}[figure.met]
            yield f"| {_indented(name)} | {' | '.join(cells)} | {met} |"
        notes = dict.fromkeys(f"{f.name.strip()}: {f.note}" for f in figures if f.note)
        yield from ("", *(f"- {note}" for note in notes))


def _indented(name: str) -> str:
    return f"&emsp;{name.strip()}" if name.startswith(" ") else name
