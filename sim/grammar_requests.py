"""Ends of model requests, held against the words of their provider: which are sent again, and when.

Written from `docs/trees.md`, `docs/providers.md` and `docs/protocol/sources.md`. A provider that asks for a
long wait is waited for, twice; a stream that broke is repeated, four times, each time after twice the time;
what cannot succeed fails, and a conversation that is too long is compacted first. What a failed request has
used, and whether it was served, is what its server said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.core.entries import Entry
from orchestrator.model.provider_errors import (
    FatalModelError,
    ModelError,
    RateLimited,
    RetryableModelError,
)
from sim.grammar_state import Reading
from sim.grammar_terms import HTTP_RETRIES, STREAM_RETRIES, check

LOST = "the worker was lost while the response streamed"
OWN = (LOST, "the worker is shutting down")
"""Reasons of a worker's own to send a request again."""
TOO_LONG = "context_window_exceeded"
BACKOFF_MS = 200
"""The wait before a stream is repeated for the first time."""


class RequestGrammar(Reading):
    """How requests end that were not answered."""

    def ends_as_told(self, fact: Mapping[str, Any], epoch: int) -> None:
        """Takes the end of a request, before its task knows of it."""
        if fact["outcome"] == "completed":
            return
        task = self._task
        errors = self.errors.get(fact["n"], ())
        # Of a request that two branches had, or that a lost worker heard of, nobody knows what was told.
        certain = len(errors) == 1 and self.heard_by.get(fact["n"]) == self.claim
        match fact["outcome"]:
            case "retry":
                wrong = self._unlike_retry(fact, task, errors)
            case "waiting":
                wrong = _unlike_wait(fact, task, errors, certain)
            case "failed":
                wrong = self._unlike_failure(fact, task, errors, epoch)
            case _:
                wrong = _unlike_stop(fact, errors, certain)
        check(not wrong, f"request {fact['n']} ended as {dict(fact)}: {wrong}")

    def _unlike_retry(
        self, fact: Mapping[str, Any], task: Mapping[str, Any], errors: Sequence[ModelError]
    ) -> str:
        entry = (self._before_last if fact["wait"] else self._last) or Entry("", {})
        shown = self.was(entry.payload)
        told = str(shown.get("message", "")).removeprefix("stream error: ")
        words, _, rest = told.rpartition("; retrying ")
        delay_ms = int(rest.rpartition(" in ")[2].removesuffix("ms…") or -1)
        if words in OWN:
            return (
                "" if (delay_ms, fact.get("usage"), fact["http_used"]) == (0, None, task["http"]) else words
            )
        said = [one for one in errors if one.message == words]
        if not said:
            return f"its provider said {errors}, and told is {words!r}"
        # A lost worker heard the same words, perhaps, with another time to wait for.
        wrongs = [self._unlike_told(fact, task, one, shown, delay_ms) for one in said]
        return min(wrongs, key=bool)

    def _unlike_told(
        self,
        fact: Mapping[str, Any],
        task: Mapping[str, Any],
        error: ModelError,
        shown: Mapping[str, Any],
        delay_ms: int,
    ) -> str:
        if isinstance(error, FatalModelError):
            return f"{error!r} is no reason to try again"
        if isinstance(error, RateLimited) and task["http"] < HTTP_RETRIES:
            return f"{error!r} is waited out"
        if shown.get("codex_error_info") != getattr(error, "codex_error_info", None):
            return f"{error!r} is told as {dict(shown)}"
        asked_s = error.retry_after_s if isinstance(error, RateLimited) else _delay_s(error)
        doubled_ms = BACKOFF_MS * 2 ** task["retries"]
        if asked_s is None and not 0.9 * doubled_ms - 1 <= delay_ms <= 1.1 * doubled_ms:
            return f"its {task['retries'] + 1}. repetition waits for {delay_ms} ms"
        if asked_s is not None and delay_ms != int(asked_s * 1_000):
            return f"the provider asked for {asked_s} s, and {delay_ms} ms are waited for"
        return _unlike_use(fact, error)

    def _unlike_failure(
        self, fact: Mapping[str, Any], task: dict[str, Any], errors: Sequence[ModelError], epoch: int
    ) -> str:
        spent = task["retries"] >= STREAM_RETRIES
        if task["epoch"] != epoch:
            # What its worker was told is lost with it, or on a branch that Redis has lost.
            task["failures"] = [(LOST, None)]
            known = fact.get("usage") or fact.get("overflow") or not spent
            return f"its worker was lost after {task['retries']} repetitions" if known else ""
        found = [one for one in errors if not _unlike_use(fact, one)]
        if fact.get("overflow"):
            return "" if any(_is_too_long(one) for one in found) else f"its provider said {errors}"
        task["failures"] = [(one.message, getattr(one, "codex_error_info", None)) for one in found]
        if not errors:
            return f"its provider said nothing, and told is {dict(fact)}"
        fatal = [one for one in found if isinstance(one, FatalModelError)]
        left = [one for one in fatal if not _is_too_long(one) or not self._may_be_cut_down(task)]
        return "" if left or (found and spent and not fatal) else f"its provider said {errors}"

    def _may_be_cut_down(self, task: Mapping[str, Any]) -> bool:
        """Whether a conversation that is too long is compacted, before its task fails."""
        if task["request"] == "compact" or task["purpose"] == "compact":
            return bool(task["rescue"] < 3)
        return not task["rescued"] and self.something_was_said()

    def something_was_said(self) -> bool:
        """Whether the conversation has more than what a compaction makes anew."""
        raise NotImplementedError

    def _event_error(self, message: Mapping[str, Any], entry: Entry) -> None:
        if self.task is None or entry.id != self.task["id"] or not (told := self.task.get("failures")):
            return
        # The errors of providers quote what they were asked.
        said = self.was(message)
        shown = said["message"], said["codex_error_info"]
        check(shown in told, f"a task that failed for {told} is told to have failed for {shown}")


def _unlike_wait(
    fact: Mapping[str, Any], task: Mapping[str, Any], errors: Sequence[ModelError], certain: bool
) -> str:
    """A request that is put off: by its provider, or because the fleet's own limit is used up."""
    asked = [one for one in errors if isinstance(one, RateLimited)]
    if fact["http_used"] == task["http"] and not (certain and asked):
        return "" if fact.get("usage") is None else "it was not sent, and has used something"
    if not asked or fact["http_used"] != task["http"] + 1 or fact["http_used"] > HTTP_RETRIES:
        return f"its provider said {errors} after {task['http']} such answers"
    return "" if any(fact.get("usage") == one.usage for one in asked) else "it used something else"


def _unlike_stop(fact: Mapping[str, Any], errors: Sequence[ModelError], certain: bool) -> str:
    """A request whose task was stopped: its error came before, or never."""
    if certain and errors[0].usage is not None and fact.get("usage") is None:
        return f"its server said that it used {errors[0].usage}"
    fits = fact.get("usage") is None or any(fact["usage"] == one.usage for one in errors)
    return "" if fits else f"its provider said {errors}"


def _unlike_use(fact: Mapping[str, Any], error: ModelError) -> str:
    found = fact.get("usage"), fact.get("served", True)
    return "" if found == (error.usage, error.served) else f"its server said {error.usage}, {error.served}"


def _delay_s(error: ModelError) -> float | None:
    return error.delay_s if isinstance(error, RetryableModelError) else None


def _is_too_long(error: ModelError) -> bool:
    return isinstance(error, FatalModelError) and error.codex_error_info == TOO_LONG
