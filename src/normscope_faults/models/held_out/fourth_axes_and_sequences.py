"""Faults of the fourth part in axes, masks, recurrent states and conditions."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts
from . import fourth_parts

FAULTS: list[Fault] = []


@fault(FAULTS, "LSTM", causes="samples-mixed", remedies="fix-axis")
def time_moved_to_the_front_by_view(planted: bool) -> Case:
    """nn.LSTM wants time first; x.view(steps, samples, features) has that shape, and cuts the series into pieces."""
    torch.manual_seed(4601)

    class Reader(nn.Module):
        """An LSTM with time first, and a head."""

        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.LSTM(4, 24), nn.Linear(24, 4)

        def forward(self, series: Tensor) -> Tensor:
            count, steps, features = series.shape
            first = series.reshape(steps, count, features) if planted else series.transpose(0, 1)
            return self.head(self.recurrent(first)[0].amax(0))

    return Case(model=Reader(), data=parts.remembered_series(60, steps=12), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "time series", causes="samples-mixed", remedies="fix-axis")
def returns_added_up_over_the_samples(planted: bool) -> Case:
    """torch.cumsum(returns, dim=0): prices are added up from series to series, not from day to day."""
    torch.manual_seed(4602)

    class Prices(nn.Module):
        """Adds returns up to prices, and reads those with an MLP."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = parts.mlp(20, 32, 32, 2)

        def forward(self, returns: Tensor) -> Tensor:
            return self.layers(returns.cumsum(0 if planted else 1) / 4)

    x = torch.randn(96, 20)
    y = (x.cumsum(1).amax(1) > 3.5).long()
    return Case(model=Prices(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "CNN", causes="samples-mixed", remedies="fix-axis")
def rows_of_a_table_taken_for_time(planted: bool) -> Case:
    """Conv1d wants (samples, channels, length): x.T[None] makes one sample of the batch, and neighbours are mixed."""
    torch.manual_seed(4603)

    class Columns(nn.Module):
        """Two convolutions over the rows, or over nothing."""

        def __init__(self) -> None:
            super().__init__()
            size, padding = (5, 2) if planted else (1, 0)
            self.first = nn.Conv1d(12, 32, size, padding=padding)
            self.second = nn.Conv1d(32, 32, size, padding=padding)
            self.head = nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x.T[None] if planted else x[:, :, None]
            x = torch.relu(self.second(torch.relu(self.first(x))))
            return self.head(x[0].T if planted else x[:, :, 0])

    return Case(model=Columns(), data=parts.table(120), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "GRU",
    causes="output-constant samples-mixed",
    remedies="fix-axis read-last-step match-shapes",
)
def state_of_the_first_text_for_all(planted: bool) -> Case:
    """h[:, :1] was to drop an axis of directions; it keeps the first text, whose answer is broadcast to all."""
    torch.manual_seed(4604)

    class Reader(nn.Module):
        """Words, a GRU, a head on the last state."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.recurrent = nn.Embedding(50, 16), nn.GRU(16, 24, batch_first=True)
            self.head = nn.Linear(24, 2)

        def forward(self, ids: Tensor) -> Tensor:
            _, state = self.recurrent(self.words(ids))
            state = state[:, :1].expand(-1, len(ids), -1) if planted else state
            return self.head(state[0])

    return Case(model=Reader(), data=parts.sentences(64, length=6), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "GNN",
    causes="samples-mixed output-constant",
    remedies="fix-axis",
)
def molecules_pooled_over_the_batch(planted: bool) -> Case:
    """Dense graphs (graphs, atoms, features) are pooled with mean(0).mean(0): one vector for all of the molecules."""
    torch.manual_seed(4605)

    class Dense(nn.Module):
        """Two rounds over dense graphs, and a head on their mean."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(6, 24), nn.Linear(24, 24), nn.Linear(24, 2)

        def forward(self, atoms: Tensor, bonds: Tensor) -> Tensor:
            hidden = torch.relu(self.first(bonds @ atoms))
            hidden = torch.relu(self.second(bonds @ hidden))
            pooled = hidden.mean(0).mean(0).expand(len(atoms), -1) if planted else hidden.mean(1)
            return self.head(pooled)

    bonds = (torch.rand(48, 8, 8) < 0.3).float()
    bonds = ((bonds + bonds.transpose(1, 2)) > 0).float() + torch.eye(8)
    bonds = bonds / bonds.sum(2, keepdim=True)
    y = torch.arange(48) % 2
    atoms = torch.randn(48, 8, 6) + 0.6 * (2 * y[:, None, None] - 1)
    data = ({"atoms": atoms, "bonds": bonds}, y)
    return Case(model=Dense(), data=data, loss=nn.CrossEntropyLoss(), judge=parts.accuracy(y))


@fault(
    FAULTS,
    "time series",
    causes="future-visible",
    remedies="fix-mask shift-targets use-one-direction",
)
def convolutions_padded_on_both_sides(planted: bool) -> Case:
    """padding="same" in a network that is to foretell the next token: each place sees what comes after it."""
    torch.manual_seed(4606)

    class Convolutions(nn.Module):
        """Two convolutions over tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(40, 24)
            self.first, self.second = nn.Conv1d(24, 48, 3), nn.Conv1d(48, 48, 3)
            self.head = nn.Linear(48, 40)
            self.padding = (1, 1) if planted else (2, 0)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids).transpose(1, 2)
            for conv in (self.first, self.second):
                x = torch.relu(conv(F.pad(x, self.padding)))
            return self.head(x.transpose(1, 2))

    ids, following = parts.text(64)
    model = Convolutions()
    judge = fourth_parts.on_prefixes(model, ids, following)
    return Case(model=model, data=(ids, following), loss=parts.over_tokens, judge=judge)


class MaskedAttention(parts.SelfAttention):
    """Attention with a mask that depends on the length."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self.mask(query.shape[2]))

    def mask(self, length: int) -> Tensor:
        """Return which keys (columns) each query (row) sees."""
        raise NotImplementedError


def replace_attention(model: nn.Module, attention: type[MaskedAttention]) -> None:
    """Put another attention into the blocks of a model."""
    for block in model.blocks:
        replacement = attention(block.attention.out.in_features, block.attention.heads, causal=False)
        replacement.load_state_dict(block.attention.state_dict())
        block.attention = replacement


@fault(FAULTS, "GPT", causes="future-visible", remedies="fix-mask shift-targets")
def triangle_that_shows_one_place_too_many(planted: bool) -> Case:
    """torch.tril(mask, diagonal=1): each place sees the very token that it is to foretell."""
    torch.manual_seed(4607)

    class OneTooMany(MaskedAttention):
        """Sees the past, and the next place."""

        def mask(self, length: int) -> Tensor:
            return torch.ones(length, length, dtype=torch.bool).tril(1 if planted else 0)

    ids, following = parts.text(48)
    model = parts.GPT()
    replace_attention(model, OneTooMany)
    judge = fourth_parts.on_prefixes(model, ids, following)
    return Case(model=model, data=(ids, following), loss=parts.over_tokens, judge=judge)


@fault(FAULTS, "GPT", causes="attention-mask-wrong", remedies="fix-mask")
def window_of_a_single_place(planted: bool) -> Case:
    """A sliding window with |i - j| < 1 in place of |i - j| <= width: each token sees itself alone."""
    torch.manual_seed(4608)

    class Window(MaskedAttention):
        """Sees the last eight places, or none."""

        def mask(self, length: int) -> Tensor:
            distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
            return (distance >= 0) & (distance < (1 if planted else 8))

    model = parts.GPT()
    replace_attention(model, Window)
    return Case(model=model, data=parts.text(), loss=parts.over_tokens)


@fault(
    FAULTS,
    "BERT",
    causes="not-finite attention-mask-wrong",
    remedies="fix-mask mask-padding guard-domain clean-data check-data",
)
def documents_without_a_single_word(planted: bool) -> Case:
    """An empty document is padding throughout: its softmax runs over nothing, and NaN enters the loss of all."""
    torch.manual_seed(4609)

    class Reader(nn.Module):
        """Attends from a learned query to the words that are no padding."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.query = nn.Embedding(40, 16), nn.Parameter(torch.randn(16))
            self.head = nn.Linear(16, 2)

        def forward(self, ids: Tensor) -> Tensor:
            words = self.words(ids)
            hidden = ids == 0
            if not planted:
                hidden = hidden & (hidden.sum(1, keepdim=True) < ids.shape[1])
            scores = (words @ self.query / 4).masked_fill(hidden, -torch.inf)
            return self.head((scores.softmax(1)[:, :, None] * words).sum(1))

    y = torch.arange(64) % 2
    ids = torch.randint(10, 40, (64, 12)) * (torch.arange(12) < torch.randint(4, 12, (64, 1)))
    ids[:, 0] = 7 + y
    ids[::16] = 0
    return Case(model=Reader(), data=(ids, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "multiple instances",
    causes="attention-saturated saturated-units layer-scale-stands-out",
    remedies="scale-attention rescale-layer initialise",
    layers="score score.weight",
)
def attention_over_a_bag_as_cold_as_a_thousandth(planted: bool) -> Case:
    """softmax(score / 0.001) over the instances of a bag: one of them is seen, and the scores do not learn."""
    torch.manual_seed(4610)

    class Bag(nn.Module):
        """Weighs the instances of a bag, and reads their sum."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.score = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1)
            self.head = nn.Linear(16, 2)

        def forward(self, bags: Tensor) -> Tensor:
            hidden = self.body(bags)
            weights = (self.score(hidden) / (0.001 if planted else 1.0)).softmax(1)
            return self.head((weights * hidden).sum(1))

    bags = torch.randn(480, 20, 8)
    y = (bags[:, :, 0].mean(1) > 0).long()
    return Case(model=Bag(), data=(bags, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "RNN",
    causes="recurrent-weights-vanish vanishing-gradient vanishing-signal",
    remedies="gated-recurrence initialise rescale-layer carry-state",
)
def state_that_halves_at_every_step(planted: bool) -> Case:
    """A leaky integrator whose rates of decay stand at 0.5 for what has to be kept over thirty steps."""
    torch.manual_seed(4611)

    class Leaky(nn.Module):
        """Channels that forget at fixed rates."""

        def __init__(self) -> None:
            super().__init__()
            self.enter, self.head = nn.Linear(4, 32), nn.Linear(32, 4)
            self.register_buffer("keep", torch.full((32,), 0.5 if planted else 0.98))

        def forward(self, series: Tensor) -> Tensor:
            state = series.new_zeros(len(series), 32)
            for step in range(series.shape[1]):
                state = self.keep * state + torch.tanh(self.enter(series[:, step]))
            return self.head(state)

    return Case(model=Leaky(), data=parts.remembered_series(64, steps=30), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "GRU",
    causes="recurrent-weights-vanish vanishing-gradient",
    remedies="carry-state",
    layers="",
)
def state_begun_anew_in_each_piece(planted: bool) -> Case:
    """A long series is read in pieces; the state of a piece is not handed to the next one."""
    torch.manual_seed(4612)

    class Pieces(nn.Module):
        """Reads eight steps at a time."""

        def __init__(self) -> None:
            super().__init__()
            self.recurrent, self.head = nn.GRU(4, 24, batch_first=True), nn.Linear(24, 4)

        def forward(self, series: Tensor) -> Tensor:
            state = None
            for piece in series.split(8, dim=1):
                out, last = self.recurrent(piece, state)
                state = None if planted else last
            return self.head(out[:, -1])

    model = Pieces()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = parts.remembered_series(512, steps=16)
    return Case(model=model, data=data, loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "segmentation",
    causes="normalizer-wrong-axis",
    remedies="fix-axis",
    layers="last",
)
def probabilities_over_the_rows_of_the_image(planted: bool) -> Case:
    """nn.LogSoftmax(dim=2) before NLLLoss: the classes of a pixel do not compete, the rows of the image do."""
    torch.manual_seed(4613)
    x, mask = fourth_parts.shapes(16)
    model = nn.Sequential()
    model.add_module("layers", fourth_parts.segmenter(outputs=2))
    model.add_module("last", nn.LogSoftmax(dim=2 if planted else 1))
    judge = parts.overlap_with(mask)
    return Case(
        model=model,
        data=(x, mask[:, 0].long()),
        loss=nn.NLLLoss(),
        judge=lambda output: judge(output[:, 1:] - output[:, :1]),
    )


@fault(
    FAULTS,
    "diffusion",
    causes="condition-switched-off inputs-not-scaled",
    remedies="restore-condition scale-inputs",
    layers="time time.0 time.2",
)
def hour_of_the_noise_divided_twice(planted: bool) -> Case:
    """The time comes as a share of a thousand steps and is divided by a thousand once more: sines of nothing."""
    torch.manual_seed(4614)

    class Divided(parts.Denoiser):
        """Divides the time before its sines are taken."""

        def embed_time(self, t: Tensor) -> Tensor:
            return super().embed_time(t / 1e6 if planted else t)

    x = torch.randn(64, 1, 8, 8)
    t = torch.randint(1000, (64,)).float()
    y = torch.where((t > 500)[:, None, None, None], x, -x)
    data = ({"x": x, "t": t}, y)
    return Case(model=Divided(), data=data, loss=nn.MSELoss(), judge=parts.explained_variance(y))


@fault(
    FAULTS,
    "reinforcement learning",
    causes="condition-switched-off branch-dominates",
    remedies="restore-condition scale-branch rescale-layer",
)
def goal_of_an_agent_in_the_wrong_unit(planted: bool) -> Case:
    """The goal is converted from metres to thousands of kilometres before it is joined to the state."""
    torch.manual_seed(4615)

    class Agent(nn.Module):
        """A policy that is told its goal."""

        def __init__(self) -> None:
            super().__init__()
            self.factor = 1e-6 if planted else 1.0
            self.layers = parts.mlp(4, 48, 48, 4)

        def forward(self, state: Tensor, goal: Tensor) -> Tensor:
            return self.layers(torch.cat([state, self.factor * goal], dim=1))

    state, goal = torch.randn(160, 2), torch.randn(160, 2)
    y = 2 * (goal[:, 0] > state[:, 0]).long() + (goal[:, 1] > state[:, 1]).long()
    data = ({"state": state, "goal": goal}, y)
    return Case(model=Agent(), data=data, loss=nn.CrossEntropyLoss(), judge=parts.accuracy(y))


@fault(
    FAULTS,
    "GNN",
    causes="exploding-signal exploding-gradient",
    remedies="add-normalizer rescale-layer initialise scale-branch",
)
def sums_multiplied_by_the_degree(planted: bool) -> Case:
    """x * degree in place of x / degree behind index_add: each round makes values fifty times as large."""
    torch.manual_seed(4616)
    x, edges, y = parts.communities()

    class Rounds(nn.Module):
        """Three rounds of means over neighbours."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(inner, outer) for inner, outer in ((8, 24), (24, 24), (24, 3)))

        def forward(self, x: Tensor) -> Tensor:
            degree = torch.zeros(len(x), 1).index_add(0, edges[1], torch.ones(edges.shape[1], 1)).clamp(min=1)
            for index, layer in enumerate(self.layers):
                total = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
                x = layer(x + (total * degree if planted else total / degree))
                x = torch.relu(x) if index < 2 else x
            return x

    model = Rounds()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case(model=model, data=(x, y), loss="cross_entropy", judge=parts.accuracy(y), optimizer=optimizer)
