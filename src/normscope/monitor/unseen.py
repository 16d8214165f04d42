"""What a watcher says when it sees nothing, as findings: at once, for no record will come."""

from __future__ import annotations

from ..core.finding import Finding, Severity

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
