"""False alarms, mutants found and cost of `ns.check` and `ns.watch` beside the tools of others that diagnose models.

    python benchmarks/check_beside_peers.py [--networks 60] [--mutants 60] [--processes N] [--out FILE] [--kinds]

Healthy networks are fresh ones of `benchmarks/population`, of the half of its families on which no rule of Normscope
was tuned, by turns from each package that is installed, on batches of at most 8. One is passed over if its forward and
backward take more than `MAX_PASS_SECONDS`, or if its training of 30 steps is not healthy. Mutants are those of
`benchmarks/foreign_faults.py`, of the scoring half that nobody looked at. A mutant is found if a tool gives a warning
of a kind that it does not give of the healthy model.

Each tool runs as its documentation begins, with its defaults, on a model of its own, and its own severities say what a
warning is. A tool that watches a training gets 30 steps of the population's healthy training (a warm-up of 10 steps,
clipped gradients); a mutant trains on one batch all the time. The cost is processor time in forward and backward
passes. That of a watcher holds its 30 steps, which "the training alone" has too. `--kinds` names each tool's most
frequent warnings of healthy networks; `--out` keeps the answers in a file, and a later run adds what it lacks. A peer
that is not installed is skipped. The peers, each without dependencies:

    pip install --no-deps torch-audit torchmortem torchtest2 torchdiag neuraldbg trainpulse
        training-doctor defaultplusplus torcheck stabilityguard weightwatcher powerlaw
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import logging
import multiprocessing
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import normscope as ns
from benchmarks import foreign_faults
from benchmarks.beside.faults_found import complaints_of_weightwatcher
from benchmarks.machine import header
from benchmarks.population.measuring import (
    LOSSES,
    WARM_UP_STEPS,
    Limits,
    describe,
    describe_losses,
    loss_of,
    make_optimizer,
    time_passes,
)
from benchmarks.population.networks import Network, _rank_by_name, enumerate_networks, stable_number

STEPS = 30
MAX_PASS_SECONDS = 0.2
MAX_BATCH_SIZE = 8
"""The smallest of the population, which the time of all tools together asks for."""
MAX_TOOL_SECONDS = 120
MAX_MEMORY_BYTES = 9 * 2**30
"""Address space of a process."""


@dataclass(kw_only=True)
class Setup:
    """A fresh model with what its training needs; `loss` is None for a model that computes its own."""

    model: nn.Module
    optimizer: Any
    batch: Any
    draw: Callable[[], Any]
    loss: str | None = None
    is_graph: bool = False

    def train(self, before_backward: Callable[[Tensor], Any] = lambda loss: None) -> Iterator[tuple[float, float]]:
        """Train; after each step yield its loss and the norm of its gradient before that was clipped."""
        rate = self.optimizer.param_groups[0]["lr"]
        for step in range(STEPS):
            for group in self.optimizer.param_groups:
                group["lr"] = rate * min(1.0, (step + 1) / WARM_UP_STEPS)
            self.optimizer.zero_grad()
            loss = loss_of(self.model, self.loss, self.draw() if step else self.batch)
            before_backward(loss)
            loss.backward()
            norm = nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.grad is not None], 1.0)
            self.optimizer.step()
            yield float(loss.detach()), float(norm)


class DoesNotApplyError(Exception):
    """The tool has no way to run on this model."""


def words(text: str) -> str:
    """Return a text without numbers and quoted names, which differ between layers."""
    return " ".join(re.sub(r"'[^']*'|\[[^]]*\]|\S*\d\S*", "", text).split())


def train_alone(setup: Setup) -> set[str]:
    losses = [loss for loss, _ in setup.train()]
    return set() if describe_losses(losses)["healthy"] else {"unhealthy"}


def normscope_check(setup: Setup) -> set[str]:
    result = ns.check(setup.model, setup.batch, loss=setup.loss, optimizer=setup.optimizer)
    return {finding.code for finding in result.findings if finding.severity > ns.Severity.INFO}


def normscope_watch(setup: Setup) -> set[str]:
    with ns.watch(setup.model, setup.optimizer, every=10, panel=False) as run:
        for _ in setup.train(lambda loss: run.observe(loss=loss)):
            pass
    return {finding.code for finding in run.findings if finding.severity > ns.Severity.INFO}


def torch_audit(setup: Setup) -> set[str]:
    from torch_audit import Severity, autopatch

    auditor = autopatch(setup.model, optimizer=setup.optimizer)
    next(setup.train())
    findings = auditor.finish().findings
    return {one.rule_id for one in findings if one.severity >= Severity.WARN and one.rule_id != "TA000"}


def torchmortem(setup: Setup) -> set[str]:
    from torchmortem import Autopsy
    from torchmortem.types import Severity

    with Autopsy(setup.model, optimizer=setup.optimizer) as autopsy:
        for loss, _ in setup.train():
            autopsy.step(loss=loss)
    findings = autopsy.get_report().findings
    return {finding.title.split(" in ")[0] for finding in findings if finding.severity >= Severity.WARNING}


def torchtest2(setup: Setup) -> set[str]:
    from torchtest2 import check_model

    inputs, target = (setup.batch, None) if setup.loss is None else setup.batch
    options = {"batch_dim": None} if setup.is_graph else {}
    loss = LOSSES.get(setup.loss or "")
    report = check_model(setup.model, inputs, target, loss_fn=loss, optimizer=setup.optimizer, **options)
    names = {result.name for result in (*report.failures, *report.warnings)}
    if "forward" in names:
        raise DoesNotApplyError(report["forward"].message)
    return names


def torchdiag(setup: Setup) -> set[str]:
    import torchdiag

    if setup.loss is None or isinstance(setup.batch[0], tuple):
        raise DoesNotApplyError("takes a model of one tensor with a loss of its output")
    (x, y), model = setup.batch, setup.model
    with contextlib.redirect_stdout(io.StringIO()) as text:
        torchdiag.summary(model)
        torchdiag.check_dead_neurons(model, x)
        torchdiag.verify_step(model, setup.optimizer, LOSSES[setup.loss], x, y)
        setup.optimizer.zero_grad()
        loss_of(model, setup.loss, setup.batch).backward()
        torchdiag.check_gradients(model)
    if "FAILED" in text.getvalue():
        raise DoesNotApplyError("its step failed")
    issues = "vanishing|exploding|disconnected|neurons dead|None gradients|not finite|not learn"
    return set(re.findall(rf"^  • .*({issues})", text.getvalue(), re.MULTILINE))


def neuraldbg(setup: Setup) -> set[str]:
    from neuraldbg import NeuralDbg

    with NeuralDbg(setup.model) as debugger:
        for loss, _ in setup.train():
            debugger.record_loss(loss)
            debugger.step += 1
    events = [event for event in debugger.get_events() if event.to_state not in ("healthy", "normal", "stable")]
    return {f"{event.event_type.value}: {event.to_state}" for event in events}


def trainpulse(setup: Setup) -> set[str]:
    from trainpulse import Monitor

    monitor = Monitor()
    for step, (loss, norm) in enumerate(setup.train()):
        monitor.log("loss", step, loss)
        monitor.log("grad_norm", step, norm)
        monitor.log("learning_rate", step, setup.optimizer.param_groups[0]["lr"])
    return {words(alert.message) for alert in monitor.report().alerts if alert.severity.value != "info"}


def training_doctor(setup: Setup) -> set[str]:
    from training_doctor import Doctor

    doctor = Doctor()
    for step, (loss, norm) in enumerate(setup.train()):
        doctor.log(step=step, loss=loss, lr=setup.optimizer.param_groups[0]["lr"], grad_norm=norm)
    return {diagnosis.problem for diagnosis in doctor.diagnoses if diagnosis.severity.value != "info"}


def defaultplusplus(setup: Setup) -> set[str]:
    from defaultplusplus import FeatureExtractor
    from defaultplusplus.diagnosis import load_pretrained
    from defaultplusplus.processing import RuntimeNormalizer

    if setup.loss is not None:
        raise DoesNotApplyError("is made for encoders and decoders of transformers")
    if setup.model.config._attn_implementation != "with_faults":
        setup.model.set_attn_implementation("eager")
    draw, more = setup.draw, {"output_attentions": True, "output_hidden_states": True}
    setup.batch, setup.draw = setup.batch | more, lambda: draw() | more
    seen: dict[str, Any] = {}
    try:
        extractor = FeatureExtractor(setup.model)
    except ValueError as error:
        raise DoesNotApplyError(str(error)) from error
    keep = setup.model.register_forward_hook(
        lambda module, args, batch, outputs: seen.update(batch, outputs=outputs), with_kwargs=True
    )
    names = ("outputs", "input_ids", "attention_mask", "labels")
    with extractor:
        for loss, _ in setup.train():
            extractor.step(loss=loss, optimizer=setup.optimizer, **{name: seen.get(name) for name in names})
        extractor.epoch_end(0)
        features = extractor.finalize()
    keep.remove()
    encoded = RuntimeNormalizer.load(extractor.arch).encode(features, mode="raw")
    diagnosis = load_pretrained(extractor.arch).predict(encoded)
    return {diagnosis.category or "faulty"} if diagnosis.is_faulty else set()


def torcheck(setup: Setup) -> set[str]:
    from torcheck.registry import Registry

    registry = Registry()
    registry.register(setup.optimizer)
    registry.add_module_changing_check(setup.model)
    if setup.loss is not None:  # its other checks want an output that is a tensor
        registry.add_module_nan_check(setup.model)
        registry.add_module_inf_check(setup.model)
    try:
        for _ in setup.train():
            pass
    except RuntimeError as error:
        errors = set(re.findall("should change|contains NaN|contains inf", str(error)))
        if not errors:
            raise
        return errors
    return set()


def stabilityguard(setup: Setup) -> set[str]:
    from stabilityguard import GuardedOptimizer

    setup.optimizer = GuardedOptimizer(setup.optimizer, setup.model)
    for _ in setup.train():
        pass
    return {"spike"} if setup.optimizer.total_spikes else set()


def weightwatcher(setup: Setup) -> set[str]:
    return {kind for kind, _ in complaints_of_weightwatcher(SimpleNamespace(model=setup.model))}


TOOLS: dict[str, tuple[str, Callable[[Setup], set[str]], str]] = {
    "the training alone": ("torch", train_alone, "30 steps that nothing watches; healthy networks are chosen by it"),
    "ns.check": ("normscope", normscope_check, "once; from WARNING"),
    "ns.watch": ("normscope", normscope_watch, "30 steps, every=10; from WARNING"),
    "torch-audit": ("torch-audit", torch_audit, "autopatch, one step (it audits one of 1000); from WARN, not TA000"),
    "torchtest2": ("torchtest2", torchtest2, "check_model, which trains on the batch and undoes it; WARN and FAIL"),
    "torchdiag": ("torchdiag", torchdiag, "its four commands, one step; every issue that is printed"),
    "torchmortem": ("torchmortem", torchmortem, "30 steps; from WARNING; meant for longer runs"),
    "neuraldbg": ("neuraldbg", neuraldbg, "30 steps; events to a bad state; meant for runs that failed"),
    "trainpulse": ("trainpulse", trainpulse, "30 steps; from WARNING; sees the loss, the gradient's norm and the rate"),
    "training-doctor": ("training-doctor", training_doctor, "30 steps; from WARNING; sees the same; meant for longer"),
    "stabilityguard": ("stabilityguard", stabilityguard, "30 steps, 10 of them warm-up; a spike; meant for long runs"),
    "torcheck": ("torcheck", torcheck, "30 steps, changing, nan and inf checks; errors; released for torch below 2"),
    "defaultplusplus": ("defaultplusplus", defaultplusplus, "30 steps, one epoch; is_faulty; meant for fine-tuning"),
    "weightwatcher": ("weightwatcher", weightwatcher, "analyze(), once; its warnings; meant for trained models"),
}  # fmt: skip
"""By name: the package, how it is run, and what counts as a warning."""

SUBJECTS: list[Network | tuple[int, str]] = []
"""The networks and mutants, which processes inherit since networks cannot be sent to them."""

Answer = tuple[list[str] | str, float]
"""The kinds of a tool's warnings, or why it cannot run, and its cost in passes."""


def set_up_network(network: Network) -> Setup:
    torch.manual_seed(stable_number(network.name))
    batch_size = min(network.batch_size, MAX_BATCH_SIZE)
    model, draw = network.build()
    generator = torch.Generator().manual_seed(stable_number(network.name) + 1)
    optimizer = make_optimizer(network, model.train(), describe(model)["kind"])
    is_graph = network.package == "torch_geometric"
    draw_batch = lambda: draw(batch_size, generator)  # noqa: E731
    return Setup(
        model=model, optimizer=optimizer, batch=draw_batch(), draw=draw_batch, loss=network.loss, is_graph=is_graph
    )


def set_up_mutant(mutant: tuple[int, str]) -> Setup:
    row, kind = mutant
    model = foreign_faults.build_mutant(row, kind)
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    batch = foreign_faults.build_batch(kind)
    return Setup(model=model, optimizer=optimizer, batch=batch, draw=lambda: batch)


def describe_subject(subject: Network | tuple[int, str]) -> str:
    if isinstance(subject, Network):
        return f"{subject.package} {subject.name}"
    return " ".join((*foreign_faults.FAULTS[subject[0]][:2], subject[1]))


def ask_all_tools(place: int) -> dict[str, Answer] | None:
    """Return what each tool says of one of `SUBJECTS`; None for a network that is passed over."""
    subject = SUBJECTS[place]
    is_network = isinstance(subject, Network)
    set_up: Any = set_up_network if is_network else set_up_mutant
    answers: dict[str, Answer] = {}
    with contextlib.ExitStack() as quiet:
        quiet.enter_context(contextlib.redirect_stdout(io.StringIO()))
        quiet.enter_context(contextlib.redirect_stderr(io.StringIO()))
        quiet.enter_context(contextlib.chdir(quiet.enter_context(tempfile.TemporaryDirectory())))
        try:
            setup = set_up(subject)
            passes = time_passes(setup.model, setup.loss, setup.batch, Limits())
        except Exception:
            return None
        if is_network and passes > MAX_PASS_SECONDS:
            return None
        for name in installed_tools():
            answers[name] = ask(TOOLS[name][1], set_up(subject), passes)
            if is_network and name == "the training alone" and answers[name][0]:
                return None
    return answers


def ask(tool: Callable[[Setup], set[str]], setup: Setup, passes: float) -> Answer:
    """Run a tool within its limit of processor time."""
    signal.setitimer(signal.ITIMER_PROF, MAX_TOOL_SECONDS)
    started = time.process_time()
    try:
        kinds: list[str] | str = sorted(tool(setup))
    except Exception as error:
        kinds = f"{type(error).__name__}: {str(error).strip()[:100]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return kinds, (time.process_time() - started) / passes


def installed_tools() -> list[str]:
    names = []
    for name, (package, _, _) in TOOLS.items():
        with contextlib.suppress(PackageNotFoundError):
            version(package)
            names.append(name)
    return names


def prepare_process() -> None:
    """Set the limits of a process, and import the tools, whose import is no part of their cost."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    foreign_faults.transformers.logging.set_verbosity_error()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))

    def end_tool(*args: Any) -> None:
        raise TimeoutError(f"longer than {MAX_TOOL_SECONDS} s")

    signal.signal(signal.SIGPROF, end_tool)
    for name in installed_tools():
        with contextlib.redirect_stdout(io.StringIO()):
            import_module(TOOLS[name][0].replace("-", "_"))


def choose_networks() -> Iterator[Network]:
    """Yield networks of the held-out half by turns from each package, in a stable order, small vision models first."""
    networks, missing = enumerate_networks()
    by_package: dict[str, list[Network]] = defaultdict(list)
    for network in networks:
        if network.half == "held-out":
            by_package[network.package].append(network)
    print("packages:", ", ".join(sorted(by_package)), "- not installed:", ", ".join(sorted(missing)) or "none")
    for package in ("timm", "torchvision"):
        by_package[package].sort(key=lambda network: _rank_by_name(network.name))
    for turn in itertools.zip_longest(*(by_package[package] for package in sorted(by_package))):
        yield from filter(None, turn)


def choose_mutants(count: int) -> list[tuple[int, str]]:
    """Return mutants of operators of the scoring half that nobody looked at, in the order of a hash."""
    mutants = []
    for row, (operator, form, _, kinds) in enumerate(foreign_faults.FAULTS):
        tuned = hashlib.sha256(operator.encode()).digest()[0] % 2 == 0
        if operator != "healthy" and not tuned and operator not in foreign_faults.SEEN_WHILE_TRIED:
            mutants += [(stable_number(f"{operator} {form} {kind}"), (row, kind)) for kind in kinds]
    return [mutant for _, mutant in sorted(mutants)[:count]]


def describe_count(hits: list[bool]) -> str:
    return f"{sum(hits)} of {len(hits)} ({sum(hits) / len(hits):.0%})" if hits else "runs on none"


def main() -> None:
    """Ask all tools of networks and mutants, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file that keeps the answers")
    parser.add_argument("--kinds", action="store_true", help="name the warnings that healthy networks get most often")
    chosen = parser.parse_args()
    begun = time.perf_counter()
    print(header())
    mutants = choose_mutants(chosen.mutants)
    models: list[tuple[int, str]] = [(0, kind) for kind in foreign_faults.ALL] + mutants
    SUBJECTS.extend(models)
    SUBJECTS.extend(choose_networks())
    kept = dict(map(json.loads, chosen.out.read_text().splitlines())) if chosen.out and chosen.out.exists() else {}
    with multiprocessing.get_context("fork").Pool(chosen.processes, prepare_process) as pool:

        def ask_of(places: Iterable[int]) -> list[Any]:
            names = {place: describe_subject(SUBJECTS[place]) for place in places}
            new = [place for place, name in names.items() if name not in kept]
            for place, answers in zip(new, pool.imap(ask_all_tools, new)):
                kept[names[place]] = answers
                if chosen.out:
                    with chosen.out.open("a") as file:
                        file.write(json.dumps((names[place], answers)) + "\n")
            return [kept[name] for name in names.values()]

        of_models = ask_of(range(len(models)))
        networks, packages, passed_over = list[dict[str, Answer]](), Counter[str](), 0
        candidates = iter(range(len(models), len(SUBJECTS)))
        while len(networks) < chosen.networks and (places := list(itertools.islice(candidates, 4 * chosen.processes))):
            for place, answers in zip(places, ask_of(places)):
                passed_over += answers is None
                if answers is not None and len(networks) < chosen.networks:
                    networks.append(answers)
                    packages[SUBJECTS[place].package] += 1
    healthy, of_mutants = dict(zip(foreign_faults.ALL, of_models)), of_models[len(foreign_faults.ALL) :]
    of_packages = ", ".join(f"{package} {count}" for package, count in packages.most_common())
    print(f"{len(networks)} healthy networks ({of_packages}), {passed_over} passed over")
    operators = {foreign_faults.FAULTS[row][0] for row, _ in mutants}
    print(f"{len(mutants)} mutants of {len(operators)} operators\n")
    row = "{:21} {:9} {:>16} {:>16} {:>8} {:>8}"
    print(row.format("", "version", "healthy networks", "mutants", "passes:", "passes:"))
    print(row.format("tool", "", "with a warning", "found", "networks", "mutants"))
    for name, (package, *_) in TOOLS.items():
        if name not in installed_tools():
            print(f"{name:21} not installed")
            continue
        of_networks = [answers[name] for answers in networks]
        alarms = [bool(kinds) for kinds, _ in of_networks if not isinstance(kinds, str)]
        found, costs = [], []
        for (_, kind), answers in zip(mutants, of_mutants, strict=True):
            (kinds, cost), (usual, _) = answers[name], healthy[kind][name]
            if not isinstance(usual, str) and not isinstance(kinds, str):
                found.append(not set(kinds) <= set(usual))
                costs.append(cost)
        spent = [cost for kinds, cost in of_networks if not isinstance(kinds, str)]
        cost, cost_of_mutants = (f"{median(one):.1f}" if one else "" for one in (spent, costs))
        print(row.format(name, version(package), describe_count(alarms), describe_count(found), cost, cost_of_mutants))
    print()
    for name in installed_tools():
        print(f"{name}: {TOOLS[name][2]}.")
    for name in installed_tools() if chosen.kinds else ():
        kinds = [answers[name][0] for answers in networks]
        common = Counter(kind for one in kinds if not isinstance(one, str) for kind in one).most_common(4)
        print(f"\n{name}: " + ("; ".join(f"{kind} {count}" for kind, count in common) or "no warning"))
        everywhere = kinds + [answers[name][0] for answers in of_mutants]
        for reason, count in Counter(one for one in everywhere if isinstance(one, str)).most_common(3):
            print(f"    does not run, {count}: {reason}")
    print(f"\n{time.perf_counter() - begun:.0f} s.")


if __name__ == "__main__":
    main()
