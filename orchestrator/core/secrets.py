"""Texts of people that stand beside the log, under a name, for as long as a task needs them.

A client cannot know which question is secret, so it sets all texts of an answer to `request_user_input` apart
from its submission. The rule that settles the questions writes those of plain questions into the log; of a
secret one the log has `NOT_KEPT`, and the task the name under which a request to the model finds the text.
Nothing finds it any more when the task is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

import orjson

from orchestrator.config_keys import without_secrets
from orchestrator.core.frozen import record
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.wire import JsonMapping, JsonObject

NOT_KEPT: Final = "[a secret answer, not kept]"
"""The text that the log has in the place of a secret one."""
SET_APART: Final = "answer"
"""The kind of a submission whose texts stand beside it."""
REFERENCE: Final = "$secret"
PROOF_BYTES: Final = 16
MOST_SECRET_BYTES: Final = 1 << 20
"""The texts of one answer as JSON, where a byte of text may take six."""


@record
class SecretAnswer:
    """An answer of the running task with a secret text: whose output it is, and its name beside the log."""

    call_id: CallId
    name: str


def secret_name(client: str, submission: str) -> str:
    """The name under which the texts of a submission stand: who knows neither id cannot name them."""
    digest = blake2b(digest_size=16)
    for part in (client, submission):
        text = part.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()


def set_apart(payload: bytes, key: bytes) -> tuple[bytes, bytes]:
    """A submission of an answer without its texts, and the texts.

    Two answers under one id are told apart by a proof that says nothing without `key`, the client's own. A
    version that knows no texts apart finds no answer in what is left, and says so.
    """
    frame: JsonObject = orjson.loads(payload)
    texts = orjson.dumps(frame["op"]["response"])
    proof = blake2b(texts, key=key, digest_size=PROOF_BYTES).hexdigest()
    frame["op"]["response"] = {REFERENCE: proof}
    return orjson.dumps(frame), texts


def put_back(payload: bytes, texts: bytes) -> bytes:
    """The submission as its client wrote it."""
    frame: JsonObject = orjson.loads(payload)
    frame["op"]["response"] = orjson.loads(texts)
    return orjson.dumps(frame)


def with_secrets(items: Iterable[JsonMapping], told: Iterable[tuple[str, JsonMapping]]) -> list[JsonMapping]:
    """A conversation as the model reads it, with the texts of secret answers by the ids of their calls.

    A call's last output is the one that was answered; a text that is gone stays `NOT_KEPT`.
    """
    shown, left = list(items), dict(told)
    for place in reversed(range(len(shown))):
        item = shown[place]
        call_id = item.get("call_id")
        if item.get("type") == "function_call_output" and call_id in left:
            shown[place] = {**item, "output": _filled(item["output"], left.pop(call_id))}
    return shown


def _filled(output: object, response: JsonMapping) -> object:
    if not isinstance(output, str) or NOT_KEPT not in output:
        return output
    try:
        told = orjson.loads(output)["answers"]
        given = response["answers"]
        for id, answer in told.items():
            if answer["answers"] == [NOT_KEPT] and id in given:
                told[id] = {"answers": given[id]["answers"]}
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        # Another call of the same id has ended since, and this is its output.
        return output
    return orjson.dumps({"answers": told}).decode()


def hidden(text: str, told: Iterable[tuple[str, JsonMapping]]) -> str:
    """A text of a provider, which may quote its request, without the texts of secret answers."""
    given = [secret for _, response in told for answer in _answers(response) for secret in answer]
    return without_secrets(text, given, NOT_KEPT)


def _answers(response: JsonMapping) -> Iterable[list[str]]:
    given = response.get("answers")
    return [one["answers"] for one in given.values()] if isinstance(given, Mapping) else []
