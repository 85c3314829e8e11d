"""A token model's layers, compiled for this processor: fp32 sums of fp16 weights, on the CPU.

Each number is made in one order, whatever else is in the batch and however a picture was cut into
spans: a product's sums are chains of fused multiply-adds, 16 columns side by side. So a token's
numbers are the same to the bit in every company, and a lone token needs no padding. A whole
pass is one call, which holds no lock of Python's.

Compiled code is kept beside this file, or in the user's cache folder, by this file's date: what it
calls stays in this file.

What a product reads lies in memory in the order it reads it: weights in panels of 64 columns
[inputs, 64], keys in blocks of 16 cells [head_dim, 16].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

LANES = 16  # cells of a block of keys, and the numbers that are computed side by side
PANEL = 64  # columns of a panel of weights
_ROWS = 6  # of a product, which read weights together
_QUERIES = 4  # of one row, which read keys and values together

Array = Any
_F = TypeVar("_F", bound=Callable[..., Any])
_f4 = np.float32
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)
_ZEROS = ir.Constant(_VECTOR, [0.0] * LANES)
_I64 = ir.IntType(64)
_UNROLL = 4
_FEATURES = get_host_cpu_features()
_HAS_PAIRS = bool(_FEATURES.get("avx512bf16"))
_VECTORS = {types.float32: _VECTOR, types.uint16: _HALVES, types.uint32: _INTEGERS}


def _compiled(*, reorders: bool = False) -> Callable[[_F], _F]:
    """Compile when first called, or read what an earlier process compiled.

    With `reorders`, sums may be taken in another order: the same one for every row of a length.
    """
    fast = {"contract", "nsz"} | ({"reassoc"} if reorders else set())

    def compile_later(function: _F) -> _F:
        made: Array
        try:
            made = njit(fastmath=fast, nogil=True, cache=True)(function)
        except RuntimeError:  # no folder that can be written: compiled again by each process
            made = njit(fastmath=fast, nogil=True)(function)
        return cast(_F, made)

    return compile_later


def _products(rows: int, vectors: int) -> Callable[..., None]:
    """Make what multiplies a few rows into some vectors' columns, and keeps the sums in registers.

    It takes (left, (l, m), right, (p, q), out, (o, s), n), arrays with the first number's place and
    the step from row to row, flat, and puts into out[o + r * s + c] the sum over i < n of
    left[l + r * m + i] * right[p + i * q + c], for r < rows and c < vectors * LANES; n is a
    multiple of 4. The right one may hold the bits of fp16 numbers (16 bits), or both of them hold
    pairs of bf16 numbers (32 bits) whose two products are summed, the second one first.
    """

    @intrinsic
    def multiply(_context, left, _left, right, _right, out, _out, _n):  # type: ignore[no-untyped-def]
        place = types.UniTuple(types.int64, 2)
        signature = types.void(left, place, right, place, out, place, types.int64)

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            left, right, out = (
                _Rows.of(context, builder, kind, array, where)
                for kind, array, where in zip(
                    signature.args[:6:2], arguments[:6:2], arguments[1:6:2], strict=True
                )
            )
            sums = [
                [cgutils.alloca_once_value(builder, _ZEROS) for _ in range(vectors)]
                for _ in range(rows)
            ]
            _accumulate(builder, sums, left, right, arguments[-1])
            for row, totals in enumerate(sums):
                for vector, total in enumerate(totals):
                    out.store(builder.load(total), ir.Constant(_I64, row), vector)
            return context.get_dummy_value()

        return signature, generate

    return cast(Callable[..., None], multiply)


@dataclass(frozen=True)
class _Rows:
    """An array in code that is being made."""

    builder: Any
    data: Any
    step: Any
    kind: Any  # vectors of what it holds

    @classmethod
    def of(cls, context: Any, builder: Any, kind: Any, array: Any, where: Any) -> "_Rows":
        data = context.make_array(kind)(context, builder, array).data
        first, step = cgutils.unpack_tuple(builder, where, 2)
        return cls(builder, builder.gep(data, [first]), step, _VECTORS[kind.dtype])

    def number(self, row: Any, column: Any) -> Any:
        """One number, or pair, in all lanes."""
        at = self.builder.add(self.builder.mul(row, self.step), column)
        value = self.builder.load(self._at(at))
        none = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
        lane = self.builder.insert_element(none, value, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(lane, none, ir.Constant(_INTEGERS, [0] * LANES))

    def vector(self, row: Any, index: int) -> Any:
        """LANES numbers, or pairs, that follow each other."""
        pointer = self.builder.bitcast(self._begin(row, index), self.kind.as_pointer())
        held = self.builder.load(pointer, align=2 if self.kind is _HALVES else 4)
        return self.builder.fpext(held, _VECTOR) if self.kind is _HALVES else held

    def store(self, vector: Any, row: Any, index: int) -> None:
        """Put them there."""
        pointer = self.builder.bitcast(self._begin(row, index), _VECTOR.as_pointer())
        self.builder.store(vector, pointer, align=4)

    def _begin(self, row: Any, index: int) -> Any:
        line = self.builder.mul(row, self.step)
        return self._at(self.builder.add(line, ir.Constant(_I64, index * LANES)))

    def _at(self, place: Any) -> Any:
        return self.builder.gep(self.data, [place])


def _accumulate(builder: Any, sums: list[list[Any]], left: _Rows, right: _Rows, n: Any) -> None:
    """Write the loop of `_products`: each of `sums` takes up one product after the other."""
    take_up = _take_up_pairs if right.kind is _INTEGERS else _take_up
    steps = ir.Constant(_I64, 0), n, ir.Constant(_I64, _UNROLL)
    with cgutils.for_range_slice(builder, *steps, intp=_I64) as (begin, _):
        for further in range(_UNROLL):
            at = builder.add(begin, ir.Constant(_I64, further))
            columns = [right.vector(at, vector) for vector in range(len(sums[0]))]
            for row, totals in enumerate(sums):
                factor = left.number(ir.Constant(_I64, row), at)
                for column, total in zip(columns, totals, strict=True):
                    builder.store(take_up(builder, builder.load(total), factor, column), total)


def _take_up(builder: Any, total: Any, factor: Any, column: Any) -> Any:
    """Return total + factor * column, rounded once."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    fused = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32")
    return builder.call(fused, [factor, column, total])


def _take_up_pairs(builder: Any, total: Any, factor: Any, column: Any) -> Any:
    """Return total + the products of both numbers of the pairs."""
    if _HAS_PAIRS:
        pairs = ir.VectorType(_BFloat(), 2 * LANES)
        kind = ir.FunctionType(_VECTOR, [_VECTOR, pairs, pairs])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        summed = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.call(summed, [total, *(builder.bitcast(x, pairs) for x in (factor, column))])
    upper = ir.Constant(_INTEGERS, [0xFFFF0000] * LANES)
    shift = ir.Constant(_INTEGERS, [16] * LANES)
    second = [builder.bitcast(builder.and_(x, upper), _VECTOR) for x in (factor, column)]
    first = [builder.bitcast(builder.shl(x, shift), _VECTOR) for x in (factor, column)]
    return _take_up(builder, _take_up(builder, total, *second), *first)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not name."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_one_by_16, _four_by_16 = _products(1, 1), _products(_QUERIES, 1)
_one_by_panel = _products(1, PANEL // LANES)
# As many columns as the registers of this processor hold sums of.
_BLOCK = PANEL if _FEATURES.get("avx512f") else LANES
_six_by_block = _products(_ROWS, _BLOCK // LANES)


class Weights(NamedTuple):
    """Those of all layers; products are panels, see `multiply`."""

    wide: int  # F
    norms: Array  # [L, 2, D], before attention and before the feed-forward
    wqkv: Array
    wo: Array
    w1: Array
    w3: Array
    w2: Array
    last: Array  # [D], the norm after the last layer
    eps: Array  # [1]


class Cells(NamedTuple):
    """What a cache holds."""

    keys: Array  # [L, rows, H, blocks, head_dim, LANES]; of one layer from the rows on
    values: Array  # [L, rows, H, cells, head_dim]


class Tokens(NamedTuple):
    """Where the tokens [N] of a pass go; those of a row follow each other."""

    rows: Array
    cells: Array
    turns: Array  # [N, head_dim / 2, 2], cosines and sines


@_compiled()
def _to_exp(x: Array, bits: Array, powers: Array, n: int) -> None:
    """Put e^x in place of x[:n]; `powers` are the floats of `bits`, for scratch.

    2^k times a polynomial on [-ln 2 / 2, ln 2 / 2]; coefficients of Cephes' expf.
    """
    for j in range(n):
        value = min(max(x[j], _f4(-87.0)), _f4(88.0))
        k = np.floor(value * _f4(1.44269504) + _f4(0.5))
        r = value - k * _f4(0.693359375) - k * _f4(-2.12194440e-4)
        p = _f4(1.9875691500e-4) * r + _f4(1.3981999507e-3)
        p = p * r + _f4(8.3334519073e-3)
        p = p * r + _f4(4.1665795894e-2)
        p = p * r + _f4(1.6666665459e-1)
        p = p * r + _f4(5.0000001201e-1)
        x[j] = p * r * r + r + _f4(1.0)
        bits[j] = (np.int32(k) + np.int32(127)) << np.int32(23)
    for j in range(n):
        x[j] *= powers[j]


@_compiled()
def multiply(x: Array, panels: Array, out: Array) -> None:
    """Put the product of x [N, I] into `out` [N, O].

    Panels hold the bits of fp16 weights [O / PANEL, rounded up, I, PANEL] in 16 bits, or in 32
    pairs of bf16 weights [.., I / 2, PANEL]; x is rounded to bf16 then.
    """
    _multiply(_as_read_with(panels, x), panels, out)


def _as_read_with(panels: Array, x: Array) -> Array:
    """Return x [N, I] as a product with `panels` reads it."""
    raise NotImplementedError  # compiled code calls what `_choose` returns


@overload(_as_read_with)
def _choose(panels, x):  # type: ignore[no-untyped-def]  # noqa: ARG001
    if panels.dtype == types.uint32:
        return lambda panels, x: _to_pairs(x)  # noqa: ARG005
    return lambda panels, x: x  # noqa: ARG005


@_compiled()
def _to_pairs(x: Array) -> Array:
    """Round x [N, I] to pairs of bf16 numbers [N, I / 2], ties to even."""
    bits = x.view(np.uint32)
    pairs = np.empty((x.shape[0], x.shape[1] // 2), np.uint32)
    half, one, sixteen = np.uint32(0x7FFF), np.uint32(1), np.uint32(16)
    for row in range(pairs.shape[0]):
        for j in range(pairs.shape[1]):
            low, high = bits[row, 2 * j], bits[row, 2 * j + 1]
            low = (low + half + ((low >> sixteen) & one)) >> sixteen
            high = (high + half + ((high >> sixteen) & one)) >> sixteen
            pairs[row, j] = low | (high << sixteen)
    return pairs


@_compiled()
def _multiply(x: Array, panels: Array, out: Array) -> None:
    (count, size), wide = x.shape, out.shape[1]
    several = count // _ROWS * _ROWS
    for panel in range(len(panels)):
        first, held = panel * PANEL, panels[panel]
        if first + PANEL > wide:
            _multiply_part(x, held, first, out)
            continue
        for at in range(0, several, _ROWS):
            for j in range(0, PANEL, _BLOCK):
                to = at * wide + first + j
                _six_by_block(x, (at * size, size), held, (j, PANEL), out, (to, wide), size)
        for at in range(several, count):
            to = at * wide + first
            _one_by_panel(x, (at * size, size), held, (0, PANEL), out, (to, wide), size)


@_compiled()
def _multiply_part(x: Array, panel: Array, first: int, out: Array) -> None:
    """Do so for the last panel, of which `out` has fewer columns."""
    (count, size), made = x.shape, np.empty((1, PANEL), np.float32)
    for row in range(count):
        _one_by_panel(x, (row * size, size), panel, (0, PANEL), made, (0, PANEL), size)
        for j in range(out.shape[1] - first):
            out[row, first + j] = made[0, j]


@_compiled(reorders=True)
def _normalise(x: Array, weight: Array, eps: Array, out: Array) -> None:
    """Put RMSNorm (arXiv:1910.07467) of rows x [N, D] into `out`."""
    count, size = x.shape
    for row in range(count):
        total = _f4(0)
        for j in range(size):
            total += x[row, j] * x[row, j]
        scale = _f4(1) / np.sqrt(total / _f4(size) + eps[0])
        for j in range(size):
            out[row, j] = x[row, j] * scale * weight[j]


@_compiled()
def _gate(x: Array, by: Array) -> None:
    """Put silu(x) * by in place of x [N, F] (SwiGLU, arXiv:2002.05202)."""
    count, size = x.shape
    powers = np.empty(size, np.float32)
    bits = np.empty(size, np.int32)
    for row in range(count):
        for j in range(size):
            powers[j] = -x[row, j]
        _to_exp(powers, bits, bits.view(np.float32), size)
        for j in range(size):
            x[row, j] = x[row, j] / (_f4(1) + powers[j]) * by[row, j]


@_compiled()
def _place(parts: Array, tokens: Tokens, cells: Cells) -> None:
    """Turn queries and keys of parts [N, 3, H, head_dim]; put keys and values into the cache."""
    heads, size = parts.shape[2], parts.shape[3]
    for at in range(len(parts)):
        row, cell = tokens.rows[at], tokens.cells[at]
        for head in range(heads):
            for part in range(2):
                turned = parts[at, part, head]
                for j in range(size // 2):
                    real, imaginary = turned[2 * j], turned[2 * j + 1]
                    cosine, sine = tokens.turns[at, j, 0], tokens.turns[at, j, 1]
                    turned[2 * j] = real * cosine - imaginary * sine
                    turned[2 * j + 1] = real * sine + imaginary * cosine
            block = cells.keys[row, head, cell // LANES]
            for j in range(size):
                block[j, cell % LANES] = parts[at, 1, head, j]
                cells.values[row, head, cell, j] = parts[at, 2, head, j]


@_compiled()
def _attend(parts: Array, tokens: Tokens, cells: Cells, lead: Array, out: Array) -> None:
    """Mix the values of the cells that each query sees, those of its row up to its own.

    Parts [N, 3, H, head_dim] hold the queries; `lead` [rows, C]; `out` is [N, D].
    """
    count, _, heads, size = parts.shape
    scores = np.empty((_QUERIES, cells.values.shape[2]), np.float32)
    queries = np.empty((_QUERIES, size), np.float32)
    scale, wide, at = _f4(1) / np.sqrt(_f4(size)), heads * size, 0
    while at < count:
        row, last = tokens.rows[at], at + _QUERIES - 1
        width = _QUERIES if last < count and tokens.rows[last] == row else 1
        read = (tokens.cells[at + width - 1] + LANES) // LANES * LANES
        for head in range(heads):
            for query in range(width):
                for j in range(size):
                    queries[query, j] = parts[at + query, 0, head, j] * scale
            _score(queries, width, cells.keys[row, head], read, scores)
            for query in range(width):
                _to_weights(scores[query], lead[row], tokens.cells[at + query] + 1, read)
            _mix(scores, width, cells.values[row, head], read, out, at * wide + head * size)
        at += width


@_compiled()
def _score(queries: Array, width: int, keys: Array, read: int, scores: Array) -> None:
    """Put the products of one or four queries with keys [blocks, size, LANES] into `scores`."""
    size, places = queries.shape[1], scores.shape[1]
    for first in range(0, read, LANES):
        begin = first * size
        if width == _QUERIES:
            _four_by_16(queries, (0, size), keys, (begin, LANES), scores, (first, places), size)
        else:
            _one_by_16(queries, (0, size), keys, (begin, LANES), scores, (first, places), size)


@_compiled()
def _to_weights(scores: Array, lead: Array, seen: int, read: int) -> None:
    """Put softmax weights in place of scores[:read], of which the first `seen` count."""
    for j in range(len(lead)):
        scores[j] += lead[j]
    for j in range(seen, read):
        scores[j] = _f4(-np.inf)
    lanes = np.full(LANES, -np.inf, np.float32)
    for first in range(0, read, LANES):
        for lane in range(LANES):
            lanes[lane] = max(lanes[lane], scores[first + lane])
    largest = lanes.max()
    for j in range(read):
        scores[j] -= largest
    bits = np.empty(read, np.int32)
    _to_exp(scores, bits, bits.view(np.float32), read)
    for j in range(seen, read):
        scores[j] = _f4(0)
    _share(scores, read)


@_compiled()
def _share(weights: Array, count: int) -> None:
    """Divide the first `count` weights by their sum, which zeros at the end do not change."""
    lanes, total = np.zeros(LANES, np.float32), _f4(0)
    for first in range(0, count, LANES):
        for lane in range(LANES):
            lanes[lane] += weights[first + lane]
    for lane in range(LANES):
        total += lanes[lane]
    for j in range(count):
        weights[j] *= _f4(1) / total


@_compiled()
def _mix(weights: Array, width: int, values: Array, read: int, out: Array, to: int) -> None:
    """Put the sums of values [cells, size] for one or four queries into `out` [N, D]."""
    size, places, wide = values.shape[1], weights.shape[1], out.shape[1]
    if width == _QUERIES:
        for j in range(0, size, LANES):
            _four_by_16(weights, (0, places), values, (j, size), out, (to + j, wide), read)
    elif size % PANEL == 0:
        for j in range(0, size, PANEL):
            _one_by_panel(weights, (0, places), values, (j, size), out, (to + j, wide), read)
    else:
        for j in range(0, size, LANES):
            _one_by_16(weights, (0, places), values, (j, size), out, (to + j, wide), read)


@_compiled()
def run(x: Array, weights: Weights, cells: Cells, lead: Array, tokens: Tokens) -> None:
    """Make hidden states out of embeddings x [N, D], in place; keys and values are kept.

    `lead` [rows, C] is the bias of the first cells of each row.
    """
    count, dim = x.shape
    heads, size, wide = cells.values.shape[2], cells.values.shape[4], weights.wide
    y, made = np.empty((count, dim), np.float32), np.empty((count, 3 * dim), np.float32)
    left, right = np.empty((count, wide), np.float32), np.empty((count, wide), np.float32)
    mixed, parts = np.empty((count, dim), np.float32), made.reshape((count, 3, heads, size))
    for layer in range(len(weights.norms)):
        own = Cells(cells.keys[layer], cells.values[layer])
        _normalise(x, weights.norms[layer, 0], weights.eps, y)
        multiply(y, weights.wqkv[layer], made)
        _place(parts, tokens, own)
        _attend(parts, tokens, own, lead, mixed)
        multiply(mixed, weights.wo[layer], y)
        _add(x, y)
        _normalise(x, weights.norms[layer, 1], weights.eps, y)
        multiply(y, weights.w1[layer], left)
        multiply(y, weights.w3[layer], right)
        _gate(left, right)
        multiply(left, weights.w2[layer], y)
        _add(x, y)
    _normalise(x, weights.last, weights.eps, x)


@_compiled()
def _add(x: Array, other: Array) -> None:
    for row in range(len(x)):
        for j in range(x.shape[1]):
            x[row, j] += other[row, j]
