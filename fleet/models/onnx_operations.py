"""Operations that exported graphs write in our own way.

ONNX has no expm1, and onnxruntime's own logistic function is an approximation that stops at
about 1e-8: a probability below it, and a logarithm of one, would come out wrong.
"""

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset20 as op
from torch import Tensor


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


@torch.library.custom_op("ciar_fleet::kth_largest", mutates_args=())
def kth_largest(values: Tensor, k: Tensor) -> Tensor:
    """Return the k-th largest of values [1, V] as [1, 1]; k is i64 [1], at least 1.

    An operation of its own since torch's graphs cannot take k from a tensor; a full sort would
    take a fifth of the device's step.
    """
    return values.topk(int(k)).values[:, -1:].clone()


@kth_largest.register_fake
def _(values: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001 - the operation's signature
    return values.new_empty(1, 1)


def _top_k(values: Any, k: Any) -> Any:
    largest, _ = op.TopK(values, k, axis=-1, largest=1, sorted=0)
    return op.ReduceMin(largest, _axes(), keepdims=1)


OPERATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.sigmoid.default: sigmoid,
    torch.ops.aten.log_sigmoid.default: log_sigmoid,
    torch.ops.aten.expm1.default: expm1,
    torch.ops.ciar_fleet.kth_largest.default: _top_k,
}


def _axes() -> Any:
    return op.Constant(value_ints=[-1])


def _constant(value: float) -> Any:
    return op.Constant(value_float=value)
