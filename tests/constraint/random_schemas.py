"""JSON schemas at random, of what llguidance knows of them."""

from __future__ import annotations

from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st


def bounded(name: str, least: int, most: int) -> st.SearchStrategy[dict[str, Any]]:
    """A schema's two bounds, either of which may be missing."""
    bounds = st.tuples(st.integers(least, most), st.integers(least, most)).map(sorted)
    return bounds.flatmap(
        lambda pair: st.sampled_from(
            [{}, {f"min{name}": pair[0], f"max{name}": pair[1]}, {f"max{name}": pair[1]}]
        )
    )


TEXT = st.text(alphabet='abé"\\ \n😀', max_size=6)
LEAVES = st.one_of(
    st.sampled_from([{"type": kind} for kind in ("null", "boolean", "integer", "number")]),
    bounded("imum", -50, 50).map(lambda bounds: {"type": "integer"} | bounds),
    bounded("imum", -5, 5).map(lambda bounds: {"type": "number"} | bounds),
    st.integers(0, 12).map(lambda most: {"type": "string", "maxLength": most}),
    st.sampled_from(["^[a-z]{2,5}$", "^\\d+-\\d+$", "x|y"]).map(
        lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 20}
    ),
    st.sampled_from(["date", "uuid", "ipv4"]).map(lambda f: {"type": "string", "format": f}),
    st.lists(TEXT | st.integers(-9, 9) | st.none(), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
    TEXT.map(lambda value: {"const": value}),
)


def nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return objects(inner) | arrays(inner) | unions(inner)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    properties = draw(st.dictionaries(TEXT, inner, max_size=4))
    names = list(properties)
    return {
        "type": "object",
        "properties": properties,
        "required": draw(st.lists(st.sampled_from(names), unique=True)) if names else [],
        "additionalProperties": False,
    }


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    bounds = draw(bounded("Items", 0, 4))
    return {"type": "array", "items": draw(inner)} | (bounds or {"maxItems": 3})


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    first, second = draw(inner), draw(inner)
    reference = {"$ref": "#/$defs/shared"}
    return draw(st.sampled_from([{"anyOf": [first, second]}, {"anyOf": [first, reference]}]))


SCHEMAS = st.recursive(LEAVES, nested, max_leaves=6).map(
    lambda schema: schema | {"$defs": {"shared": {"type": "string", "maxLength": 3}}}
)


def short_numbers(schema: Any) -> Any:  # noqa: ANN401 - JSON
    """The same schema with bounds for all numbers: small models write digits for ever."""
    if isinstance(schema, list):
        return [short_numbers(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    short = {key: short_numbers(value) for key, value in schema.items()}
    if short.get("type") in ("integer", "number"):
        most = short.setdefault("maximum", short.get("minimum", 0) + 99)
        short.setdefault("minimum", most - 199)
    if short.get("type") == "number":
        short["multipleOf"] = 0.25
    return short


def some_schemas(count: int) -> list[dict[str, Any]]:
    """Always the same ones, whose answers are short."""
    found: list[dict[str, Any]] = []

    @settings(max_examples=count, derandomize=True, database=None, phases=[Phase.generate])
    @given(SCHEMAS)
    def collect(schema: dict[str, Any]) -> None:
        found.append(short_numbers(schema))

    collect()
    return found
