"""The page of the comparison with peers, of what was found (`proof.peers`). Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from bench.figures import shown

NOISY = 0.15
"""A bare loop whose rounds differ by more says that the machine was not the same in all of them."""
BARE = "bare loop"
ROUNDS = {
    "turn_ms": "turn p50, ms",
    "turn_p99_ms": "p99, ms",
    "turn_cpu_ms": "CPU a turn, ms",
    "crowd_s": "at once, s",
    "crowd_cpu_ms": "CPU each, ms",
    "pss_mib": "Pss, MiB",
    "kept_kib": "kept each, KiB",
    "idle_kib": "idle each, KiB",
}
LONG = {
    "items": "items read",
    "read_ms": "read, ms",
    "first_ms": "first turn, ms",
    "next_ms": "next turn, ms",
    "kept_mib": "kept, MiB",
}
JOBS = {
    "start_ms": "start p50, ms",
    "start_p99_ms": "p99, ms",
    "jobs_s": "jobs/s",
    "job_cpu_ms": "CPU each, ms",
}
NEVER_HERE = {
    "langgraph, Redis saver": "it needs Redis's JSON and search modules, which Debian's server has not",
    "pydantic-ai": "a library like the first two, without a store of its own",
    "prefect": "no runtime of agents: its tasks are run again as a whole",
    "openhands-sdk": "it needs Python 3.12, and Dendro is served from 3.11 on",
    "inngest": "not tried",
    "temporalio, hatchet-sdk": "their servers are in no package; test servers are downloaded at run time",
}
"""Peers that no run tries, each with the reason."""


LEFT_OUT = "left out: the time of the run was over"
ROUNDED = {"turns": "rounds", "jobs": "jobs"}
"""Parts that are measured in rounds, and where a run's findings have these."""


def page(found: Mapping[str, Any]) -> str:
    """The whole page, as Markdown."""
    parts = (_head, _work, _kill, _long, _jobs, _absent)
    return "\n".join([*(line for part in parts for line in part(found)), ""])


def noise(found: Mapping[str, Any]) -> float | None:
    """The share by which the bare loop's rounds differ; None if fewer than two were run."""
    took = [one["turn_ms"] for one in found["rounds"].get(BARE, ())]
    return max(took) / min(took) - 1 if len(took) > 1 else None


def cell(values: Sequence[float]) -> str:
    """The median, and the least and the most where there are several."""
    if not values:
        return "–"
    middle = shown(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({shown(min(values))}–{shown(max(values))})"


def verdict(kill: Mapping[str, Any]) -> str:
    """What became of the call: `lost`, `repeated` or `in doubt`."""
    if kill["begun"] > 1:
        return "**repeated**"
    return "lost" if kill["who"] == "nobody" else "in doubt, once"


def _prose(text: str) -> list[str]:
    """A paragraph, and an empty line behind it."""
    return [*wrap(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False), ""]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose first column has the names; an empty line behind it."""
    lines = [f"| | {' | '.join(columns)} |", "|---" + "|---:" * len(columns) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _head(found: Mapping[str, Any]) -> Iterator[str]:
    size, differs = found["size"], noise(found)
    yield from ("# Dendro beside its peers", "")
    yield from _prose(
        """
        Written by `make peers`, which installs each peer at a pinned version into an environment of
        its own, and gives all of them the same work, in turns, with one model stub. The figures
        depend on the machine: use their ratios. The part of each is an adapter of at most 60 lines
        below `peers`.
        """
    )
    yield from (f"- {name}: {value}" for name, value in found["conditions"].items())
    rounds = max((len(one) for one in found["rounds"].values()), default=0)
    of = "" if rounds == size["rounds"] else f" of {size['rounds']} (then the time of the run was over)"
    yield f"- rounds: {rounds}{of}, with {size['turns']} turns and {size['crowd']} at once in each"
    yield f"- took {found['took_s']:.0f} s in all, with what had to be installed"
    if differs is None:
        yield "- **one round alone**: nothing says how much the machine itself differed"
    elif differs > NOISY:
        yield f"- **noisy machine**: the bare loop's rounds differ by {differs:.0%}; none is exact to less"
    else:
        yield f"- the bare loop's rounds differ by {differs:.0%}"
    yield ""


def _work(found: Mapping[str, Any]) -> Iterator[str]:
    size = found["size"]
    yield from ("## Turns", "")
    yield from _prose(
        f"""
        A turn of a new conversation: the model is asked, `sh -c "echo x"` runs, three times, and the
        model answers. *turn*: wall time beyond the stub's own. *at once*: {size["crowd"]} of them
        begun together. *CPU*: of all processes: the peer's, its adapter's, its servers', the
        commands, and Dendro's client; the stub apart. *Pss*: memory of the same, behind the crowd.
        *kept*: bytes on the disk for one such conversation; what a server sets aside beforehand
        counts. *idle*: memory for one of {size["idle"]:,} conversations that rest behind a turn
        without a command. Medians of rounds, with the least and the most.
        """
    )
    rows = [
        [name, *(cell([one[key] for one in rounds if key in one]) for key in ROUNDS)]
        for name, rounds in found["rounds"].items()
    ]
    yield from _table(list(ROUNDS.values()), rows)


def _kill(found: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## SIGKILL in a command", "")
    yield from _prose(
        """
        The second of three commands sleeps, and the process that runs commands gets a SIGKILL: a
        worker or service where there is one, else the peer itself. *goes on*: by itself; once a
        process is started again in its place; once it is asked to, by the peer's own means; or
        nobody. *after*: seconds from the kill, the restart or the question until the model is asked,
        or the command begins again. *beside it*: the first run of the command was still there then.
        """
    )
    rows, told = [], []
    for name, once in found["once"].items():
        if kill := once.get("kill"):
            after = "–" if kill["after_s"] is None else shown(kill["after_s"])
            beside = "yes" if kill["living"] > kill["begun"] - 1 else "no"
            rows.append([name, kill["who"], after, verdict(kill), str(kill["begun"]), beside])
            told += [f"- {name}: the model is told `{' '.join(text.split())[:160]}`" for text in kill["told"]]
    yield from _table(["goes on", "after, s", "the call", "begun", "beside it"], rows)
    yield from (*told, "")


def _long(found: Mapping[str, Any]) -> Iterator[str]:
    size = found["size"]
    yield from ("## A long conversation", "")
    yield from _prose(
        f"""
        {size["fills"]} turns with {size["calls"]} commands each, all of one response; then everything
        is ended and started anew. *read*: new processes read the conversation. *first turn*, *next
        turn*: without a command, beyond the stub. *kept*: bytes on the disk for all of it. A peer
        that writes its whole state with each step keeps more of smaller steps.
        """
    )
    longs = [(name, once["long"]) for name, once in found["once"].items() if "long" in once]
    rows = [[name, *(shown(long[key]) if long["items"] else "–" for key in LONG)] for name, long in longs]
    yield from _table(list(LONG.values()), rows)


def _jobs(found: Mapping[str, Any]) -> Iterator[str]:
    size = found["size"]
    yield from ("## Dispatch alone", "")
    yield from _prose(
        f"""
        Queues of jobs on the same Redis (AOF everysec, a unix socket), each with one worker. *start*:
        from the call that enqueues to the job's begin, one by one; of Dendro, until a worker has the
        session. *jobs/s*: {size["jobs"]:,} enqueued one after the other, until the last has begun.
        *again*: seconds from the SIGKILL of the worker in a job, with another one there at once, to
        the job's second begin, by what the peer comes with and by the shortest times that it
        documents; never: not within {size["patience_s"]:g} s. Of Dendro that is the takeover above.
        """
    )
    rows = []
    for name, rounds in found["jobs"].items():
        cells = [cell([one[key] for one in rounds if key in one]) for key in JOBS]
        again = found["again"].get(name, {})
        later = ["–" if kind not in again else _seconds(again[kind]) for kind in ("default", "shortest")]
        rows.append([name, *cells, *later])
    yield from _table([*JOBS.values(), "again, s", "shortest, s"], rows)


def _seconds(took: float | None) -> str:
    return "never" if took is None else shown(took)


def _absent(found: Mapping[str, Any]) -> Iterator[str]:
    """Of what is measured in rounds, a round that was left out behind others is no absence."""
    there = {f"{name}, {what}" for what, key in ROUNDED.items() for name, some in found[key].items() if some}
    yield from ("## Not here", "")
    for what, why in {**found["absent"], **NEVER_HERE}.items():
        if why != LEFT_OUT or what not in there:
            yield f"- {what}: {why}"
