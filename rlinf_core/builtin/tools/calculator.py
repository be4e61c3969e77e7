"""A calculator: expressions of numbers, worked out without running code."""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from rlinf_core.api.tool import Tool
from rlinf_core.errors import ToolError

Number = int | float
LONGEST = 200  # characters of an expression
LARGEST = 10**30  # of any number on the way
_TWO: Mapping[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ONE: Mapping[type[ast.unaryop], Callable[[Any], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "gcd": math.gcd,
    "log": math.log,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
}


class Calculator(Tool):
    """`+ - * / // % **`, brackets, and functions such as `sqrt`. Whole results are written whole."""

    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "such as (3+4)*2"}},
        "required": ["expression"],
    }
    description = f"Works out an expression of numbers with + - * / // % ** and {', '.join(_FUNCTIONS)}"
    instant = True

    def call(self, arguments: Mapping[str, Any]) -> str:
        """The value; raises `ToolError` for what is no expression, or too large."""
        text = str(arguments["expression"]).strip().replace("^", "**").replace("×", "*").replace("÷", "/")
        if len(text) > LONGEST:
            raise ToolError(f"an expression has at most {LONGEST} characters")
        try:
            with warnings.catch_warnings(action="ignore"):  # of numbers with letters behind them
                value = _value(ast.parse(text, mode="eval").body)
        except ToolError:
            raise
        except (SyntaxError, RecursionError, MemoryError):
            raise ToolError(f"{text!r} is no expression of numbers") from None
        except (ArithmeticError, ValueError, TypeError) as err:
            raise ToolError(str(err)) from err
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            value = int(value)
        return str(value) if isinstance(value, int) else f"{value:.{self.config.digits}g}"


def _value(node: ast.expr) -> Number:
    found: Number
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        found = node.value  # type: ignore[assignment]  # looked at above
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        found = _power(_value(node.left), _value(node.right))
    elif isinstance(node, ast.BinOp) and type(node.op) in _TWO:
        found = _TWO[type(node.op)](_value(node.left), _value(node.right))
    elif isinstance(node, ast.UnaryOp) and type(node.op) in _ONE:
        found = _ONE[type(node.op)](_value(node.operand))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        found = _FUNCTIONS[node.func.id](*(_value(each) for each in node.args))
    elif isinstance(node, ast.Name) and node.id in ("pi", "e"):
        found = getattr(math, node.id)
    else:
        raise ToolError(f"{ast.unparse(node)!r} is nothing to calculate with")
    if isinstance(found, complex) or abs(found) > LARGEST:
        raise ToolError("a number on the way is too large, or no real one")
    return found


def _power(base: Number, exponent: Number) -> Number:
    if base and abs(exponent) * abs(math.log2(abs(base)) or 1) > math.log2(LARGEST) + 1:
        raise ToolError("a number on the way is too large")
    found: Number = base**exponent
    return found
