"""Building blocks of the sections of run file and target file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
)
from pydantic_core import core_schema

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
CALL_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
VARIABLE_PATTERN = r"^[A-Za-z_]\w*$"

# Strict: pydantic alone would take `yes`, `on` and 1 for true as well.
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Field(ge=1)]


class Suggesting(ValueError):
    """A wrong value, and what to write instead."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        allow_inf_nan=False,
    )


class Shorthand:
    """A section that can also be written as one string: the value of its `key`."""

    def __init__(self, key: str) -> None:
        self.key = key

    def _expanded(self, value: Any) -> Any:
        return {self.key: value} if isinstance(value, str) else value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_before_validator_function(self._expanded, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: Any, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


Call = Annotated[str, Field(pattern=CALL_PATTERN, examples=["mine:build"])]


def exactly_one(section: BaseModel, names: dict[str, str]) -> None:
    given = [written for field, written in names.items() if getattr(section, field) is not None]
    if len(given) != 1:
        found = f"found {' and '.join(given)}" if given else "found none"
        raise ValueError(f"give exactly one of {', '.join(names.values())} ({found})")
