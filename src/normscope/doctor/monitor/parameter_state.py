"""Parameters from step to step, without measuring them: who gets a gradient, who is trained, who clears gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..facts.freshness import choose_unmeant
from ..facts.loss_call import LossReading


class Since:
    """How long something has been so: since which step, in how many measured steps, at which version of a parameter."""

    __slots__ = ("records", "step", "version")

    def __init__(self, step: int, version: int = 0) -> None:
        self.step, self.version, self.records = step, version, 0


MIN_BACKBONE_LAYERS = 2
"""Frozen layers with the values of new ones, in front of all that are trained, that were to be a backbone."""
SLOW_GROUP_SHARE = 1e-5
"""A learning rate over that of the fastest group: a backbone that is fine-tuned has a hundredth, at most a
thousandth."""
FAINT_ENTRIES = 0.03
"""The largest entry of a table that was to be trained: vectors that were trained have entries of 0.1 and more."""
FAST_GROUP_RATIO = 30.0
"""A learning rate over that of all other groups: heads that are new learn ten times as fast as the body."""
DEFAULT_INITIALISED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
"""Layers that torch initialises with numbers that are uniform within 1/sqrt(fan in)."""
LOOKED_AT = (*DEFAULT_INITIALISED, nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.LSTM, nn.GRU)
"""Modules whose mode or weights say something."""


def _go_on(earlier: Mapping[str, Since], versions: Mapping[str, int], step: int) -> dict[str, Since]:
    """Return since when each of some parameters has been so: as before, unless somebody has written into it."""
    now = {}
    for name, version in versions.items():
        since = earlier.get(name)
        now[name] = Since(step, version) if since is None or since.version != version else since
        now[name].records += 1
    return now


class ParameterState:
    """Follows the parameters of a model from step to step without measuring them; nothing of it lies on a device.

    Attributes:
        ungraded: parameters that the optimizer has and that got no gradient.
        unmoved: parameters that get gradients, that the optimizer does not have, and that nobody changes.
        evaluated: BatchNorms in eval mode whose statistics are those of the start though their scales are trained.
        frozen: layers whose parameters require no gradient though they were never trained.
        unmeant: those of them that are hardly meant to be so.
        dropout: the strongest dropout that is on, and where.
        oddities: what is odd in how the loss is put together, as `LossReading` has it.
        shapes: what was broadcast.
        untaught: parameters before a code that get a gradient from its divergence alone; None where no loss so far
            shows such a divergence.
        others: steps of other optimizers.
        optimizer: the name of the optimizer's class.
        half_precision: whether weights that are trained are in float16.
        casts_to_half: whether values on the way to the loss are cast to float16.
        without_targets: whether no loss so far compares outputs with targets; None where none was looked into.
        part: the path of the part of the model that the loop calls instead of the model; empty where it calls that.
        overwritten: parameters that something else than the optimizer writes into between its steps.
        slow: parameters whose group has a learning rate that is a trace of the largest one.
        resting: parameters whose group has a learning rate of 0, while others have one.
        fastest: the module of the group whose learning rate is far above those of all others; empty where none is.
        shut: recurrent layers one of whose gates their biases keep shut.
        alike: layers all of whose units began alike; None before anybody has looked.
        faint: a frozen table of embeddings whose entries are all close to zero; empty where there is none.
        validated_in_train_mode: how many validations followed forwards in train mode alone, with dropout on.
        smallest: the parameter with the fewest entries of those that had a gradient when they were last looked at.
    """

    def __init__(self) -> None:
        self.evaluated: dict[str, Since] = {}
        self.frozen: dict[str, Since] = {}
        self.unmeant: list[str] = []
        self.dropout: tuple[float, str] = (0.0, "")
        self.oddities: dict[str, Since] = {}
        self.shapes, self.others, self.half_precision = "", 0, False
        self.untaught: tuple[str, ...] | None = None
        self._untaught: frozenset[int] | None = None  # the ids of these parameters
        self.optimizer = ""
        self.casts_to_half = False
        self.without_targets: bool | None = None
        self.part = ""
        self.overwritten: dict[str, Since] = {}
        self.slow: dict[str, Since] = {}
        self.resting: dict[str, Since] = {}
        self.fastest = ""
        self.alike: tuple[str, ...] | None = None
        self.validated_in_train_mode, self.faint = 0, ""
        self.shut: dict[str, str] = {}
        self._written: dict[str, tuple[int, int, int]] = {}  # step, version behind it, and by how much it was raised
        self._stepped: list[nn.Parameter] = []  # of a measured step that is not over
        self._initial: dict[str, bool] = {}
        self.ungraded: dict[str, Since] = {}
        self.unmoved: dict[str, Since] = {}
        self._waiting: dict[str, nn.Parameter] = {}
        self.smallest: nn.Parameter | None = None

    def read_parameters(
        self,
        parameters: Mapping[str, nn.Parameter],
        optimizer: Optimizer,
        step: int,
        whole: nn.Module | None = None,
    ) -> None:
        """Look at all parameters, in front of a measured step; `whole` is the model of which a part is called."""
        parameters = {f"{self.part}.{name}": p for name, p in parameters.items()} if self.part else parameters
        if self._untaught is not None:
            self.untaught = tuple(name for name, p in parameters.items() if id(p) in self._untaught)
        self.optimizer = type(optimizer).__name__
        trainable = {name: p for name, p in parameters.items() if p.requires_grad and not is_lazy(p)}
        rates = {id(p): group.get("lr") for group in optimizer.param_groups for p in group["params"]}
        trained = {name: p for name, p in trainable.items() if id(p) in rates}
        self._waiting = {name: p for name, p in trained.items() if p.grad is None}
        self.half_precision = any(p.dtype is torch.float16 for p in trained.values())
        everything = trainable if whole is None else {n: p for n, p in whole.named_parameters() if p.requires_grad}
        others = {n: p for n, p in everything.items() if id(p) not in rates and p.grad is not None and not is_lazy(p)}
        numbers = [rate for group in optimizer.param_groups if isinstance(rate := group.get("lr"), float)]
        second, first = sorted([0.0, 0.0, *numbers])[-2:]
        is_far = 0.0 < FAST_GROUP_RATIO * second <= first
        fastest = next((name for name, p in trained.items() if is_far and rates[id(p)] == first), "")
        self.fastest = fastest.rpartition(".")[0]
        traces = {rate for rate in numbers if 0.0 < rate < SLOW_GROUP_SHARE * first}
        slow = [name for name, p in trained.items() if rates[id(p)] in traces] if traces else []
        resting = [name for name, p in trained.items() if rates[id(p)] == 0.0] if first else []
        overwritten = [name for name, p in trained.items() if self._is_overwritten(name, p._version, step)]
        self.ungraded = _go_on(self.ungraded, dict.fromkeys(self._waiting, 0), step)
        self.unmoved = _go_on(self.unmoved, {name: p._version for name, p in others.items()}, step)
        self.slow = _go_on(self.slow, dict.fromkeys(slow, 0), step)
        self.resting = _go_on(self.resting, dict.fromkeys(resting, 0), step)
        self.overwritten = _go_on(self.overwritten, dict.fromkeys(overwritten, 0), step)
        self._written = {name: (step, p._version, 0) for name, p in trained.items()}
        self._stepped = list(trained.values())
        graded = [p for p in trained.values() if p.grad is not None and not p.grad.is_sparse]
        self.smallest = min(graded, key=lambda p: p.numel(), default=None)

    def look_behind(self) -> None:
        """Take note of what a measured step wrote, behind it."""
        for (name, (step, version, _)), parameter in zip(list(self._written.items()), self._stepped, strict=False):
            self._written[name] = (step, parameter._version, parameter._version - version)
        self._stepped = []

    def _is_overwritten(self, name: str, version_now: int, step: int) -> bool:
        """Return whether more was written into a parameter since the last measured step than the optimizer does."""
        then, version, raised = self._written.get(name, (step, 0, 0))
        return raised > 0 and version_now > version + raised * (step - then - 1)

    def look_at_first_weights(self, modules: Mapping[str, nn.Module]) -> None:
        """Take note of layers whose units begin alike, and of a frozen table that is faint; waits for the device."""
        paths = {".".join(filter(None, (self.part, inner))): module for inner, module in modules.items()}
        self.alike = tuple(path for path, m in paths.items() if type(m) in DEFAULT_INITIALISED and _are_alike(m))
        self.faint = next((path for path, m in paths.items() if isinstance(m, nn.Embedding) and _is_faint(m)), "")

    def read(self, reading: LossReading | None, step: int) -> None:
        """Take note of what is odd in a loss."""
        if reading is not None:
            self.shapes, self._untaught = reading.shapes or self.shapes, reading.untaught
            self.casts_to_half = self.casts_to_half or reading.half_precision
            self.without_targets = self.without_targets is not False and not reading.compares
            self.oddities = {word: self.oddities.get(word) or Since(step) for word in reading.oddities}
            for since in self.oddities.values():
                since.records += since.version != step + 1  # once for a step
                since.version = step + 1

    def look_at_modules(self, modules: Mapping[str, nn.Module], optimizer: Optimizer, step: int) -> None:
        """Look at the modes of all modules and at what is frozen, in a measured forward in train mode."""
        trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        evaluated, self.dropout, matrices = [], (0.0, ""), []  # matrices: layers with their weight and bias
        layers: dict[str, nn.Module] = {}
        for inner, module in modules.items():
            if not isinstance(module, LOOKED_AT):
                continue
            path = ".".join(filter(None, (self.part, inner)))
            parameters = [p for p in module._parameters.values() if p is not None and not is_lazy(p)]
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training:
                self.dropout = max(self.dropout, (module.p, path))
            elif isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.training:
                counted = module.num_batches_tracked
                if counted is not None and any(id(p) in trained for p in parameters) and self._is_new(path, counted):
                    evaluated.append(path)
            elif type(module) in DEFAULT_INITIALISED and parameters:
                layers[path] = module
                matrices.append((path, parameters))
            elif isinstance(module, nn.LSTM | nn.GRU) and path not in self._initial:
                self._initial[path] = True
                gate = _find_shut_gate(module)
                self.shut |= {path: gate} if gate else {}
        first = next((i for i, (_, (weight, *_)) in enumerate(matrices) if weight.requires_grad), len(matrices))
        frozen = [(path, parameters) for path, parameters in matrices[first:] if not parameters[0].requires_grad]
        many = 2 * len(frozen) >= len(matrices)  # a backbone, with an adapter in front of it
        others = [weight for _, (weight, *_) in matrices if weight.requires_grad]
        untrained = {} if many else {path: ps[0] for path, ps in frozen if self._is_initial(path, ps, others)}
        reached = others or any(id(p) in trained for module in modules.values() for p in module._parameters.values())
        before, in_front = matrices[:first] if reached else [], dict[str, nn.Parameter]()
        # a single random layer in front is a projection on purpose
        if len(before) >= MIN_BACKBONE_LAYERS and all(
            self._is_initial(path, parameters, others, or_normal=True) for path, parameters in before
        ):
            in_front = {path: weight for path, (weight, *_) in before}
        last = max((i for i, (_, (weight, *_)) in enumerate(matrices) if weight.requires_grad), default=0)
        between = {path for path, _ in matrices[first:last]}  # what layers behind learn from is no fixed classifier
        unmeant = choose_unmeant({path: layers[path] for path in untrained | in_front})
        self.unmeant = [path for path in untrained | in_front if path in unmeant or path in between]
        untrained |= {path: weight for path, weight in in_front.items() if path in self.unmeant}  # else random features
        self.evaluated = _go_on(self.evaluated, dict.fromkeys(evaluated, 0), step)
        unseen = {path for path, weight in untrained.items() if is_lazy(weight) or weight.is_inference()}
        versions = {path: 0 if path in unseen else weight._version for path, weight in untrained.items()}
        self.frozen = _go_on(self.frozen, versions, step)

    def _is_new(self, path: str, counted: Tensor) -> bool:
        """Return whether a BatchNorm had counted no batch when it was first looked at."""
        if path not in self._initial:
            self._initial[path] = int(counted) == 0
        return self._initial[path]

    def _is_initial(
        self, path: str, parameters: Sequence[Tensor], trained: Sequence[Tensor], *, or_normal: bool = False
    ) -> bool:
        """Return whether the weight of a layer, the first of its parameters, has the values of a new one.

        Torch draws new weights uniformly within 1/sqrt(fan in). Normal ones (`torch.nn.init`) are recognised by their
        deviation and a bias that is zero or within 1/sqrt(fan in); in one layer alone that may be chance, so that they
        count with `or_normal` only. A copy of a trained weight does not count as new: it belongs to a target network,
        which follows another one.
        """
        if path not in self._initial:
            weight, count = parameters[0].detach(), parameters[0].numel()
            bound = math.sqrt(len(weight) / count)
            deviation, largest = float(weight.std()), float(weight.abs().amax())
            uniform = abs(deviation * math.sqrt(3.0) / bound - 1.0) < 3.0 / math.sqrt(count)
            uniform = uniform and 0.9 * bound < largest <= bound * 1.001
            outputs = bound * math.sqrt(len(weight) / weight[0].numel())  # 1/sqrt(fan in) times sqrt(out/in)
            usual = (bound, math.sqrt(2.0) * bound, bound * math.sqrt(2.0) / math.hypot(1.0, outputs / bound), 0.02)
            normal = min(abs(deviation / other - 1.0) for other in usual) < 2.0 / math.sqrt(2.0 * count)
            normal = normal and or_normal and len(parameters) > 1 and _is_new_bias(parameters[1].detach(), bound)
            copied = any(w.shape == weight.shape and torch.equal(w.to(weight), weight) for w in trained)
            self._initial[path] = (uniform or normal) and not copied
        return self._initial[path]

    @property
    def waits(self) -> bool:
        """Whether some parameters had no gradient when they were last looked at."""
        return bool(self._waiting)

    def pass_by(self) -> None:
        """In front of other steps look only whether parameters without a gradient got one: branches may be rare."""
        for name, parameter in list(self._waiting.items()):
            if parameter.grad is not None:
                del self.ungraded[name], self._waiting[name]

    def let_go(self) -> None:
        """Keep no parameter alive any longer."""
        self.smallest, self._waiting, self._stepped = None, {}, []


def _are_alike(layer: nn.Module) -> bool:
    """Return whether all units of a layer that is trained read the same inputs, with the same weights, not all zero."""
    weight, bias = (layer._parameters.get(name) for name in ("weight", "bias"))
    if weight is None or is_lazy(weight) or not weight.requires_grad or getattr(layer, "groups", 1) > 1:
        return False
    rows, values = weight.detach(), None if bias is None else bias.detach()
    if len(rows) < 2 or not bool((rows == rows[:1]).all() & rows[:1].any()):
        return False
    return values is None or bool((values == values[:1]).all())


def _is_faint(table: nn.Embedding) -> bool:
    """Return whether a table of embeddings is frozen and has entries close to zero alone."""
    weight = table.weight.detach()
    return not table.weight.requires_grad and weight.numel() > 0 and bool(weight.abs().amax() < FAINT_ENTRIES)


SHUT_GATE_BIAS = -4.0
"""The mean bias of a gate, of its two biases together, at which it lets 2 % through."""
GATES = {"input gates": 0, "forget gates": 1, "output gates": 3}
"""The gates of an LSTM and their places among its four blocks of rows."""


def _find_shut_gate(module: nn.LSTM | nn.GRU) -> str:
    """Return which gates of a recurrent layer are kept shut by their biases; empty where none are.

    An LSTM passes a product of its gates. Of a GRU it is the update gate, which keeps the old state where it is open.
    """
    for layer in range(module.num_layers if module.bias else 0):
        biases = [getattr(module, f"bias_{name}_l{layer}").detach() for name in ("ih", "hh")]
        blocks = (biases[0] + biases[1]).float().chunk(4 if isinstance(module, nn.LSTM) else 3)
        if isinstance(module, nn.GRU):
            if float(blocks[1].mean()) >= -SHUT_GATE_BIAS:
                return "update gates"
        else:
            for gate, place in GATES.items():
                if float(blocks[place].mean()) <= SHUT_GATE_BIAS:
                    return gate
    return ""


def _is_new_bias(bias: Tensor, bound: float) -> bool:
    """Return whether a bias is zero or uniform within a bound, as that of a new layer is."""
    largest, deviation = float(bias.abs().amax()), float(bias.std(correction=0))
    uniform = abs(deviation * math.sqrt(3.0) / bound - 1.0) < 2.0 / math.sqrt(len(bias))
    return largest == 0.0 or (uniform and 0.7 * bound < largest <= bound * 1.001)
