"""The form in which a model is offered a tool, as the Responses API takes it."""

from __future__ import annotations

from orchestrator.protocol.wire import JsonObject


def function(name: str, description: str, properties: JsonObject, required: list[str]) -> JsonObject:
    """A function tool as Codex declares it: not strict, no further properties."""
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
    }


def function_of_schema(name: str, description: str, schema: JsonObject) -> JsonObject:
    """A function tool with a whole schema for its arguments, which are an object whatever it leaves out."""
    parameters = {"type": "object", **schema}
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": False,
        "parameters": parameters,
    }


def string(description: str) -> JsonObject:
    """The schema of a text."""
    return {"type": "string", "description": description}


def integer(description: str) -> JsonObject:
    """The schema of a whole number."""
    return {"type": "integer", "description": description}
