"""What a watcher says when it sees nothing, as findings: at once, for no record will come."""

from __future__ import annotations

from torch.optim import Optimizer

from ..core.finding import Finding, Severity
from .watched_layers import compiled_functions

STUCK = 1000
"""How many forwards in train mode pass without a step of the optimizer before the watcher says that it sees none."""
BLIND = 3
"""How many steps of the optimizer pass without a forward before the watcher says that it sees nothing."""
REPLACED = 10
"""How many steps another optimizer takes for the same parameters, and ours none, before the watcher says so."""
PATIENT = 30
"""How many calls of `observe` pass without a forward or a step before the weights are looked at."""

COMPILED = (
    "Compile the model, not the function around it: model = torch.compile(model), pass ns.watch that, and call "
    "optimizer.step() outside of what is compiled."
)


def eval_mode(step: int) -> Finding:
    """All forwards of the run so far were in eval mode."""
    return Finding(
        code="eval-mode",
        severity=Severity.WARNING,
        where="",
        seen="The optimizer steps, and every forward in between is in eval mode: the whole model, not a part of it.",
        why="In eval mode BatchNorm uses its stored statistics and does not move them, and dropout does nothing: this "
        "is not the network that training is meant for. Nothing is measured of it.",
        advice="Call model.train() before the loop, and again after every evaluation.",
        step=step,
    )


def unseen_forward(step: int, *, compiled: bool) -> Finding:
    """The optimizer steps, but no forward of the model is seen."""
    return Finding(
        code="not-seen",
        severity=Severity.WARNING,
        where="",
        seen="The optimizer steps, but no forward of the watched model is seen"
        + (": it runs inside of a function that torch.compile has made." if compiled else "."),
        why="Hooks of a module do not run inside of a compiled function, nor where its forward method is called "
        "directly, nor on a copy of it. Nothing is measured.",
        advice=COMPILED
        if compiled
        else "Pass ns.watch the object that the loop calls (the compiled module, the wrapper), and call it, not its "
        "forward method.",
        step=step,
    )


def unseen_step(step: int) -> Finding:
    """Weights change, but neither a forward nor a step of the optimizer is seen."""
    return Finding(
        code="not-seen",
        severity=Severity.WARNING,
        where="",
        seen="Weights change, but neither a forward of the watched model nor a step of the optimizer is seen.",
        why="Hooks do not run inside of a function that torch.compile has made, and another optimizer than the one "
        "that was given is not seen. Nothing is measured.",
        advice=f"{COMPILED} Pass ns.watch the optimizer that is stepped.",
        step=step,
    )


def replaced(step: int, by: Optimizer) -> Finding:
    """Another optimizer trains the parameters of the one that is watched."""
    return Finding(
        code="not-seen",
        severity=Severity.WARNING,
        where="",
        seen=f"Another optimizer ({type(by).__name__}) trains the parameters of the one that is watched, which does "
        "not step any more.",
        why="Steps are counted and measured where the watched optimizer makes them. Nothing is measured.",
        advice="Call ns.watch with the new optimizer, with the same log to go on.",
        step=step,
    )


class Sight:
    """Counts forwards and steps, and says what keeps the watcher from seeing a training.

    Args:
        optimizer: the optimizer of the run, as it begins.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._versions = _versions(optimizer)
        self._waiting = self._unseen = self._evaluated = self._observed = self._others = 0
        self._seen = False

    def forward(self, *, training: bool) -> str | None:
        """Count a forward; return what is wrong if so many have passed that a step should have been seen."""
        self._evaluated = 0 if training else self._evaluated + 1
        if not training:
            return None
        self._seen, self._unseen, self._waiting = True, 0, self._waiting + 1
        if self._waiting != STUCK:
            return None
        return (
            f"no step of the optimizer is seen in {STUCK:,} forwards: pass ns.watch the optimizer that is stepped, "
            "and do not compile its step"
        )

    def stepped(self, step: int) -> Finding | None:
        """Count a step of the optimizer; return what is wrong if no forward is seen between them."""
        self._seen, self._waiting, self._others, self._unseen = True, 0, 0, self._unseen + 1
        if self._unseen != BLIND:
            return None
        return eval_mode(step) if self._evaluated else unseen_forward(step, compiled=compiled_functions())

    def stepped_by(self, other: Optimizer, watched: Optimizer, step: int) -> Finding | None:
        """Count a step of another optimizer; return what is wrong if it trains the same parameters in our place."""
        self._others += 1
        if self._others % REPLACED:
            return None
        ours = {id(p) for group in watched.param_groups for p in group["params"]}
        shared = any(id(p) in ours for group in other.param_groups for p in group["params"])
        return replaced(step, other) if shared else None

    def observed(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Count a loss; return what is wrong if weights change and nothing else is seen."""
        self._observed += 1
        return self.missed(optimizer, step) if self._observed == PATIENT else None

    def missed(self, optimizer: Optimizer, step: int) -> Finding | None:
        """Return what is wrong if weights have changed while nothing was seen."""
        return unseen_step(step) if not self._seen and _versions(optimizer) != self._versions else None


def _versions(optimizer: Optimizer) -> int:
    """Return a number that every change of a weight in place raises."""
    return sum(p._version for group in optimizer.param_groups for p in group["params"])
