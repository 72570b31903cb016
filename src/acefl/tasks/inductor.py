"""Tensor operations as machine code, by torch's inductor.

On a CPU what was compiled once is kept as a library in torch's cache folder and loaded from there, without the
compiler: importing that alone would take longer than many a run. On a GPU the compiler keeps a cache of its
own there, with the kernels that it found fastest.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from acefl.tasks import products, tracing

log = logging.getLogger(__name__)
_TYPICAL = 8  # rows that the compiler reckons with where it may be any number
_OPTIONS = {
    "compile_threads": 1,
    "cpp.vec_isa_ok": True,  # what this processor has need not be tried out: a compiler that lacks it fails
}


def compiled(
    graph: GraphModule, examples: Sequence[torch.Tensor], *, any_number: bool = False
) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """What the graph, which gives a tuple of one tensor, computes of tensors like these. Contiguous ones: nobody looks
    at strides again. `any_number`: of any number of rows from two on, if the graph is for that."""
    if examples[0].device.type != "cpu":
        return _in_process(graph, examples)
    if any_number:
        examples = [tracing.repeated(example, _TYPICAL) for example in examples]
    library = _with_own_products(graph, examples, any_number) or _library(graph, examples, any_number)
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)

    def run(given: list[torch.Tensor]) -> torch.Tensor:
        result: torch.Tensor = runner.run(given)[0]
        return result

    return run


def _with_own_products(graph: GraphModule, examples: Sequence[torch.Tensor], any_number: bool) -> Path | None:
    """A library that does not leave products to torch, where those are faster and the compiler takes them."""
    changed = products.put_in(graph)
    if changed is None:
        return None
    try:
        return _library(changed, examples, any_number, products.source(), products.options())
    except RuntimeError as error:
        log.info("the compiler does not take our products: %s", " ".join(str(error).split())[:200])
        return None


def _library(
    graph: GraphModule,
    examples: Sequence[torch.Tensor],
    any_number: bool,
    source: str = "",
    options: Mapping[str, Any] | None = None,
) -> Path:
    """The graph as a library; `source` is what it takes beside what the compiler writes."""
    library = _folder() / f"{_fingerprint(graph, examples, source)}.so"
    if not library.exists():
        _compile(graph, examples, library, any_number, options or {})
    return library


_made: dict[tuple[Any, ...], Any] = {}  # on a GPU, by operations and shapes: a study builds a task for every split


def _in_process(graph: GraphModule, examples: Sequence[torch.Tensor]) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """Compiled for as long as this process lives. Frozen weights are arguments, or the compiler would read them all."""
    _without_shapes(graph)
    constants = _constants_as_arguments(graph)
    key = graph.code, *((t.shape, t.stride(), t.dtype, t.device) for t in (*constants, *examples))
    if key not in _made:
        with _quiet():
            import torch._inductor as inductor

            given: Any = [*constants, *examples]
            _made[key] = inductor.standalone_compile(graph, given, dynamic_shapes="from_example_inputs")
    made = _made[key]

    def run(given: list[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = made(*constants, *given)[0]
        return result

    return run


def _constants_as_arguments(graph: GraphModule) -> list[torch.Tensor]:
    """What the graph's operations take from the module, in the order in which they have become its first arguments."""
    first, arguments, values = next(iter(graph.graph.nodes)), dict[str, Node](), list[torch.Tensor]()
    for node in list(graph.graph.find_nodes(op="get_attr")):
        name = str(node.target)
        if name not in arguments:
            with graph.graph.inserting_before(first):
                arguments[name] = graph.graph.placeholder(name)
            values.append(getattr(graph, name).detach())
        node.replace_all_uses_with(arguments[name])
        graph.graph.erase_node(node)
    graph.recompile()
    return values


def _without_shapes(graph: GraphModule) -> None:
    """Those found in tracing are in a form that the compiler does not take."""
    for node in graph.graph.nodes:
        node.meta.clear()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the compiler's own warnings, and what fails is told in a line by whoever asked."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _compile(
    graph: GraphModule, examples: Sequence[torch.Tensor], library: Path, any_number: bool, options: Mapping[str, Any]
) -> None:
    with _quiet():
        import torch._inductor as inductor
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        _without_shapes(graph)
        given, shapes = tuple(examples), ShapeEnv()
        if any_number:
            mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
            given = tuple(_of_any_number(example, mode) for example in examples)
        made = inductor.aot_compile(graph, given, options={**_OPTIONS, **options})
    if shapes.replacements:  # the number was asked for
        raise ValueError("an operation is compiled for a fixed number of models alone, as convolutions are")
    library.parent.mkdir(parents=True, exist_ok=True)
    beside = library.with_suffix(f".{os.getpid()}")
    shutil.copyfile(str(made), beside)
    beside.replace(library)


def _of_any_number(example: torch.Tensor, mode: Any) -> torch.Tensor:
    """A tensor like this without numbers in it. How many rows it has is a symbol, one for all that have as many."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes: Any = [DimDynamic.DUCK, *[DimDynamic.STATIC] * (example.dim() - 1)]
    fake: torch.Tensor = mode.from_tensor(example, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))
    return fake


def _folder() -> Path:
    """Where torch keeps what it compiles; asking it would import the compiler."""
    own = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return (Path(own) if own else Path(tempfile.gettempdir()) / f"torchinductor_{_user()}") / "acefl"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # containers may run under a number that has no name
        return str(os.getuid())


def _fingerprint(graph: GraphModule, examples: Sequence[torch.Tensor], source: str) -> str:
    """A name for all that decides what the compiler makes: operations, constants, shapes, machine, our own source."""
    from llvmlite import binding

    machine = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    shapes = [(tuple(example.shape), example.stride(), str(example.dtype)) for example in examples]
    known = torch.__version__, torch.get_num_threads(), machine, sorted(_OPTIONS.items()), shapes, graph.code, source
    digest = hashlib.sha256(repr(known).encode())
    for name, constant in (*graph.named_parameters(), *graph.named_buffers()):
        shown = constant.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(repr((name, tuple(constant.shape), str(constant.dtype))).encode() + shown.tobytes())
    return digest.hexdigest()[:32]
