"""The OpenAPI description of the JSON routes."""

from typing import Any

from gemrl.decide.knobs import MAX_CANDIDATES, MAX_WEIGHT, WORDS
from gemrl.deploy.serve.requests import LOOKING_BACK

Schema = dict[str, Any]

NUMBER: Schema = {"type": "number"}
MAYBE_NUMBER: Schema = {"type": ["number", "null"]}
TRUTH: Schema = {"type": "boolean"}


def description(metadata: dict[str, Any]) -> Schema:
    """What can be asked of a server with this metadata, in OpenAPI 3.1."""
    limits = metadata["limits"]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gemrl policy server",
            "version": metadata["version"],
            "description": (
                "Actions of a trained policy with the audits of each decision. Where the server "
                "has a token, every path wants it as Authorization: Bearer TOKEN. The root path "
                "speaks the OpenPI wire over WebSocket."
            ),
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {
                            "type": "object",
                            "required": ["type", "message"],
                            "properties": {
                                "type": {"type": "string"},
                                "message": {"type": "string"},
                            },
                        }
                    },
                },
                "Knobs": _knobs(limits),
                "Request": _request(metadata, limits),
                "Answer": _answer(metadata),
            },
        },
        "security": [{}, {"token": []}],
        "paths": {
            "/v1/act": {
                "post": {
                    "operationId": "act",
                    "summary": "Decide at an observation or at each of a batch",
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": _ref("Request")}},
                    },
                    "responses": _responses(
                        _ref("Answer"), "The decision", (400, 408, 413, 415, 422)
                    ),
                }
            },
            "/v1/metadata": _get(
                "metadata", "What a client can know before it asks", {"type": "object"}
            ),
            "/v1/state": _get(
                "state",
                "A state of the dataset that the server was started with",
                {"type": "object"},
                {"row": "Its row; without it a random one"},
                (400, 404),
            ),
            "/v1/recent": _get(
                "recent",
                "The decisions since one, for the page",
                {"type": "object"},
                {"after": "The number of the last decision that is known"},
                (400,),
            ),
            "/healthz": _get("healthz", "The process lives", None),
            "/readyz": _get("readyz", "It decides without compiling", None),
            "/metrics": _get("metrics", "Counts in Prometheus' format", None),
        },
    }


def _request(metadata: dict[str, Any], limits: dict[str, Any]) -> Schema:
    size = metadata["observation_size"]
    state = {"type": "array", "items": NUMBER, "minItems": size, "maxItems": size}
    batch = {"type": "array", "items": state, "minItems": 1, "maxItems": limits["rows"]}
    profiles = sorted(metadata["profiles"])
    return {
        "type": "object",
        "required": ["observation"],
        "additionalProperties": False,
        "properties": {
            "observation": {"oneOf": [state, batch]},
            "knobs": _or_null(_ref("Knobs")),
            "profile": {"enum": [None, *profiles]},
            "seed": _or_null(_whole_or_rows(2**32, limits["rows"])),
            "t": _or_null(_whole_or_rows(2**31, limits["rows"])),
            "episode": _or_null({"type": "string", "minLength": 1, "maxLength": 128}),
            "deadline_ms": _or_null(
                {"type": "number", "exclusiveMinimum": 0, "maximum": limits["deadline_ms"]}
            ),
            "detail": TRUTH,
            **({} if metadata["history"] is None else dict.fromkeys(LOOKING_BACK, MAYBE_NUMBER)),
        },
    }


def _knobs(limits: dict[str, Any]) -> Schema:
    weight = {"type": "number", "minimum": 0, "maximum": MAX_WEIGHT}
    schedule = {
        "type": "object",
        "required": ["end", "horizon"],
        "additionalProperties": False,
        "properties": {
            "end": weight,
            "start": weight,
            "horizon": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1},
        },
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "n": {"type": "integer", "minimum": 0, "maximum": limits["candidates"]},
            "lam": weight,
            "wp": {"oneOf": [weight, schedule]},
            "k_smooth": {"type": "integer", "minimum": 1, "maximum": MAX_CANDIDATES},
            **{name: {"type": "string", "enum": list(words)} for name, words in WORDS.items()},
            "temperature": weight,
        },
    }


def _answer(metadata: dict[str, Any]) -> Schema:
    size = metadata["action_size"]
    action = {"type": "array", "items": NUMBER, "minItems": size, "maxItems": size}
    audit = {
        "type": "object",
        "required": ["log_support", "support_z", "violation", "collapse_dist"],
        "properties": {
            "log_support": MAYBE_NUMBER,
            "support_z": MAYBE_NUMBER,
            "violation": TRUTH,
            "collapse_dist": MAYBE_NUMBER,
        },
    }
    both = {
        "type": "object",
        "required": ["chosen", "executed"],
        "properties": {"chosen": audit, "executed": audit},
    }
    rows = {
        "action": action,
        "anchor": {"anyOf": [action, {"type": "null"}]},
        "n_scored": {"type": "integer", "minimum": 1},
        "block": {"type": "integer", "minimum": 1},
        "chosen": {"type": "integer", "minimum": 0},
        "score": MAYBE_NUMBER,
        "lcb": MAYBE_NUMBER,
        "wp": NUMBER,
        "audit": both,
        "gates": {"type": ["object", "null"]},
        "rung": {"type": "string"},
    }
    whole = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}
    return {
        "type": "object",
        "required": [
            *rows,
            "knobs",
            "seed",
            "t",
            "episode",
            "fallback",
            "digest",
            "backend",
            "timings",
        ],
        "properties": {
            **{name: _one_or_rows(schema) for name, schema in rows.items()},
            "knobs": {"type": "object"},
            "seed": whole,
            "t": {"anyOf": [*whole["anyOf"], {"type": "null"}]},
            "episode": {"type": ["string", "null"]},
            "fallback": {"type": ["string", "null"]},
            "digest": {"type": "string"},
            "backend": {"type": "string"},
            "timings": {
                "type": "object",
                "additionalProperties": NUMBER,
                "required": ["queue_ms", "decide_ms", "total_ms"],
            },
            "detail": {"type": "object"},
        },
    }


def _or_null(schema: Schema) -> Schema:
    """Null is as good as leaving the field out."""
    return {"anyOf": [schema, {"type": "null"}]}


def _one_or_rows(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


def _whole_or_rows(limit: int, rows: int) -> Schema:
    one = {"type": "integer", "minimum": 0, "maximum": limit - 1}
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": rows}]}


def _get(
    name: str,
    summary: str,
    schema: Schema | None,
    query: dict[str, str] | None = None,
    errors: tuple[int, ...] = (),
) -> Schema:
    parameters = [
        {
            "name": parameter,
            "in": "query",
            "required": False,
            "description": text,
            "schema": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1},
        }
        for parameter, text in (query or {}).items()
    ]
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            **({"parameters": parameters} if parameters else {}),
            "responses": _responses(schema, summary, errors),
        }
    }


def _responses(schema: Schema | None, text: str, errors: tuple[int, ...]) -> Schema:
    said = {
        400: "Something is wrong with the request",
        404: "There is none",
        408: "The request came too slowly",
        413: "The request is too large",
        415: "The request is of another kind",
        422: "The gates refuse this state",
        503: "It cannot be answered in time; see Retry-After",
    }
    content = (
        {"text/plain": {"schema": {"type": "string"}}}
        if schema is None
        else {"application/json": {"schema": schema}}
    )
    wrong = {"application/json": {"schema": _ref("Error")}}
    return {
        "200": {"description": text, "content": content},
        "401": {"description": "The token is missing or wrong", "content": wrong},
        "403": {"description": "Another host was named, or another site asks", "content": wrong},
        **{str(code): {"description": said[code], "content": wrong} for code in (*errors, 503)},
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
