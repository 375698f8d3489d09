"""Signatures of functions and classes, read from their source."""

from __future__ import annotations

import ast
from inspect import Parameter, Signature

Definition = ast.FunctionDef | ast.ClassDef


def definition_of(name: str, tree: ast.Module) -> Definition | None:
    """None unless this one definition is all that gives the name a meaning."""
    given = [
        node
        for node in ast.walk(tree)
        if getattr(node, "name", None) == name  # definitions
        or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        or (isinstance(node, ast.alias) and (node.asname or node.name) == name)
    ]
    match given:
        case [ast.FunctionDef() | ast.ClassDef() as only] if only in tree.body:
            return only if not only.decorator_list else None  # which may return another function
    return None


def signature_of(definition: Definition) -> Signature | None:
    """None if it is not known: of a class without an __init__, or with a base that may decide how
    it is called."""
    if isinstance(definition, ast.FunctionDef):
        return Signature(_parameters(definition.args))
    own = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
    if definition.keywords or "__init__" not in own or "__new__" in own:
        return None
    if own["__init__"].decorator_list:
        return None
    return Signature(_parameters(own["__init__"].args)[1:])  # without self


def yields(definition: Definition) -> bool:
    """Whether calling it returns a generator."""
    return isinstance(definition, ast.FunctionDef) and any(map(_yields, definition.body))


def _yields(node: ast.AST) -> bool:
    if isinstance(node, ast.Yield | ast.YieldFrom):
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return False  # that one's own
    return any(map(_yields, ast.iter_child_nodes(node)))


def _parameters(arguments: ast.arguments) -> list[Parameter]:
    positional = [
        *((one, Parameter.POSITIONAL_ONLY) for one in arguments.posonlyargs),
        *((one, Parameter.POSITIONAL_OR_KEYWORD) for one in arguments.args),
    ]
    num_required = len(positional) - len(arguments.defaults)
    found = [
        Parameter(one.arg, kind, default=_default(index >= num_required))
        for index, (one, kind) in enumerate(positional)
    ]
    if arguments.vararg is not None:
        found.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(
            Parameter(one.arg, Parameter.KEYWORD_ONLY, default=_default(value is not None))
        )
    if arguments.kwarg is not None:
        found.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return found


class _SomeDefault:
    """A default, whatever it is."""

    def __repr__(self) -> str:
        return "..."


def _default(has_one: bool) -> object:
    return _SomeDefault() if has_one else Parameter.empty
