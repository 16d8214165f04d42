"""Data, networks and losses of rarer kinds, which cases of several topics share."""

import torch
from torch import Tensor, nn


def standardise(values: Tensor) -> Tensor:
    """Return columns of mean 0 and deviation 1."""
    return (values - values.mean(0)) / values.std(0)


def hospital_table(name: str, count: int = 128) -> tuple[Tensor, Tensor]:
    """Return rows of a table of scikit-learn as it was recorded: its columns and its target."""
    from sklearn import datasets

    columns, target = getattr(datasets, f"load_{name}")(return_X_y=True)
    rows = torch.randperm(len(target))[:count]
    return torch.tensor(columns, dtype=torch.float32)[rows], torch.tensor(target)[rows]


def observations(count: int = 128, actions: int = 3) -> tuple[Tensor, Tensor]:
    """Return standardised observations of a control task and the returns of each action, standardised too."""
    state = torch.randn(count, 4)
    best = torch.stack([torch.sin(2 * state[:, 0]), state[:, 1] * state[:, 2], state[:, 3].abs()], dim=1)[:, :actions]
    return state, standardise(best + 0.1 * torch.randn(count, actions))


def demand(count: int = 64, steps: int = 24) -> tuple[Tensor, Tensor]:
    """Return standardised series with a season and a drift, (count, steps, 1), and the value that follows each."""
    time = torch.arange(steps + 1)
    phase, drift = 6.28 * torch.rand(count, 1), 0.05 * torch.randn(count, 1)
    series = torch.sin(0.6 * time + phase) + drift * time + 0.1 * torch.randn(count, steps + 1)
    series = (series - series.mean()) / series.std()
    return series[:, :-1, None], series[:, -1:]


def survival(count: int = 128) -> tuple[Tensor, Tensor]:
    """Return standardised columns of patients, and pairs of a time (mean about 1) and whether the event was seen."""
    columns = torch.randn(count, 6)
    risk = columns[:, 0] + columns[:, 1] * columns[:, 2]
    time = -torch.log(torch.rand(count)) * torch.exp(-risk)
    return columns, torch.stack([time / time.mean(), (torch.rand(count) < 0.8).float()], dim=1)


def cox_loss(risk: Tensor, target: Tensor) -> Tensor:
    """Return the negative partial likelihood of proportional hazards."""
    risk, (time, event) = risk.flatten(), target.unbind(1)
    order = time.argsort(descending=True, stable=True)
    return -((risk[order] - risk[order].logcumsumexp(0)) * event[order]).mean()


def shapes(count: int = 24, size: int = 16) -> tuple[Tensor, Tensor]:
    """Return standardised noisy images of a bright square and the masks of the squares."""
    place = torch.randint(2, size - 7, (count, 2))
    grid = torch.arange(size)
    inside = (grid >= place[:, :, None]) & (grid < place[:, :, None] + 5)
    mask = (inside[:, 0, :, None] & inside[:, 1, None, :]).float()[:, None]
    images = mask + 0.3 * torch.randn_like(mask)
    return (images - images.mean()) / images.std(), mask


def segmenter(outputs: int = 1, width: int = 12) -> nn.Sequential:
    """Return four convolutions without a normalizer, one output per pixel."""
    layers: list[nn.Module] = []
    for inner in (1, width, width):
        conv = nn.Conv2d(inner, width, 3, padding=1)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        layers += [conv, nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, outputs, 1))


class Forecaster(nn.Module):  # A recurrent layer and a linear head for the value that follows.
    def __init__(self, recurrent: nn.RNNBase, last: nn.Module | None = None) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(recurrent.hidden_size, 1)
        self.last = last or nn.Identity()

    def forward(self, series: Tensor) -> Tensor:
        return self.last(self.head(self.recurrent(series)[0][:, -1]))


def reviews(count: int = 64, length: int = 32, longest: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids padded with 0 at the end, their lengths, and classes: does token 7 come before token 8?"""
    labels = torch.arange(count) % 2
    lengths = torch.randint(4, longest + 1, (count,))
    ids = torch.randint(10, 40, (count, length))
    for row in range(count):
        first, second = torch.randperm(int(lengths[row]))[:2].sort().values.tolist()
        ids[row, first], ids[row, second] = 8 - labels[row], 7 + labels[row]
    return ids * (torch.arange(length) < lengths[:, None]), lengths, labels
