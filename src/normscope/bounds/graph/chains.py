"""Trace a chain of torch's own layers without torch.export, in milliseconds.

`trace_chain` makes the program that torch.export makes of a `Sequential` of layers in `LAYERS`, nested or not, by
asking a table which operator each layer calls with which arguments. It declines whatever is not exactly known: other
classes, hooks, replaced methods, tensors with two names, batch statistics, modes of torch that are switched on. Such
models are exported, and torch.export says what is wrong with them. `tests/graph/test_chains.py` compares both programs.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.nn.modules import module as torch_module

from ...calls.call import ALL_OUTPUTS, Call
from .ir import storage_of
from .traced_program import ChainProgram

aten = torch.ops.aten
Operation = tuple[OpOverload, tuple[Any, ...], dict[str, Any]]
"""An operator, its arguments after the value that runs along the chain, and those that are passed by keyword."""


CUDNN = False
"""Whether normalizers may use cuDNN: torch.export switches it off while it traces."""


MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""The attributes that every module has: none of them takes the place of a method."""
HOOK_ATTRIBUTES = tuple(name for name in MODULE_ATTRIBUTES if name.endswith("_hooks") and "state_dict" not in name)
"""Those of them that hold hooks which run when the module is called."""


class NotAChainError(Exception):
    """Something that is not exactly known: the model must be exported."""


def _pair(value: Any) -> list[int]:
    """Return a size along two axes as torch passes it on."""
    sizes = [value, value] if type(value) is int else list(value)
    if len(sizes) != 2:
        raise NotAChainError
    return sizes


def _activation(name: str, *attributes: str) -> Callable[[Any], Operation]:
    """Return the row of an activation; `inplace` chooses the operator that writes into its operand."""

    def operation(layer: Any) -> Operation:
        overwrites = getattr(layer, "inplace", False)
        operator = getattr(aten, f"{name}_" if overwrites else name).default
        return operator, tuple(getattr(layer, attribute) for attribute in attributes), {}

    return operation


def _convolution(layer: Any) -> Operation:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise NotAChainError
    operator = aten.conv1d.default if isinstance(layer, nn.Conv1d) else aten.conv2d.default
    sizes = (list(layer.stride), list(layer.padding), list(layer.dilation))
    return operator, (layer.weight, layer.bias, *sizes, layer.groups), {}


def _batch_norm(layer: Any) -> Operation:
    if layer.training or layer.running_mean is None or layer.running_var is None:
        raise NotAChainError  # the statistics of the batch count
    tensors = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    return aten.batch_norm.default, (*tensors, False, layer.momentum or 0.0, layer.eps, CUDNN), {}


def _layer_norm(layer: Any) -> Operation:
    sizes = list(layer.normalized_shape)
    return aten.layer_norm.default, (sizes, layer.weight, layer.bias, layer.eps, CUDNN), {}


def _group_norm(layer: Any) -> Operation:
    arguments = (layer.num_groups, layer.weight, layer.bias, layer.eps, CUDNN)
    return aten.group_norm.default, arguments, {}


def _max_pool(layer: Any) -> Operation:
    if layer.return_indices:
        raise NotAChainError
    sizes = (_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding), _pair(layer.dilation))
    return aten.max_pool2d.default, (*sizes, layer.ceil_mode), {}


def _average_pool(layer: Any) -> Operation:
    sizes = (_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding))
    return aten.avg_pool2d.default, (*sizes, layer.ceil_mode, layer.count_include_pad, layer.divisor_override), {}


def _dropout(layer: Any) -> Operation:
    if layer.inplace:
        raise NotAChainError
    return aten.dropout.default, (layer.p, layer.training), {}


LAYERS: dict[type[nn.Module], Callable[[Any], Operation]] = {
    nn.Linear: lambda layer: (aten.linear.default, (layer.weight, layer.bias), {}),
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
    nn.RMSNorm: lambda layer: (aten.rms_norm.default, (list(layer.normalized_shape), layer.weight, layer.eps), {}),
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.AdaptiveAvgPool2d: lambda layer: (aten.adaptive_avg_pool2d.default, (_pair(layer.output_size),), {}),
    nn.Flatten: lambda layer: (aten.flatten.using_ints, (layer.start_dim, layer.end_dim), {}),
    nn.Dropout: _dropout,
    nn.Softmax: lambda layer: (aten.softmax.int, (layer.dim,), {}),
    nn.LogSoftmax: lambda layer: (aten.log_softmax.int, (layer.dim,), {}),
    nn.ReLU: _activation("relu"),
    nn.ReLU6: _activation("hardtanh", "min_val", "max_val"),
    nn.LeakyReLU: _activation("leaky_relu", "negative_slope"),
    nn.ELU: _activation("elu", "alpha"),
    nn.CELU: _activation("celu", "alpha"),
    nn.SELU: _activation("selu"),
    nn.SiLU: _activation("silu"),
    nn.Mish: _activation("mish"),
    nn.Hardswish: _activation("hardswish"),
    nn.Hardsigmoid: _activation("hardsigmoid"),
    nn.Hardtanh: _activation("hardtanh", "min_val", "max_val"),
    nn.Softplus: _activation("softplus", "beta", "threshold"),
    nn.LogSigmoid: _activation("log_sigmoid"),
    nn.Tanh: _activation("tanh"),
    nn.Sigmoid: _activation("sigmoid"),
    nn.PReLU: _activation("prelu", "weight"),
    nn.GELU: lambda layer: (aten.gelu.default, (), {"approximate": layer.approximate}),
}
"""What each layer calls, for an object of exactly this class. All operators can be read as they are."""


SHAPING = {
    aten.conv1d.default, aten.conv2d.default, aten.max_pool2d.default, aten.avg_pool2d.default,
    aten.adaptive_avg_pool2d.default, aten.flatten.using_ints,
}  # fmt: skip
"""Operators of these whose value has another shape, besides `linear`."""


def trace_chain(model: nn.Module, call: Call) -> ChainProgram | None:
    """Return the program that torch.export makes of a chain of known layers; None for anything else."""
    try:
        return _traced(model, call)
    except Exception:  # torch.export meets the same error, and its message is the one to show
        return None


def changes_nothing(model: nn.Module, mode: str | None) -> bool:
    """Whether a model is a chain of known layers in eval mode: a run of it changes nothing, and draws no number."""
    try:
        layers = _known_layers(model)
        for _ in _tensors(layers):  # raises for a tensor that is not plain
            pass
    except NotAChainError:
        return False
    evaluates = mode == "eval" if mode is not None else not any(layer.training for _, layer in layers)
    return evaluates and not _has_global_hooks()


@torch.no_grad()
def _traced(model: nn.Module, call: Call) -> ChainProgram:
    start = _only_argument(call)
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        raise NotAChainError
    if torch.is_autocast_enabled(start.device.type) or _has_global_hooks():
        raise NotAChainError
    layers = _known_layers(model)
    graph, specs, state = torch.fx.Graph(), list[InputSpec](), dict[str, Tensor]()
    nodes: dict[int, torch.fx.Node] = {}
    for role, path, tensor in _tensors(layers):
        if tensor.device != start.device or (tensor.is_floating_point() and tensor.dtype != start.dtype):
            raise NotAChainError
        is_buffer = role is InputKind.BUFFER
        nodes[id(tensor)] = _placeholder(graph, f"{'b' if is_buffer else 'p'}_{path.replace('.', '_')}", tensor)
        specs.append(InputSpec(role, TensorArgument(nodes[id(tensor)].name), path, True if is_buffer else None))
        state[path] = tensor
    if id(start) in nodes or len({storage_of(tensor) for tensor in state.values()}) < len(state):
        raise NotAChainError
    node = _placeholder(graph, "args_0", start)
    specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None))
    value = torch.empty(start.shape, dtype=start.dtype, device="meta")
    for path, layer in layers:
        if type(layer) is nn.Identity:
            continue
        kind: Any = type(layer)
        operator, arguments, keywords = LAYERS[kind](layer)
        args, kwargs = _passed(operator, arguments, keywords)
        value = _value_of(operator, value, args)
        traced = tuple(nodes[id(item)] if isinstance(item, Tensor) else item for item in args)
        name = operator._schema.name.split("::")[1]
        node = graph.create_node("call_function", operator, (node, *traced), kwargs, name=name)
        node.meta = {
            "val": torch.empty((), dtype=value.dtype, device=start.device).expand(value.shape),
            "nn_module_stack": {f"L__self__{path}": (path, kind.__name__)},
            "stack_trace": _line_of_call(kind),
        }
    if node.op != "call_function" or not value.is_floating_point():
        raise NotAChainError
    graph.output((node,))
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None)]
    signature = ExportGraphSignature(specs, outputs)
    return ChainProgram(graph=graph, graph_signature=signature, state_dict=state)


def _only_argument(call: Call) -> Tensor:
    """Return the one tensor that a call passes; the measured output must be the one tensor that a chain returns."""
    if len(call.args) != 1 or call.kwargs or call.output not in (None, 0, ALL_OUTPUTS):
        raise NotAChainError
    (start,) = call.args
    if type(start) is not Tensor or not start.is_floating_point() or start.layout is not torch.strided:
        raise NotAChainError
    return start


def _has_global_hooks() -> bool:
    names = [name for name in vars(torch_module) if name.startswith("_global_") and name.endswith("_hooks")]
    return any(getattr(torch_module, name) for name in names)


def _known_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers of a chain with their paths, all of which run what torch has written."""
    layers = list(_layers(model, "model"))
    if not all(map(_runs_as_written, {type(layer) for _, layer in layers})):
        raise NotAChainError
    return layers


def _layers(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a chain with their paths, in the order in which they run."""
    kind: Any = type(module)
    held = vars(module)
    replaced = [name for name in held.keys() - MODULE_ATTRIBUTES if callable(getattr(kind, name, None))]
    if any(held.get(name) for name in HOOK_ATTRIBUTES) or replaced or module._compiled_call_impl is not None:
        raise NotAChainError
    if kind is nn.Sequential:
        if len(list(module.children())) != len(module._modules) or module._parameters or module._buffers:
            raise NotAChainError  # a layer that runs twice, or tensors that may have a second name
        for name, child in module.named_children():
            yield from _layers(child, f"{path}.{name}")
    elif (kind is nn.Identity or kind in LAYERS) and not module._modules:
        yield path, module
    else:
        raise NotAChainError


def _runs_as_written(kind: Any) -> bool:
    """Whether what a class of torch runs is torch's own: nobody has put another function in the place of one of it."""
    names = kind.forward.__code__.co_names
    called = [getattr(place, name, None) for place in (torch, nn.functional, kind) for name in names]
    functions = [nn.Module.__call__, kind.forward, *filter(callable, called)]
    return all((getattr(function, "__module__", None) or "torch").split(".")[0] == "torch" for function in functions)


def _tensors(layers: list[tuple[str, nn.Module]]) -> Iterator[tuple[InputKind, str, Tensor]]:
    """Yield the parameters and then the buffers of a chain, each with its kind and its path."""
    if len({id(layer) for _, layer in layers}) < len(layers):
        raise NotAChainError  # a layer runs twice
    held: list[tuple[InputKind, str, Mapping[str, Tensor | None]]] = []
    held += [(InputKind.PARAMETER, path, layer._parameters) for path, layer in layers]
    held += [(InputKind.BUFFER, path, layer._buffers) for path, layer in layers]
    for kind, path, tensors in held:
        plain = nn.Parameter if kind is InputKind.PARAMETER else Tensor
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if type(tensor) is not plain or tensor.layout is not torch.strided or not tensor.numel():
                raise NotAChainError
            yield kind, f"{path}.{name}", tensor


def _placeholder(graph: torch.fx.Graph, name: str, tensor: Tensor) -> torch.fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = tensor
    return node


def _value_of(operator: OpOverload, value: Tensor, args: tuple[Any, ...]) -> Tensor:
    """Return what an operator makes of a value without entries; all that do not give it another shape keep it."""
    if operator is aten.linear.default:  # torch would take a hundred times as long for the same
        return value.new_empty((*value.shape[:-1], len(args[0])))
    if operator not in SHAPING:
        return value
    return operator(value, *(item.to("meta") if isinstance(item, Tensor) else item for item in args))


def _passed(
    operator: OpOverload, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments as torch's dispatcher passes them on: without the defaults at the end, numbers converted."""
    ports = operator._schema.arguments[1:]
    positional = [port for port in ports if not port.kwarg_only]
    args = [_converted(port, value) for port, value in zip(positional, arguments, strict=False)]
    if len(args) < len(arguments):
        raise NotAChainError
    while args and _is_default(positional[len(args) - 1], args[-1]):
        args.pop()
    named = {port.name: port for port in ports}
    kwargs = {name: _converted(named[name], value) for name, value in keywords.items()}
    return tuple(args), {name: value for name, value in kwargs.items() if not _is_default(named[name], value)}


def _converted(port: Any, value: Any) -> Any:
    """Return an argument as the dispatcher converts it; refuse a type that it would have to look into."""
    if value is None and str(port.type.kind()) != "OptionalType":
        raise NotAChainError
    if value is None or isinstance(value, Tensor):
        return value
    if type(value) is list:
        if all(type(size) is int for size in value):
            return value
        raise NotAChainError
    if type(value) is int and str(port.real_type) == "float":
        return float(value)
    if type(value) not in (bool, int, float, str):
        raise NotAChainError
    return value


def _is_default(port: Any, value: Any) -> bool:
    if not port.has_default_value() or isinstance(value, Tensor):
        return False
    default = port.default_value
    if isinstance(value, list) and isinstance(default, int):  # one size for all axes
        default = [default] * len(value)
    return type(value) is type(default) and value == default


@functools.cache
def _line_of_call(kind: Any) -> str:
    """Return the line of a layer's `forward` that calls its operator, which is the last call there."""
    code = kind.forward.__code__
    steps = [step for step in dis.get_instructions(code) if step.opname.startswith("CALL")]
    lines = [step.positions.lineno for step in steps if step.positions is not None]
    return f'File "{code.co_filename}", line {lines[-1]}'
