"""A graph's matrices in int8 with a scale a block; activations and results stay float32.

Large weights are read from memory once a token, which is what a step costs: a quarter of the bytes
is nearly a quarter of the time. A scale for every 64 numbers of a row keeps what one scale for a
whole matrix loses.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 64
# Smaller matrices stay as they are: they cost nothing.
_LEAST = 4096
_FLOOR = 1e-12


def in_int8(graph: bytes) -> bytes:
    """Return a graph whose constant matrices and looked-up tables are int8.

    Matrix products become onnxruntime's MatMulNBits, which multiplies int8 by activations that it
    rounds to int8 block by block; rows of a table are restored after the lookup.
    """
    import onnx
    from onnx import helper

    model = onnx.load_from_string(graph)
    tables = {each.name: each for each in model.graph.initializer}
    rewriting = _Rewriting(tables, [], [])
    for node in model.graph.node:
        rewriting.add(node)
    used = {name for node in rewriting.nodes for name in node.input}
    used |= {each.name for each in model.graph.output}
    kept = [each for each in model.graph.initializer if each.name in used]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(kept + rewriting.weights)
    model.graph.node.extend(rewriting.nodes)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    content: bytes = model.SerializeToString()
    return content


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """The new graph as it grows."""

    tables: dict[str, Any]
    weights: list[Any]
    nodes: list[Any]

    def add(self, node: Any) -> None:
        """Takes a node over, or what stands for it in int8."""
        if node.op_type in ("MatMul", "Gemm") and self._is_large(node.input[1]):
            self._add_product(node)
        elif node.op_type == "Gather" and self._is_large(node.input[0]):
            self._add_lookup(node)
        else:
            self.nodes.append(node)

    def _is_large(self, name: str) -> bool:
        import onnx

        table = self.tables.get(name)
        if table is None or table.data_type != onnx.TensorProto.FLOAT or len(table.dims) != 2:
            return False
        return int(np.prod(table.dims)) >= _LEAST

    def _add_product(self, node: Any) -> None:
        from onnx import helper

        given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        weight = self._array(node.input[1])
        weight = weight if given.get("transB") else weight.T  # [outputs, inputs]
        codes, scales = _blocks(weight)
        names = [f"{node.input[1]}.int8", f"{node.input[1]}.scale"]
        self._keep(names[0], codes + 128)  # its zero is 128
        self._keep(names[1], scales.ravel())
        biased = list(node.input[2:3])
        made = f"{node.output[0]}.product" if biased else node.output[0]
        sizes = {"K": weight.shape[1], "N": weight.shape[0], "block_size": BLOCK, "bits": 8}
        self.nodes.append(
            helper.make_node(
                "MatMulNBits",
                [node.input[0], *names],
                [made],
                domain="com.microsoft",
                accuracy_level=4,  # activations in int8
                **sizes,
            )
        )
        if biased:
            self.nodes.append(helper.make_node("Add", [made, *biased], list(node.output)))

    def _add_lookup(self, node: Any) -> None:
        import onnx
        from onnx import helper

        table, made = self._array(node.input[0]), node.output[0]
        scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), _FLOOR) / 127
        names = [f"{node.input[0]}.int8", f"{node.input[0]}.scale"]
        self._keep(names[0], np.rint(table / scales).astype(np.int8))
        self._keep(names[1], scales.astype(np.float32))
        found = [f"{made}.{part}" for part in ("codes", "scale", "numbers")]
        self.nodes.extend(
            [
                helper.make_node("Gather", [names[0], node.input[1]], [found[0]]),
                helper.make_node("Gather", [names[1], node.input[1]], [found[1]]),
                helper.make_node("Cast", [found[0]], [found[2]], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", [found[2], found[1]], [made]),
            ]
        )

    def _array(self, name: str) -> NDArray[np.float32]:
        from onnx import numpy_helper

        array: NDArray[np.float32] = numpy_helper.to_array(self.tables[name])
        return array

    def _keep(self, name: str, values: NDArray[Any]) -> None:
        from onnx import numpy_helper

        if all(each.name != name for each in self.weights):
            self.weights.append(numpy_helper.from_array(values, name))


def _blocks(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return codes [outputs, blocks, 64] and their scales [outputs, blocks]."""
    rows, columns = weight.shape
    padded = np.pad(weight, ((0, 0), (0, -columns % BLOCK)))
    parts = padded.reshape(rows, -1, BLOCK)
    scales = np.maximum(np.abs(parts).max(axis=2), _FLOOR) / 127
    return np.rint(parts / scales[..., None]).astype(np.int8).view(np.uint8), scales
