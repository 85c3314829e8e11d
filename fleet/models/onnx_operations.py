"""Operations for exported graphs that keep small numbers exact.

ONNX has no expm1, and onnxruntime's own logistic function is an approximation that stops at
about 1e-8: a probability below it, and a logarithm of one, would come out wrong.
"""

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset20 as op


def sigmoid(x: Any) -> Any:
    """Write 1 / (1 + e^-x)."""
    return op.Reciprocal(op.Add(_constant(1.0), op.Exp(op.Neg(x))))


def log_sigmoid(x: Any) -> Any:
    """Write min(x, 0) - log(1 + e^-|x|)."""
    rest = op.Log(op.Add(_constant(1.0), op.Exp(op.Neg(op.Abs(x)))))
    return op.Sub(op.Min(x, _constant(0.0)), rest)


def expm1(x: Any) -> Any:
    """Write e^x - 1 as 2t / (1 - t) with t = tanh(x / 2)."""
    t = op.Tanh(op.Mul(x, _constant(0.5)))
    return op.Div(op.Add(t, t), op.Sub(_constant(1.0), t))


EXACT_OPERATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.sigmoid.default: sigmoid,
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.expm1.default: expm1,
}


def _constant(value: float) -> Any:
    return op.Constant(value_float=value)
