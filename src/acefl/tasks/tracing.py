"""A function of tensors as a flat list of operations, without those that change nothing.

Tracing `vmap(grad(...))` leaves views of a shape that is already there, constants made anew at every call and the same
operation two or three times. For small models such calls are most of the time. Leaving them out changes no bit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx import GraphModule, Node

Instead = Mapping[Any, Callable[..., Any]]
_aten = torch.ops.aten
_FILLED = {_aten.ones_like.default: 1, _aten.zeros_like.default: 0}
_FEW, _MORE = 3, 5  # rows; equal to no size that is special, and neither divides the other
_VIEWS = (_aten.view.default, _aten._unsafe_view.default, _aten.expand.default, _aten.detach.default)


def traced(function: Callable[..., Any], *examples: Any, instead: Instead | None = None) -> GraphModule:
    """The operations that the function does on arguments like these; `instead`: some of them by others."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with _shapes_in_one_mode():
        module: GraphModule = make_fx(function, decomposition_table=instead)(*examples)
    module.graph.eliminate_dead_code()
    if not any(_writes(node) for node in module.graph.nodes):
        _skip_idle_views(module)
        _merge_equal_calls(module)
        _fill_by_shape(module)
        _keep_constants(module)
        module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _shapes_in_one_mode() -> AbstractContextManager[Any]:
    """Otherwise each operation's shape is noted in a mode of its own, which takes longer."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode

    return tracing(TracingContext(FakeTensorMode(allow_fallback_kernels=True)))


def traced_for_any_number(function: Callable[..., Any], *examples: torch.Tensor) -> GraphModule:
    """The operations that the function does on tensors like these, of any number of rows.

    `vmap` cannot be traced with a number of rows that is not known. So the function is traced at two, and an integer
    that differs between the two traces is a multiple of that number.
    """
    few, more = (traced(function, *(repeated(example, rows) for example in examples)) for rows in (_FEW, _MORE))
    graph, others = few.graph, list(more.graph.nodes)
    _same(len(graph.nodes), len(others))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        rows = graph.call_function(_aten.sym_size.int, (next(iter(graph.nodes)), 0))

    def merged(own: Any, other: Any) -> Any:
        """What stands for both of two arguments."""
        if isinstance(own, list | tuple):
            _same(len(own), len(other))
            return type(own)(map(merged, own, other))
        if isinstance(own, dict):
            return {key: merged(value, other[key]) for key, value in own.items()}
        if isinstance(own, Node):
            _same(own.name, other.name)
            return own
        if own == other:
            return own
        times, rest = divmod(own, _FEW) if isinstance(own, int) else (0, 1)
        _same((times * _MORE, 0), (other, rest))
        return rows if times == 1 else graph.call_function(operator.mul, (rows, times))

    pairs = zip([node for node in graph.nodes if node is not rows], others, strict=True)
    for node, other in pairs:
        _same((node.op, node.name, str(node.target)), (other.op, other.name, str(other.target)))
        if node.op == "get_attr":
            _same(torch.equal(getattr(few, str(node.target)), getattr(more, str(node.target))), True)
        with graph.inserting_before(node):
            node.args, node.kwargs = merged(node.args, other.args), merged(node.kwargs, other.kwargs)
        node.meta.clear()
    rows.meta.clear()
    few.recompile()
    return few


def repeated(example: torch.Tensor, rows: int) -> torch.Tensor:
    """Its first row, so many times."""
    return example[:1].repeat(rows, *[1] * (example.dim() - 1))


def _same(own: object, other: object) -> None:
    if own != other:
        raise ValueError("operations depend on the number of models otherwise than by shapes")


def is_on() -> bool:
    """Whether what runs now is being traced."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode() is not None


def _writes(node: Node) -> bool:
    """Whether a call writes into what it is given: then an alias in place of a copy could be seen."""
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and schema.is_mutable


def _skip_idle_views(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        if node.target in _VIEWS and isinstance(node.args[0], Node) and _form(node) == _form(node.args[0]):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)


def _form(node: Node) -> Any:
    """Shape, strides and type; of a node without any, the node itself, which is equal to no other."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return node
    return value.shape, value.stride(), value.dtype, value.storage_offset()


def _merge_equal_calls(module: GraphModule) -> None:
    known: dict[Any, Node] = {}
    for node in list(module.graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        call = node.target, repr(node.args), repr(node.kwargs)  # nodes have unique names
        first = known.setdefault(call, node)
        if first is not node:
            node.replace_all_uses_with(first)
            module.graph.erase_node(node)


def _fill_by_shape(module: GraphModule) -> None:
    """Ones and zeros like something need its shape alone: what it is computed from, such as the loss itself where only
    its gradient is wanted, may then be for nobody."""
    for target, number in _FILLED.items():
        for node in module.graph.find_nodes(op="call_function", target=target):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and value.is_contiguous():
                kind: dict[str, Any] = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
                with module.graph.inserting_before(node):
                    full = module.graph.call_function(_aten.full.default, (list(value.shape), number), kind)
                full.meta["val"] = value
                node.replace_all_uses_with(full)
                module.graph.erase_node(node)


def _keep_constants(module: GraphModule) -> None:
    """Numbers as tensors are made once. Nothing larger: somebody may write into what the function returns."""
    for count, node in enumerate(module.graph.find_nodes(op="call_function", target=_aten.scalar_tensor.default)):
        name = f"_number_{count}"
        module.register_buffer(name, node.target(*node.args, **node.kwargs))
        with module.graph.inserting_before(node):
            constant = module.graph.get_attr(name)
        node.replace_all_uses_with(constant)
        module.graph.erase_node(node)
