"""The names of modules and parameters: each keeps the one that it had at first, wherever it stands later."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn


class Names:
    """Knows the modules of a model by identity.

    A module that moves (another was inserted in front of it, or wrapped around it) keeps its name; one that is new
    never gets a name that was somebody else's.

    Args:
        model: as it is now.

    Example:
        >>> model = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))
        >>> names = Names(model)
        >>> _ = model.insert(1, nn.Linear(2, 2))
        >>> list(names.modules(model)), list(names.parameters(model))
        (['', '0', '1 (new)', '1'], ['1 (new).weight', '1 (new).bias', '1.weight', '1.bias'])
    """

    def __init__(self, model: nn.Module) -> None:
        self._first = WeakKeyDictionary({module: path for path, module in model.named_modules()})
        self._taken = frozenset(self._first.values())

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """Return all modules that a model has now, by name."""
        return {self._name(path, module): module for path, module in model.named_modules()}

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """Return all parameters that a model has now, by name."""
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for path, module in model.named_modules():
            name = self._name(path, module)
            for own, parameter in module._parameters.items():
                if parameter is not None:  # tied ones have the first of their names
                    found.setdefault(id(parameter), (f"{name}.{own}" if name else own, parameter))
        return dict(found.values())

    def _name(self, path: str, module: nn.Module) -> str:
        known = self._first.get(module)
        return known if known is not None else f"{path} (new)" if path in self._taken else path
