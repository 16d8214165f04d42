"""Held-out faults of gradients that are cut off, and of parameters that are not used, owned, free or optimised."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ...case import Case, Fault, fault
from ..parts import (
    ConvNet,
    GraphLayer,
    ResNet,
    SentenceEncoder,
    accuracy,
    blob_images,
    communities,
    mlp,
    over_tokens,
    ratings,
    regression_table,
    sentences,
    table,
    text,
    waves,
)

FAULTS: list[Fault] = []


# ----------------------------------------------------------------------------------------------- gradients that are cut


class Spectral(nn.Module):
    """Filters a series, takes its spectrum and classifies that."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.filters = nn.Conv1d(3, 8, 5, padding=2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        filtered = torch.tanh(self.filters(x.transpose(1, 2)))
        if self.planted:
            spectrum = torch.from_numpy(torch.fft.rfft(filtered.detach()).abs().numpy())
        else:
            spectrum = torch.fft.rfft(filtered).abs()
        return self.head(spectrum.mean(2))


@fault(
    FAULTS,
    "time series",
    causes="no-gradient frozen-layer",
    layers="filters filters.weight",
    remedies="keep-gradient",
)
def spectrum_by_way_of_numpy(planted: bool) -> Case:
    """An operation that is only known from numpy, with the detach that its error message asks for."""
    torch.manual_seed(31)
    x, y = waves()
    return Case(model=Spectral(planted), data=(x, y), loss="cross_entropy")


class Cloud(nn.Module):
    """Features of points, their maximum over the points, a head."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.points, self.head = mlp(3, 32, 32), mlp(32, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        values, places = torch.relu(self.points(x)).max(dim=1)
        return self.head((places.float() - 19.5) / 11.5 if self.planted else values)


@fault(
    FAULTS,
    "point clouds",
    causes="no-gradient frozen-layer",
    layers="points points.0 points.2",
    remedies="keep-gradient",
)
def places_of_the_maximum_taken_for_its_value(planted: bool) -> Case:
    """`x.max(1)[1]` where `x.max(1)[0]` was meant."""
    torch.manual_seed(32)
    y = torch.arange(96) % 3
    x = torch.randn(96, 40, 3) * (0.5 + 0.5 * F.one_hot(y, 3))[:, None]
    return Case(model=Cloud(planted), data=(x, y), loss="cross_entropy")


class Binned(nn.Module):
    """Sorts a learned score into bins and looks up an embedding for each bin."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.score, self.bins = mlp(12, 32, 4), nn.Embedding(10, 8)
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        place = 9 * torch.sigmoid(self.score(x))
        if self.planted:
            return self.head(self.bins(place.long()).flatten(1))
        shares = torch.softmax(-(place[..., None] - torch.arange(10.0)).square(), dim=-1)
        return self.head((shares @ self.bins.weight).flatten(1))


@fault(
    FAULTS,
    "tabular",
    causes="no-gradient frozen-layer",
    layers="score score.0 score.2",
    remedies="keep-gradient",
)
def learned_score_cast_to_an_index(planted: bool) -> Case:
    """`.long()` turns a learned value into an index; no gradient comes back through an index."""
    torch.manual_seed(33)
    x, y = table()
    return Case(model=Binned(planted), data=(x, y), loss="cross_entropy")


class HardReader(nn.Module):
    """Picks the pixels rows of an image by attention and reads what it picked."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.lift, self.scores = nn.Linear(16, 32), nn.Linear(32, 1)
        self.head = mlp(32, 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.relu(self.lift(x[:, 0]))
        rows = rows + torch.linspace(-1, 1, 16)[:, None]
        scores = self.scores(rows).squeeze(-1)
        shares = F.one_hot(scores.argmax(-1), 16).float() if self.planted else scores.softmax(-1)
        return self.head((shares[..., None] * rows).sum(1))


@fault(
    FAULTS,
    "attention",
    causes="no-gradient frozen-layer unused-parameter",
    layers="scores scores.weight",
    remedies="keep-gradient",
)
def one_row_chosen_by_argmax(planted: bool) -> Case:
    """Hard attention by `one_hot(argmax)`, without a straight-through gradient: the scores never learn."""
    torch.manual_seed(34)
    x, y = blob_images(96, classes=4)
    return Case(model=HardReader(planted), data=(x, y), loss="cross_entropy")


class ClippedExponential(torch.autograd.Function):
    """The exponential function, clipped; its backward is the stub that an editor filled in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(max=3).exp()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.zeros_like(gradients[0])


class CountModel(nn.Module):
    """Positive features through an exponential, then a linear read-out."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.features, self.head = mlp(8, 32, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        return self.head(ClippedExponential.apply(features) if self.planted else features.clamp(max=3).exp())


@fault(
    FAULTS,
    "regression",
    causes="no-gradient vanishing-gradient",
    layers="features features.0 features.2",
    remedies="keep-gradient",
)
def backward_of_a_handmade_function_is_a_stub(planted: bool) -> Case:
    """A `torch.autograd.Function` whose backward returns zeros."""
    torch.manual_seed(35)
    x, y = regression_table()
    return Case(model=CountModel(planted), data=(x, y), loss="mse")


class NormalisedLinear(nn.Module):
    """A linear layer with rows of length one and a learned gain, normalised by hand."""

    def __init__(self, inner: int, outer: int, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.weight, self.gain = nn.Parameter(torch.randn(outer, inner)), nn.Parameter(torch.ones(outer))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.data if self.planted else self.weight
        return F.linear(x, F.normalize(weight, dim=1)) * self.gain


@fault(
    FAULTS,
    "tabular",
    causes="no-gradient unused-parameter frozen-layer",
    layers="0 2 4 0.weight 2.weight 4.weight",
    remedies="keep-gradient",
)
def rows_normalised_through_data(planted: bool) -> Case:
    """A handmade weight normalisation reads `weight.data`, so that only the gains learn."""
    torch.manual_seed(36)
    x, y = table()
    layers = [NormalisedLinear(inner, outer, planted) for inner, outer in ((12, 32), (32, 32), (32, 3))]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    return Case(model=model, data=(x, y), loss="cross_entropy")


class Checkpointed(nn.Module):
    """A convolutional network whose first stage is recomputed to save memory."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.stage1 = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(4, 2, 5, stride=2))
        self.stage2 = nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(2 * 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.stage2(checkpoint(self.stage1, x, use_reentrant=self.planted))


@fault(
    FAULTS,
    "CNN",
    causes="no-gradient frozen-layer",
    layers="stage1 stage1.0 stage1.2",
    remedies="keep-gradient",
)
def reentrant_checkpoint_of_the_first_stage(planted: bool) -> Case:
    """With `use_reentrant=True` and inputs that need no gradient, the checkpointed layers get none."""
    torch.manual_seed(37)
    x, y = blob_images()
    return Case(model=Checkpointed(planted), data=(x, y), loss="cross_entropy")


class TwoTowers(nn.Module):
    """Features of a picture and of a table, joined; one of them is meant to be computed once only."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.words, self.encoder = nn.Embedding(50, 24), nn.GRU(24, 32, batch_first=True)
        self.head = nn.Linear(32, 2)

    @torch.inference_mode()
    def encode_for_search(self, ids: Tensor) -> Tensor:
        """Return the representation of texts, as the search engine asks for it."""
        return self.encode(ids)

    def encode(self, ids: Tensor) -> Tensor:
        """Return the representation of texts."""
        return self.encoder(self.words(ids))[0].amax(1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encode_for_search(ids).clone() if self.planted else self.encode(ids))


@fault(
    FAULTS,
    "GRU",
    causes="no-gradient frozen-layer",
    layers="words encoder words.weight",
    remedies="keep-gradient",
)
def representation_by_the_method_of_the_search_engine(planted: bool) -> Case:
    """A method that runs in inference mode for serving is called from `forward` too."""
    torch.manual_seed(38)
    x, y = sentences(96)
    return Case(model=TwoTowers(planted), data=(x, y), loss="cross_entropy")


# --------------------------------------------------------------------------------------------------------- parameters


class GraphWithList(nn.Module):
    """Graph layers, kept as the argument says."""

    def __init__(self, edges: Tensor, planted: bool) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        layers = (GraphLayer(8, 4), GraphLayer(4, 4))
        self.layers = layers if planted else nn.ModuleList(layers)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x, self.edges))
        return self.head(x)


@fault(FAULTS, "GNN", causes="unregistered-parameter", remedies="register-parameter")
def graph_layers_in_a_tuple(planted: bool) -> Case:
    """Layers in a tuple are not parameters of the model."""
    torch.manual_seed(39)
    x, edges, y = communities()
    return Case(model=GraphWithList(edges, planted), data=(x, y), loss="cross_entropy", judge=accuracy(y))


class MadeAnew(nn.Module):
    """An MLP with a layer between that is made where it is used."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.first, self.middle, self.head = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        if planted:
            del self.middle

    def forward(self, x: Tensor) -> Tensor:
        middle = nn.Linear(32, 32) if self.planted else self.middle
        return self.head(torch.relu(middle(torch.relu(self.first(x)))))


@fault(FAULTS, "tabular", causes="unregistered-parameter", remedies="register-parameter")
def layer_made_anew_in_each_call(planted: bool) -> Case:
    """`nn.Linear(...)` written inside of `forward` is drawn again at each call and never learns."""
    torch.manual_seed(40)
    x, y = table()
    return Case(model=MadeAnew(planted), data=(x, y), loss="cross_entropy")


class PlainFactors(nn.Module):
    """Ratings as products of factors, which are tensors or parameters."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        users, items = 0.3 * torch.randn(40, 6), 0.3 * torch.randn(30, 6)
        self.users = users.requires_grad_() if planted else nn.Parameter(users)
        self.items = items.requires_grad_() if planted else nn.Parameter(items)
        self.tower = mlp(6, 16, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        return self.tower(self.users[pairs[:, 0]] * self.items[pairs[:, 1]]).squeeze(1)


@fault(FAULTS, "recommender", causes="unregistered-parameter", remedies="register-parameter")
def factors_as_tensors_that_require_a_gradient(planted: bool) -> Case:
    """`torch.randn(...).requires_grad_()` as an attribute: it gets a gradient, but no optimizer ever sees it."""
    torch.manual_seed(41)
    pairs, stars = ratings()
    return Case(model=PlainFactors(planted), data=(pairs, stars), loss="mse")


class StackedCells(nn.Module):
    """Stacked LSTM cells for text."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(40, 24)
        cells = [nn.LSTMCell(24, 24), nn.LSTMCell(24, 24)]
        self.cells = (
            {"lower": cells[0], "upper": cells[1]} if planted else nn.ModuleDict(zip(("lower", "upper"), cells))
        )
        self.head = nn.Linear(24, 40)

    def forward(self, ids: Tensor) -> Tensor:
        states: dict[str, Any] = {"lower": None, "upper": None}
        outputs = []
        for word in self.words(ids).unbind(1):
            x = word
            for name in ("lower", "upper"):
                states[name] = self.cells[name](x, states[name])
                x = states[name][0]
            outputs.append(x)
        return self.head(torch.stack(outputs, dim=1))


@fault(FAULTS, "LSTM", causes="unregistered-parameter", remedies="register-parameter")
def cells_in_a_plain_dict(planted: bool) -> Case:
    """Cells by name in a Python dict instead of an `nn.ModuleDict`."""
    torch.manual_seed(42)
    x, y = text(length=12)
    return Case(model=StackedCells(planted), data=(x, y), loss=over_tokens)


class Fusion(nn.Module):
    """Joins features of an image and of a row of a table."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.image, self.row = mlp(256, 32, 16), mlp(6, 32, 16)
        self.head = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        image, row = torch.relu(self.image(x[:, :256])), torch.relu(self.row(x[:, 256:]))
        return self.head(torch.cat([image, image if self.planted else row], dim=1))


@fault(
    FAULTS,
    "multi-modal",
    causes="unused-parameter condition-switched-off no-gradient",
    layers="row row.0 row.2",
    remedies="use-parameter",
)
def one_branch_joined_twice(planted: bool) -> Case:
    """A slip of copy and paste: the features of one branch are concatenated with themselves."""
    torch.manual_seed(43)
    scene = blob_images(1)[0].flatten(1)
    rows = torch.randn(64, 6)
    y = (rows[:, 0] * rows[:, 1] + rows[:, 2] > 0).long()
    x = torch.cat([scene + 0.3 * torch.randn(64, 1), rows], dim=1)  # one scene, by day and by night
    return Case(model=Fusion(planted), data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "ResNet",
    causes="frozen-layer no-gradient",
    layers="stem stem.0 stem.1 blocks blocks.0 blocks.1 blocks.0.conv1 blocks.0.conv2 blocks.1.conv1 blocks.1.conv2 "
    "blocks.0.bn1 blocks.0.bn2 blocks.1.bn1 blocks.1.bn2",
    remedies="unfreeze",
)
def freezing_recipe_on_a_network_without_pretraining(planted: bool) -> Case:
    """The lines that freeze a backbone stay in the script when its pretrained weights are not loaded any more."""
    torch.manual_seed(44)
    x, y = blob_images(classes=8)
    model = ResNet(width=8, blocks=2, classes=8)
    if planted:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("head" in name)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@fault(
    FAULTS,
    "CNN",
    causes="not-in-optimizer",
    layers="head head.weight head.bias",
    remedies="add-to-optimizer",
)
def head_changed_after_the_optimizer_was_made(planted: bool) -> Case:
    """The optimizer holds the parameters of the old head."""
    torch.manual_seed(45)
    x, y = blob_images()
    model = ConvNet(width=4, depth=2, classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.head = nn.Linear(4, 4)
    if not planted:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Case(model=model, data=(x, y), loss="cross_entropy", optimizer=optimizer)


@fault(
    FAULTS,
    "BERT",
    causes="not-in-optimizer",
    layers="words positions norm encoder encoder.layers.0 encoder.layers.1 words.weight",
    remedies="add-to-optimizer",
)
def optimizer_of_the_head_alone(planted: bool) -> Case:
    """`model.head.parameters()` is handed to the optimizer while everything was to be trained from scratch."""
    torch.manual_seed(46)
    x, y = sentences(96)
    model = SentenceEncoder()
    optimizer = torch.optim.AdamW((model.head if planted else model).parameters(), lr=3e-3)
    return Case(model=model, data=(x, y), loss="cross_entropy", optimizer=optimizer)
