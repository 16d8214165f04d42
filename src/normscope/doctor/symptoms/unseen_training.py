"""Words for a watcher that cannot see the training (`monitor/unseen_training.py` finds it out).

`no-step` (warning): ten backwards, each after gradients were cleared, and no step of the optimizer: it is not called,
or a GradScaler skips all; or gradients that accumulate over 250 backwards, or to the end of the run, twice as many as
ever
`not-seen` (warning): three steps without a forward that is seen of the model or its parts (a compiled function around
the model, a copy of it); or weights that change while neither a forward nor a step is seen
"""

from __future__ import annotations

from dataclasses import replace

from .symptom import FindingWords, Symptom

FINDING_WORDS = {
    "no-step": FindingWords("the optimizer makes no step"),
    "eval-mode": FindingWords("the model is trained in eval mode"),
    "not-seen": FindingWords("the watcher sees nothing of the training"),
}
COMPILE_THE_MODEL = (
    "Compile the model, not the function around it: model = torch.compile(model), pass ns.watch that, and call "
    "optimizer.step() outside of what is compiled."
)
EVAL_MODE = Symptom(
    code="eval-mode",
    seen="The optimizer steps, and every forward in between is in eval mode{part}.",
    why="In eval mode BatchNorm uses its stored statistics and does not move them, and dropout does nothing: this is "
    "not the network that training is meant for. Nothing is measured of it.",
    advice="Call model.train() before the loop, and again after every evaluation{keep}.",
)
FORWARD_UNSEEN = Symptom(
    code="not-seen",
    seen="The optimizer steps, but no forward of the watched model is seen.",
    why="Hooks of a module do not run inside of a compiled function, nor where its forward method is called directly, "
    "nor on a copy of it. Nothing is measured.",
    advice="Pass ns.watch the object that the loop calls (the compiled module, the wrapper), and call it, not its "
    "forward method.",
)
FORWARD_COMPILED = replace(
    FORWARD_UNSEEN,
    seen="The optimizer steps, but no forward of the watched model is seen: it runs inside of a function that "
    "torch.compile has made.",
    advice=COMPILE_THE_MODEL,
)
STEP_UNSEEN = Symptom(
    code="not-seen",
    seen="Weights change, but neither a forward of the watched model nor a step of the optimizer is seen.",
    why="Hooks do not run inside of a function that torch.compile has made, and another optimizer than the one that "
    "was given is not seen. Nothing is measured.",
    advice=f"{COMPILE_THE_MODEL} Pass ns.watch the optimizer that is stepped.",
)
OPTIMIZER_REPLACED = Symptom(
    code="not-seen",
    seen="Another optimizer ({other}) trains the parameters of the one that is watched, which does not step any more.",
    why="Steps are counted and measured where the watched optimizer makes them. Nothing is measured.",
    advice="Call ns.watch with the new optimizer, with the same log to go on.",
)
NO_STEP = Symptom(
    code="no-step",
    seen="No step of the optimizer happened since step {step:,}: forward and backward ran {count} times, and gradients "
    "{gradients}.{scaler}",
    why="Weights do not change without a step: nothing is learned.",
    advice="Call optimizer.step() after each backward. If a GradScaler makes the steps, it skips all whose gradients "
    "are NaN or infinite: look at scaler.get_scale(), call scaler.update(), and find what makes them infinite.",
)
STEP_NOT_SEEN = Symptom(
    code="not-seen",
    seen="No step of the optimizer is seen in {count:,} forwards.",
    why="Steps are counted and measured where the watched optimizer makes them. Nothing is measured.",
    advice="Pass ns.watch the optimizer that is stepped, and do not compile its step.",
)
