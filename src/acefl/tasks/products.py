"""Products of many small matrices in compiled gradients, on processors of which MKL uses half.

The compiler leaves products to torch, which takes MKL. Its own gain nothing for matrices like these, and are for one
number of models. So they are written in C++ here, and compiled with the rest.
"""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from acefl.tasks.linear_layers import mkl_uses_half

_OTHERS = ("float64", "float16", "bfloat16")  # what products may be of, if an operation names it


def put_in(graph: GraphModule) -> GraphModule | None:
    """A copy of the graph, of float32, with its products computed here; None, where that gains nothing."""
    if not mkl_uses_half() or any(f"torch.{name}" in graph.code for name in _OTHERS):
        return None
    graph = copy.deepcopy(graph)
    products = list(graph.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default))
    for node in products:
        node.target = _operation()
    graph.recompile()
    return graph if products else None


def options() -> dict[str, Any]:
    """For the compiler, which pastes how an operation is declared into what it generates: here, all of it."""
    return {"aot_inductor.custom_ops_to_c_shims": {_operation(): [source()]}}


@cache
def source() -> str:
    """A declaration, which the compiler begins with `extern`, and what is declared."""
    name = "AOTITorchError aoti_torch_cpu_product"
    declared = f"{name}(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*);"
    return f"{declared}\n{Path(__file__).with_suffix('.cpp').read_text(encoding='utf-8')}"


@cache
def _operation() -> torch._ops.OpOverload:
    """The name under which the compiler knows them. Nothing else calls it."""
    library = torch.library.Library("acefl", "FRAGMENT")
    library.define("product(Tensor first, Tensor second) -> Tensor")

    def shape(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first.new_empty(first.shape[0], first.shape[1], second.shape[2])

    torch.library.register_fake("acefl::product", shape, lib=library)
    _kept.append(library)
    found: torch._ops.OpOverload = torch.ops.acefl.product.default
    return found


_kept: list[torch.library.Library] = []  # an operation ends with its library
