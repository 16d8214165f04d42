"""One watched training run of Than's appendix E; curves are written after every epoch, and a run can be resumed."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from normscope import Run, watch
from normscope.data import Split, cifar10, digits
from normscope.toolkit import InputError, Watch, from_plain, to_plain, write_text

from ..base import Job, Measured, Settings
from ..origin import origin
from ..vision import efficientnet, relu_network, resnet18

WEIGHTS = (nn.Linear, nn.Conv2d)
NORMALIZERS = (nn.BatchNorm1d, nn.BatchNorm2d)
VARIANCES = ("variance", "typical", "inverse", "inverse_l2", "gain", "gain_l2")
"""The figures that are kept of a layer's input variances, each as log10.

- `variance`: their mean over the channels (or units), `typical`: their geometric mean.
- `inverse`: the largest 1/sigma, the exact norm of the normalizer without its scale; `inverse_l2`: the l2 norm of the
  vector of all 1/sigma, which Lemma 1 prints.
- `gain`, `gain_l2`: the same with the scale, gamma/sigma, as the Slides have it.
"""


def weight_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers and convolutions by name, in order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, WEIGHTS)}


def sites(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose input variances are taken: the normalizers, or the ReLUs where there are none."""
    kind: Any = NORMALIZERS if any(isinstance(module, NORMALIZERS) for module in model.modules()) else nn.ReLU
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


@torch.no_grad()
def input_variances(model: nn.Module, batch: Tensor) -> dict[str, list[float]]:
    """Return the figures of `VARIANCES` at each site for one batch in train mode.

    A copy is run, so that the model keeps its running statistics and its hooks are not called.
    """
    variances: dict[str, Tensor] = {}
    copied = copy.deepcopy(model).train()
    modules = sites(copied)
    for name, module in modules.items():
        module.register_forward_pre_hook(_recorder(variances, name))
    copied(batch)
    rows = torch.stack([_figures(variances[name], module) for name, module in modules.items()]).cpu()
    return {quantity: rows[:, index].tolist() for index, quantity in enumerate(VARIANCES)}


def _recorder(variances: dict[str, Tensor], name: str) -> Callable[..., None]:
    """Return a hook that records the variances of a module's input under a name."""

    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0].detach().double()
        variances[name] = x.var(dim=[axis for axis in range(x.ndim) if axis != 1], correction=0)

    return record


def _figures(variance: Tensor, module: nn.Module) -> Tensor:
    eps = module.eps if isinstance(module, NORMALIZERS) else 0.0
    gamma = module.weight.detach().double().abs() if isinstance(module, NORMALIZERS) else torch.ones_like(variance)
    inverse = (variance + eps).rsqrt()
    gain = gamma * inverse
    statistics = (
        variance.mean(),
        variance.log().mean().exp(),
        inverse.amax(),
        inverse.norm(),
        gain.amax(),
        gain.norm(),
    )
    return torch.stack(statistics).log10()


@torch.no_grad()
def matrix_norms(model: nn.Module, *, reshaped: bool) -> dict[str, list[float]]:
    """Return log10 of every weight's Frobenius norm and, with `reshaped`, of its reshaped kernel's spectral norm."""
    kernels = [module.weight.detach().flatten(1).double() for module in weight_layers(model).values()]  # type: ignore[operator]
    summary = {"frobenius": torch.stack([kernel.norm() for kernel in kernels]).log10().tolist()}
    if reshaped:
        largest = [_spectral(kernel) for kernel in kernels]
        summary["reshaped"] = torch.stack(largest).log10().tolist()
    return summary


def _spectral(kernel: Tensor) -> Tensor:
    """Return the largest singular value, from the smaller Gram matrix, scaled so that nothing underflows."""
    size = kernel.abs().amax().clamp_min(torch.finfo(kernel.dtype).tiny)
    scaled = kernel / size
    gram = scaled @ scaled.T if scaled.shape[0] <= scaled.shape[1] else scaled.T @ scaled
    return torch.linalg.eigvalsh(gram)[-1].clamp_min(0.0).sqrt() * size


CURVES, CHECKPOINT, LOG = "measured.json", "checkpoint.pt", "log"
DECAYS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "coupled": torch.optim.Adam,
    "decoupled": torch.optim.AdamW,
    "none": partial(torch.optim.Adam),
}
"""How the weight decay acts: added to the gradient (L2, what torch's Adam does), beside it (AdamW), or not at all."""
TITLES = {"coupled": "Adam with L2", "decoupled": "AdamW", "none": "Adam without decay"}
NETWORKS = {
    "relu": "ReLU network",
    "relu_bn": "ReLU network with BatchNorm",
    "resnet18": "ResNet18",
    "efficientnet_b3": "EfficientNet-B3",
}
JPEG = "CIFAR-10, whose images went through JPEG (quality 75) once"


def jobs(settings: Settings) -> list[Job]:
    """Return one job per network and kind of decay, in the order of importance."""
    return [Job(f"{network} {decay}") for network in settings["networks"] for decay in settings["decays"]]


def measure(settings: Settings, job: Job, folder: Path | None) -> Measured:
    """Train one network and return its curves."""
    if folder is not None:
        return _Training(settings, job, folder).run()
    with TemporaryDirectory() as temporary:
        return _Training(settings, job, Path(temporary)).run()


def load(settings: Settings) -> tuple[Split, str]:
    """Return the data, with images scaled so that the largest norm in training is 1, and a description of the data."""
    if settings["data"] == "digits":
        split, what = digits(generator=torch.Generator().manual_seed(0)), "scikit-learn's digits"
    elif "data_folder" not in settings:
        raise InputError("this needs CIFAR-10: give the folder of its batches with --data")
    else:
        split, what = cifar10(settings["data_folder"], limit=settings.get("images"), standardise=False), JPEG
    some = split.train_images[: settings.get("images")]
    largest = some.flatten(1).norm(dim=1).max()
    return Split(
        train_images=some / largest,
        train_labels=split.train_labels[: len(some)],
        test_images=split.test_images / largest,
        test_labels=split.test_labels,
    ), what


def network(settings: Settings, name: str, shape: tuple[int, int, int], generator: torch.Generator) -> nn.Module:
    """Return a network of the figures, at the size of the settings."""
    if name in ("relu", "relu_bn"):
        size = {"depth": settings["depth"], "width": settings["width"], "batch_norm": name == "relu_bn"}
        return relu_network(shape, generator=generator, **size)
    if name == "resnet18":
        return resnet18(shape[0], generator=generator, base=settings["base"])
    return efficientnet(shape[0], generator=generator, **settings["efficientnet"])


class _Training:
    """A training run with its curves so far."""

    def __init__(self, settings: Settings, job: Job, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.name, self.decay = job.kind.split()
        self.seed = job.seed
        split, data = load(settings)
        narrow = self.name in settings["autocast"] and self.device.type == "cuda"
        self.cast = partial(torch.autocast, "cuda", dtype=torch.bfloat16) if narrow else nullcontext
        image = split.train_images[0]
        generator = torch.Generator().manual_seed(self.seed)
        self.model = network(settings, self.name, tuple(image.shape), generator).to(self.device)  # type: ignore[arg-type]
        self.layout = torch.contiguous_format
        if self.name == "resnet18":  # this layout would make EfficientNet-B3 slower
            self.layout = torch.channels_last
            self.model = self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.train = (self._placed(split.train_images), split.train_labels.to(self.device))
        self.test = (self._placed(split.test_images), split.test_labels.to(self.device))
        decay = {} if self.decay == "none" else {"weight_decay": settings["weight_decay"]}
        fused = {"fused": True} if self.device.type == "cuda" else {}
        self.optimizer = DECAYS[self.decay](self.model.parameters(), lr=settings["learning_rate"], **decay, **fused)
        self.steps = len(self.train[0]) // settings["batch_size"]
        self.curves: dict[str, Any] = {
            "network": self.name,
            "decay": self.decay,
            "data": data,
            "origin": origin(),
            "precision": "bfloat16 autocast" if narrow else "float32",
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "layers": list(weight_layers(self.model)),
            "sites": list(sites(self.model)),
            "epochs": [],
            "frobenius": [],
            "reshaped": [],
            **{quantity: [] for quantity in VARIANCES},
            "loss": [],
            "train_accuracy": [],
            "test_accuracy": [],
        }
        self.epoch = self._resume()

    def run(self) -> Measured:
        """Train to the last epoch."""
        total, every = self.settings["epochs"], self.settings["watch_every"]
        if self.epoch == 0:
            self._probe(0)
        schedule = {"economy": max(1, round(self.steps * every)), "full": self.steps * self.settings["search_every"]}
        quickest = torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False)
        folder = self.folder / LOG
        with quickest, watch(self.model, self.optimizer, every=schedule, overhead=None, log=folder, panel=False) as run:
            run.step = self.epoch * self.steps
            while self.epoch < total:
                self._one_epoch(run)
                self.epoch += 1
                self._probe(self.epoch)
                if self.epoch % self.settings["keep_every"] == 0:
                    self._keep()
                run.flush()
                self._write()
        return self._write()

    def _one_epoch(self, run: Watch) -> None:
        images, labels = self.train
        size, generator = self.settings["batch_size"], torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        order = torch.randperm(len(images), generator=generator).to(self.device)
        right, losses = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        self.model.train()
        for rows in order[: self.steps * size].split(size):
            self.optimizer.zero_grad()
            with self.cast():
                output = self.model(images[rows])
                loss = nn.functional.cross_entropy(output, labels[rows])
            run.observe(loss=loss)
            loss.backward()
            self.optimizer.step()
            losses += loss.detach()
            right += (output.detach().argmax(1) == labels[rows]).sum()
        self.curves["loss"].append(float(losses) / self.steps)
        self.curves["train_accuracy"].append(float(right) / (self.steps * size))

    def _probe(self, epoch: int) -> None:
        """Add the norms, variances and accuracies of the model after so many epochs to the curves."""
        last = epoch == self.settings["epochs"]
        seldom = epoch % self.settings["reshape_every"] == 0 or last
        statistics = matrix_norms(self.model, reshaped=seldom)
        rows = torch.arange(self.settings["batch_size"], device=self.device)
        statistics |= input_variances(self.model, self.train[0][rows])
        self.curves["epochs"].append(epoch)
        for quantity, values in statistics.items():
            self.curves[quantity].append(values if quantity != "reshaped" else [epoch, values])
        if seldom:
            self.curves["test_accuracy"].append([epoch, self._accuracy()])

    @torch.no_grad()
    def _accuracy(self) -> float:
        self.model.eval()
        images, labels = self.test
        right = 0
        for part, answers in zip(images.split(1000), labels.split(1000)):
            with self.cast():
                right += int((self.model(part).argmax(1) == answers).sum())
        return right / len(labels)

    def _placed(self, images: Tensor) -> Tensor:
        return images.to(self.device).contiguous(memory_format=self.layout)

    def _write(self) -> Measured:
        """Write the curves so far, with the operator norms and alarms of the watched run."""
        watched = Run(self.folder / LOG)
        course = watched.course("weight", "log10_norm")
        norms: dict[int, list[float | None]] = {}
        for index, layer in enumerate(self.curves["layers"]):
            for step, value in course.get(layer, ()):
                norms.setdefault(step, [None] * len(self.curves["layers"]))[index] = value
        totals = {record.step: record.total for record in watched.records}
        statistics = self.curves | {
            "done": self.epoch,
            "operator": [[step / self.steps, values] for step, values in sorted(norms.items())],
            "printed": [[step / self.steps, one.get("log10_printed")] for step, one in totals.items()],
            "folded": [[step / self.steps, one.get("log10_folded")] for step, one in totals.items()],
            "findings": _first(watched.findings),
        }
        written: dict[str, Any] = json.loads(json.dumps(to_plain(rounded(statistics)), allow_nan=False))
        write_text(self.folder / CURVES, json.dumps(written, separators=(",", ":")) + "\n")
        return dict(from_plain(written))

    def _keep(self) -> None:
        """Write a checkpoint from which the run can be resumed."""
        path = self.folder / f"{CHECKPOINT}.new"
        state = {
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "curves": json.dumps(to_plain(self.curves)),
        }
        torch.save(state, path)
        path.replace(self.folder / CHECKPOINT)

    def _resume(self) -> int:
        """Load the last checkpoint, if there is one; return how many epochs are done."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return 0
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.curves = from_plain(json.loads(state["curves"]))
        return int(state["epoch"])


def _first(findings: Iterable[Any]) -> list[list[str]]:
    """Return the code and the layer of each alarm once."""
    return [list(pair) for pair in dict.fromkeys((finding.code, finding.where) for finding in findings)]


def rounded(value: Any, digits: int = 4) -> Any:
    """Return nested data with rounded figures; curves need no more decimals, and files stay small."""
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return round(value, digits) if isinstance(value, float) and math.isfinite(value) else value
