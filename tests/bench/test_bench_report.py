"""The benches about themselves: targets are judged right, and a document gets only its table rewritten."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.accounts import cpu_of, resident_mib
from bench.figures import Figure, at_least, at_most, spread
from bench.report import BEGIN, END, write_markdown


def test_figure_misses_its_target_by_its_median_or_by_its_tail() -> None:
    assert Figure("f", 2.0, "ms", at_most(2)).met
    assert not Figure("f", 2.1, "ms", at_most(2)).met
    assert not Figure("f", 1.0, "ms", at_most(2, p99=20), p99=21.0).met
    assert Figure("f", 150.0, "turns/s", at_least(150)).met
    assert not Figure("f", 149.0, "turns/s", at_least(150)).met
    assert Figure("f", 1.0, "ms").met is None


def test_spread_tells_median_and_tail_in_milliseconds() -> None:
    figure = spread("f", [0.001] * 99 + [0.5])
    assert figure.value == pytest.approx(1.0)
    assert figure.p99 is not None
    assert figure.p99 > 100


def test_document_keeps_everything_but_its_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_markdown(page, {"CPU": "fast"}, {"broker": [Figure("commit", 0.3, "ms", at_most(0.5))]})
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count("| commit | 0.30 |  | ms | ≤ 0.50 | yes |") == 1


def test_document_without_a_place_for_the_table_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="no place"):
        write_markdown(page, {}, {})
    assert page.read_text() == "nothing\n"


def test_account_of_a_process_includes_its_living_and_its_reaped_children() -> None:
    spin = "import time; e=time.process_time()+0.15\nwhile time.process_time()<e: pass"
    run = f"subprocess.run([sys.executable, '-c', {spin!r}])"
    script = f"import subprocess, sys; {run}; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        cost = cpu_of(process.pid)
        assert cost.below_s >= 0.14
        assert 0 < resident_mib(process.pid) < 200
        process.communicate()
    began = time.process_time()
    assert cpu_of(os.getpid()).own_s == pytest.approx(began, abs=0.1)
