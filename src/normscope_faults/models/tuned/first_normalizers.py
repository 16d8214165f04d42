"""Held-out faults of normalizers: statistics, axes, eps, modes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts

FAULTS: list[Fault] = []


def running_statistics(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the layers with running statistics."""
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


@fault(
    FAULTS,
    family="ResNet",
    causes="running-statistics-wrong",
    layers="stem.1 blocks.0.bn1 blocks.0.bn2 blocks.1.bn1 blocks.1.bn2 stem.1.running_var blocks.0.bn1.running_var "
    "blocks.0.bn2.running_var blocks.1.bn1.running_var blocks.1.bn2.running_var",
    remedies="refresh-statistics",
    source="Weights loaded with strict=False from a file that holds parameters alone: buffers stay as they began.",
)
def buffers_not_loaded(planted: bool) -> Case:
    torch.manual_seed(91)
    x, y = parts.blob_images(40)
    model = parts.ResNet(width=8, blocks=2)
    parts.train(model, x, y, F.cross_entropy, steps=50)
    if planted:
        for layer in running_statistics(model):
            layer.reset_running_stats()
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), train=False)


@fault(
    FAULTS,
    family="MLP",
    causes="running-statistics-wrong",
    layers="1 4 1.running_mean 1.running_var 4.running_mean 4.running_var",
    remedies="refresh-statistics",
    source="momentum=1e-4: the convention of another framework, in which 0.9999 is kept.",
)
def momentum_of_the_other_convention(planted: bool) -> Case:
    torch.manual_seed(92)
    x, y = parts.table(classes=3)
    x = 3 * x + 2
    momentum = 1e-4 if planted else 0.1
    model = nn.Sequential(
        nn.Linear(12, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU(),
        nn.Linear(32, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU(), nn.Linear(32, 3),
    )  # fmt: skip
    parts.train(model, x, y, F.cross_entropy, steps=200)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), train=False)


@fault(
    FAULTS,
    family="CNN",
    causes="running-statistics-wrong inputs-not-scaled",
    layers="features.1 features.4 features.8 features.11 features.1.running_mean features.1.running_var",
    remedies="scale-inputs refresh-statistics",
    source="Training with images standardised, deployment with pixels from 0 to 255.",
)
def deployed_on_unscaled_pixels(planted: bool) -> Case:
    torch.manual_seed(93)
    x, y = parts.blob_images(40)
    model = parts.ConvNet(width=8)
    parts.train(model, x, y, F.cross_entropy, steps=60)
    pixels = 255 * parts.as_pixels(x)
    return Case(model=model, data=(pixels if planted else x, y), loss=nn.CrossEntropyLoss(), train=False)


@fault(
    FAULTS,
    family="CNN",
    causes="running-statistics-wrong eps-dominates exploding-signal",
    layers="features.4 features.4.running_var",
    remedies="refresh-statistics restore-weights",
    source="A buffer named running_std in another library, loaded wrongly: one layer has a variance of 0.",
)
def running_variance_of_zero(planted: bool) -> Case:
    torch.manual_seed(94)
    x, y = parts.blob_images(40)
    model = parts.ConvNet(width=8)
    parts.train(model, x, y, F.cross_entropy, steps=40)
    if planted:
        model.features[4].running_var[2:].zero_()
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), train=False)


@fault(
    FAULTS,
    family="MLP",
    causes="normalizer-too-few-samples",
    layers="1 4",
    remedies="larger-batch replace-normalizer",
    source="BatchNorm with a batch of 2 because of memory: each value becomes -1 or 1.",
)
def batch_norm_over_two_samples(planted: bool) -> Case:
    torch.manual_seed(95)
    x, y = parts.table(2 if planted else 64, classes=2)
    model = nn.Sequential(
        nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 2),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="normalizer-erases-signal normalizer-too-few-samples output-constant dead-units normalizer-wrong-axis",
    layers="4 5 3",
    remedies="replace-normalizer fix-axis",
    source="GroupNorm(n, n) behind a linear layer, or LayerNorm(1): each group is one value and becomes 0.",
)
def groups_of_one_value(planted: bool) -> Case:
    torch.manual_seed(97)
    x, y = parts.table(classes=3)
    model = nn.Sequential(
        nn.Linear(12, 32), nn.GroupNorm(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.GroupNorm(32 if planted else 4, 32),
        nn.ReLU(), nn.Linear(32, 3),
    )  # fmt: skip
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="CNN",
    causes="normalizer-erases-signal output-constant normalizer-wrong-axis",
    layers="norm head",
    remedies="replace-normalizer fix-axis",
    source="Instance normalization directly before the mean over places: every mean is 0.",
)
def instance_norm_before_mean_pooling(planted: bool) -> Case:
    torch.manual_seed(98)

    class Pooled(nn.Module):
        """Convolutions, a normalizer, the mean over places, a head."""

        def __init__(self) -> None:
            super().__init__()
            self.body = parts.ConvNet(norm=False).features
            self.norm = nn.InstanceNorm2d(16, affine=True) if planted else nn.BatchNorm2d(16)
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.body(x)).mean((2, 3)))

    x, y = parts.blob_images(48)
    return Case(model=Pooled(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="ViT",
    causes="eps-dominates vanishing-signal output-constant",
    layers="norm blocks.0.norm1 blocks.0.norm2 blocks.1.norm1 blocks.1.norm2 blocks.2.norm1 blocks.2.norm2",
    remedies="lower-eps replace-normalizer",
    source="eps=1e3 in place of 1e-3, from a configuration file read as a string of an exponent.",
)
def layer_norms_with_huge_eps(planted: bool) -> Case:
    torch.manual_seed(99)
    x, y = parts.blob_images(32)
    model = parts.ViT()
    for module in model.modules():
        if planted and isinstance(module, nn.LayerNorm):
            module.eps = 1e3
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="MLP",
    causes="eps-dominates inputs-not-scaled vanishing-signal",
    layers="0",
    remedies="lower-eps scale-inputs",
    source="Measured strains of about 1e-6 enter a LayerNorm, which should bring them to 1 but whose eps is larger.",
)
def variance_below_eps(planted: bool) -> Case:
    torch.manual_seed(100)
    x, y = parts.table(classes=3)
    model = nn.Sequential(nn.LayerNorm(12), *parts.mlp(12, 32, 32, 3))
    return Case(model=model, data=(1e-6 * x if planted else x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="CNN",
    causes="zero-weights output-constant dead-units no-gradient",
    layers="features.1 features.4 features.8 features.11 features.1.weight features.4.weight features.8.weight "
    "features.11.weight",
    remedies="initialise",
    source="zero_init_residual applied to a network without residual connections.",
)
def gains_zero_without_residuals(planted: bool) -> Case:
    torch.manual_seed(101)
    x, y = parts.blob_images(48)
    model = parts.ConvNet()
    for layer in running_statistics(model):
        if planted:
            nn.init.zeros_(layer.weight)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    family="CNN",
    causes="wrong-mode running-statistics-wrong",
    layers=" ".join(f"features.{i}" for i in (1, 4, 8, 11, 15, 18)),
    remedies="switch-mode refresh-statistics",
    source="The backbone is put in eval mode for a validation pass and not back; a fresh BatchNorm then does nothing.",
)
def normalizers_left_in_eval_mode(planted: bool) -> Case:
    torch.manual_seed(102)
    x, y = parts.blob_images(48)
    model = parts.ConvNet(depth=6)
    for module in model.features:
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.02)
    case = Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())
    if planted:
        model.features.eval()
    return case


@fault(
    FAULTS,
    family="ResNet",
    causes="wrong-mode normalizer-too-few-samples",
    layers="stem.1 blocks.0.bn1 blocks.0.bn2 blocks.1.bn1 blocks.1.bn2 blocks stem",
    remedies="switch-mode",
    source="One part of the model back in train mode at inference: predictions depend on who else is in the batch.",
)
def normalizers_in_train_mode_at_inference(planted: bool) -> Case:
    torch.manual_seed(103)
    x, y = parts.blob_images(40)
    model = parts.ResNet(width=8, blocks=2)
    parts.train(model, x, y, F.cross_entropy, steps=50)
    rows = torch.tensor([0, 4, 8, 12])  # a request with four images of one class
    case = Case(model=model, data=x[rows], train=False, judge=parts.accuracy(y[rows]))
    if planted:
        for layer in running_statistics(model):
            layer.train()
    return case


@fault(
    FAULTS,
    family="MLP",
    causes="targets-out-of-range output-range-too-small normalizer-erases-signal activation-before-loss "
    "targets-wrong-scale",
    layers="5 4",
    remedies="remove-final-activation replace-normalizer scale-targets fix-targets",
    source="A normalizer without gain and shift behind the last layer of a regression.",
)
def output_normalised(planted: bool) -> Case:
    torch.manual_seed(104)
    x, y = parts.regression_table()
    layers = parts.mlp(8, 32, 32, 1)
    model = nn.Sequential(*layers, nn.BatchNorm1d(1, affine=False)) if planted else nn.Sequential(*layers)
    return Case(model=model, data=(x, 4 + 3 * y), loss=nn.MSELoss())


@fault(
    FAULTS,
    family="MLP",
    causes="normalizer-wrong-axis samples-mixed normalizer-erases-signal",
    layers="norm",
    remedies="fix-axis replace-normalizer",
    source="A hand-written normalizer with dim=0 meant as LayerNorm: it subtracts what a batch has in common.",
)
def batch_standardised_by_hand(planted: bool) -> Case:
    torch.manual_seed(105)

    class Centre(nn.Module):
        """Standardises over one axis."""

        def forward(self, x: Tensor) -> Tensor:
            axis = 0 if planted else 1
            return (x - x.mean(axis, keepdim=True)) / (x.std(axis, keepdim=True) + 1e-5)

    class Net(nn.Module):
        """One hidden layer, normalised."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(12, 32), Centre(), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.norm(self.first(x))))

    x = torch.randn(128, 12)
    y = (x[:, 0] > 0).long()
    x[:, 0] += torch.where(y > 0, 1.0, -1.0)
    model = Net()
    parts.train(model, x, y, F.cross_entropy, steps=80)
    rows = (y > 0).nonzero().squeeze(1)[:16]  # a request whose samples are all of one class
    return Case(model=model, data=x[rows], train=False, judge=parts.accuracy(y[rows]))
