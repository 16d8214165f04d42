"""Healthy networks for tables, graphs, sets and games: fresh, trained a little or well, some of them awkward."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case, given
from ...plants import changed, filled, over, variant
from ...training import over_tokens, train
from . import rarer


@HELD_OUT
def decoder_with_tied_words_and_its_optimizer() -> Case:
    """GPT | 4801"""
    model = nets.GPT()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    return Case(draw.text(), model, over_tokens, optimizer=optimizer)


@HELD_OUT
def the_same_block_applied_three_times() -> Case:
    """GPT | 4803"""

    # One block, three times.
    def forward_shared(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for _ in range(3):
            x = self.blocks[0](x)
        return self.head(self.norm(x))

    return Case(model=variant("Shared", nets.GPT(depth=1), forward=forward_shared), data=draw.text(), loss=over_tokens)


@HELD_OUT
def encoder_that_hides_its_padding() -> Case:
    """BERT | 4807"""

    class Reader(nn.Module):
        """A transformer of torch's own layers with a padding mask, and the mean of the words."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(40, 32, padding_idx=0)
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.places, self.head = nn.Embedding(32, 32), nn.Linear(32, 2)

        def forward(self, ids: Tensor) -> Tensor:
            padding = ids == 0
            x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
            x = self.encoder(x, src_key_padding_mask=padding).masked_fill(padding[:, :, None], 0.0)
            return self.head(x.sum(1) / (~padding).sum(1, keepdim=True))

    ids, _, y = rarer.reviews()
    return Case((ids, y), Reader(), nn.CrossEntropyLoss())


@HELD_OUT
def masked_words_to_be_filled_in() -> Case:
    """BERT | 4808"""

    class Words(nets.SentenceEncoder):
        """Predicts the word at each place."""

        def __init__(self) -> None:
            super().__init__(depth=1)
            self.head = nn.Linear(32, 50)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.encoder(self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))))

    ids, _ = draw.sentences(32)
    hidden = torch.rand(32, 16) < 0.15
    return Case((ids.masked_fill(hidden, 1), ids.masked_fill(~hidden, -100)), Words(), over_tokens)


@HELD_OUT
def packed_texts_of_different_lengths() -> Case:
    """LSTM | 4809"""

    # Words and an LSTM that stops where a text does.
    def forward_of_packed(self, ids: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(ids), (ids > 0).sum(1).cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.recurrent(packed)[1][0][-1])

    ids, _, y = rarer.reviews()
    net = nets.made("Packed", forward_of_packed)
    net.words, net.recurrent = nn.Embedding(40, 16, padding_idx=0), nn.LSTM(16, 24, batch_first=True)
    net.head = nn.Linear(24, 2)
    return Case((ids, y), net, nn.CrossEntropyLoss())


@HELD_OUT
def forget_gates_that_begin_open() -> Case:
    """LSTM | 4811"""
    model = nets.SequenceClassifier(nn.LSTM(4, 24, batch_first=True), 4)
    with torch.no_grad():
        model.recurrent.bias_hh_l0[24:48] = 1.0
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = draw.remembered_series(64, steps=25)
    return Case(data, model, nn.CrossEntropyLoss(), optimizer=optimizer)


@HELD_OUT
def a_cell_in_a_loop_with_its_state_handed_on() -> Case:
    """GRU | 4813"""

    # A GRU cell, step by step.
    def loop(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), 16)
        for step in series.unbind(1):
            state = self.cell(step, state)
        return self.head(state)

    net = nets.made("Loop", loop)
    net.cell, net.head = nn.GRUCell(3, 16), nn.Linear(16, 3)
    return Case(model=net, data=draw.waves(48, steps=20), loss=nn.CrossEntropyLoss())


@HELD_OUT
def orthogonal_tanh_network_over_thirty_steps() -> Case:
    """RNN | 4814"""
    model = nets.SequenceClassifier(nn.RNN(4, 32, batch_first=True), 4)
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    return Case(model=model, data=draw.remembered_series(64, steps=30), loss=nn.CrossEntropyLoss())


@HELD_OUT
def convolutions_padded_on_the_left_alone() -> Case:
    """time series | 4815"""

    # Dilated convolutions over tokens that see the past.
    def causal(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        for index, conv in enumerate(self.convs):
            x = x + torch.relu(conv(F.pad(x, (2**index, 0))))
        return self.head(x.transpose(1, 2))

    net = nets.made("Causal", causal)
    net.words, net.head = nn.Embedding(40, 24), nn.Linear(24, 40)
    net.convs = nn.ModuleList(nn.Conv1d(24, 24, 2, dilation=2**i) for i in range(3))
    return Case(model=net, data=draw.text(), loss=over_tokens)


@HELD_OUT
def windows_normalised_and_put_back() -> Case:
    """time series | 4816"""

    class Reversible(rarer.Forecaster):
        """Forecasts in units of the window, and puts those back."""

        def forward(self, series: Tensor) -> Tensor:
            mean, deviation = series.mean(1), series.std(1) + 1e-4
            return super().forward((series - mean[:, None]) / deviation[:, None]) * deviation + mean

    return Case(model=Reversible(nn.GRU(1, 24, batch_first=True)), data=rarer.demand(), loss="mse")


@HELD_OUT
def two_rounds_over_a_graph_trained() -> Case:
    """GNN | 4817"""
    x, edges, y = draw.communities()
    model = nets.GraphNet(edges)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case((x, y), model, "cross_entropy")


@HELD_OUT
def factors_and_small_biases_fresh() -> Case:
    """recommender | 4819"""

    class Factors(nn.Module):
        """The dot product of two vectors and two biases."""

        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
            self.user_bias, self.item_bias = nn.Embedding(40, 1), nn.Embedding(30, 1)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.3)
            for table in (self.user_bias, self.item_bias):
                nn.init.zeros_(table.weight)

        def forward(self, pairs: Tensor) -> Tensor:
            user, item = pairs.unbind(1)
            bias = self.user_bias(user) + self.item_bias(item)
            return (self.users(user) * self.items(item)).sum(1) + bias.squeeze(1)

    model = Factors()
    return Case(draw.ratings(), model, nn.MSELoss(), optimizer=partial(torch.optim.Adagrad, lr=0.05))


@HELD_OUT
def purchases_ranked_above_others_trained() -> Case:
    """recommender | 4820"""

    class Ranker(nets.Recommender):
        """Scores two items of one user."""

        def forward(self, triples: Tensor) -> Tensor:
            return torch.stack([super(Ranker, self).forward(triples[:, [0, item]]) for item in (1, 2)], dim=1)

    triples = torch.stack([torch.randint(high, (256,)) for high in (40, 30, 30)], dim=1)
    appeal = torch.randn(30)
    y = 2 * (appeal[triples[:, 1]] > appeal[triples[:, 2]]).float() - 1

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return -F.logsigmoid(target * (scores[:, 0] - scores[:, 1])).mean()

    return Case((triples, y), Ranker(), loss, steps=60)


@HELD_OUT
def student_beside_a_teacher_under_no_grad() -> Case:
    """knowledge distillation | 4824"""

    # Returns the logits of the student and of the frozen teacher.
    def distilled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.student(x), wanted

    x, y = draw.table()
    teacher = nets.mlp(12, 64, 3)
    train(teacher, x, y, F.cross_entropy, steps=100)

    def loss(output: tuple[Tensor, Tensor], label: Tensor) -> Tensor:
        near = F.kl_div((output[0] / 2).log_softmax(1), (output[1] / 2).softmax(1), reduction="batchmean")
        return 4 * near + F.cross_entropy(output[0], label)

    net = nets.made("Distilled", distilled)
    net.teacher = teacher.requires_grad_(False)
    net.student = nets.mlp(12, 24, 3)
    return Case((x, y), net, loss)


@HELD_OUT
def layers_under_autocast_and_a_loss_in_full_precision() -> Case:
    """MLP | 4826"""

    # Layers in bfloat16, weights and logits in float32.
    def mixed(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.layers(x)
        return logits.float()

    net = nets.made("Mixed", mixed)
    net.layers = nets.mlp(12, 64, 64, 3)
    return Case(model=net, data=draw.table(), loss="cross_entropy")


@HELD_OUT
def gated_attention_over_bags_trained() -> Case:
    """multiple instances | 4827"""

    # Weighs the instances of a bag, and reads their sum.
    def bag(self, bags: Tensor) -> Tensor:
        hidden = self.body(bags)
        return self.head((self.score(hidden).softmax(1) * hidden).sum(1))

    bags = torch.randn(160, 20, 8)
    y = (bags[:, :, 0].mean(1) > 0).long()
    model = nets.made("Bag", bag)
    model.body, model.score = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1)
    model.head = nn.Linear(16, 2)
    return Case((bags, y), model, nn.CrossEntropyLoss(), train=False, steps=60)


@HELD_OUT
def progression_of_a_disease_standardised() -> Case:
    """MLP | 4703"""
    x, y = rarer.hospital_table("diabetes")
    x, y = rarer.standardise(x), rarer.standardise(y.float()[:, None])
    model = nets.mlp(10, 32, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    return Case((x, y), train(model, x, y, F.mse_loss, steps=40, optimizer=optimizer), "mse", optimizer=optimizer)


@HELD_OUT
def words_counted_in_sparse_columns_trained() -> Case:
    """MLP | 4707"""
    y = torch.arange(90) % 3
    x = (torch.rand(90, 120) < 0.04).float()
    for topic in range(3):
        x[y == topic, 10 * topic : 10 * topic + 10] = (torch.rand(30, 10) < 0.5).float()
    return Case((x, y), nets.mlp(120, 32, 3), nn.CrossEntropyLoss(), steps=80)


@HELD_OUT
def residual_blocks_whose_last_layers_begin_at_zero() -> Case:
    """MLP | 4709"""

    class Residual(nn.Module):
        """Four residual blocks that begin as the identity."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)
            )
            for block in self.blocks:
                nn.init.zeros_(block[-1].weight)
                nn.init.zeros_(block[-1].bias)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = x + block(x)
            return self.head(x)

    return Case(model=Residual(), data=draw.table(), loss="cross_entropy")


@dataclass
class Answer:
    """What a network returns that has two heads."""

    logits: Tensor
    amount: Tensor


@HELD_OUT
def two_heads_in_a_dataclass() -> Case:
    """MLP | 4710"""

    # A class and an amount from one body.
    def two_heads(self, x: Tensor) -> Answer:
        hidden = self.body(x)
        return Answer(logits=self.kind(hidden), amount=self.amount(hidden))

    x, y = draw.table()
    amount = rarer.standardise(x[:, :1] + x[:, 1:2].square())
    net = nets.made("TwoHeads", two_heads)
    net.body = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    net.kind, net.amount = nn.Linear(32, 3), nn.Linear(32, 1)
    return Case(
        (x, {"kind": y, "amount": amount}),
        net,
        lambda answer, wanted: (
            F.cross_entropy(answer.logits, wanted["kind"]) + F.mse_loss(answer.amount, wanted["amount"])
        ),
    )


@HELD_OUT
def tasks_in_a_dictionary_with_labels_for_each() -> Case:
    """MLP | 4711"""

    # Three tasks from one body.
    def tasks(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        return {name: head(hidden) for name, head in self.heads.items()}

    x, kind = draw.table()
    price, sold = rarer.standardise(x[:, :1]), (x[:, 1:2] > 0).float()

    def loss(output: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
        price_error = F.mse_loss(output["price"], wanted["price"])
        sold_error = F.binary_cross_entropy_with_logits(output["sold"], wanted["sold"])
        return price_error + sold_error + F.cross_entropy(output["kind"], wanted["kind"])

    net = nets.made("Tasks", tasks)
    net.body = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
    net.heads = nn.ModuleDict({"price": nn.Linear(48, 1), "kind": nn.Linear(48, 3), "sold": nn.Linear(48, 1)})
    return Case((x, {"price": price, "kind": kind, "sold": sold}), net, loss)


@HELD_OUT
def advantage_and_value_added_up() -> Case:
    """reinforcement learning | 4717"""

    # A value and advantages less their mean.
    def dueling(self, state: Tensor) -> Tensor:
        hidden = self.body(state)
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(1, keepdim=True)

    net = nets.made("Dueling", dueling)
    net.body = nn.Sequential(nn.Linear(4, 64), nn.ReLU())
    net.value, net.advantage = nn.Linear(64, 1), nn.Linear(64, 3)
    return Case(model=net, data=rarer.observations(), loss=nn.MSELoss())


@HELD_OUT
def four_experts_with_a_hidden_layer_trained_a_little() -> Case:
    """mixture of experts | 4718"""

    # Experts with a hidden layer each, weighed by a softmax.
    def mixture(self, x: Tensor) -> Tensor:
        answers = torch.cat([expert(x) for expert in self.experts], dim=1)
        return (self.router(x).softmax(1) * answers).sum(1, keepdim=True)

    x, y = draw.regression_table()
    model = nets.made("Mixture", mixture)
    model.router = nn.Linear(8, 4)
    model.experts = nn.ModuleList(nets.mlp(8, 16, 1) for _ in range(4))
    return Case((x, y), model, "mse", steps=40)


# Rows of a table, packed.
# fmt: off
HELD_OUT("decoder-trained-for-sixty-steps | GPT | 4802", lambda: Case(draw.text(48), nets.GPT(depth=1), over_tokens,
    train=False, steps=60))
HELD_OUT("losses-of-padding-ignored | GPT | 4804", lambda: given(draw.text(), lambda ids, following:
    given(torch.arange(24) < torch.randint(10, 24, (32, 1)), lambda kept: Case((ids * kept,
    torch.where(kept, following, torch.full_like(following, -100))), nets.GPT(depth=1), over_tokens))))
HELD_OUT("two-directions-and-their-last-states-trained | LSTM | 4810", lambda: Case(draw.waves(48, steps=20),
    nets.made("Both", lambda self, series: self.head(torch.cat(list(self.recurrent(series)[1][0]), dim=1)),
    recurrent=nn.LSTM(3, 12, batch_first=True, bidirectional=True), head=nn.Linear(24, 3)), nn.CrossEntropyLoss(),
    steps=60))
HELD_OUT("demand-forecast-by-a-gru-trained | GRU | 4812", lambda: given(rarer.demand(),
    lambda x, y: given(rarer.Forecaster(nn.GRU(1, 24, batch_first=True)),
    lambda model: given(torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01),
    lambda optimizer: Case((x, y), train(model, x, y, F.mse_loss, steps=80, optimizer=optimizer), nn.MSELoss(),
    optimizer=optimizer)))))
HELD_OUT("labels-known-for-every-fourth-node | GNN | 4818", lambda: given(draw.communities(),
    lambda x, edges, y: Case((x, torch.where(torch.arange(96) % 4 == 0, y, torch.full_like(y, -100))),
    nets.GraphNet(edges), nn.CrossEntropyLoss(ignore_index=-100))))
HELD_OUT("tumours-standardised-and-fresh | MLP | 4701", lambda: given(rarer.hospital_table("breast_cancer"),
    lambda x, y: Case(model=nets.mlp(30, 32, 16, 2), data=(rarer.standardise(x), y), loss=nn.CrossEntropyLoss())))
HELD_OUT("tumours-trained-well-in-eval-mode | MLP | 4702", lambda: given(rarer.hospital_table("breast_cancer"),
    lambda x, y: Case((rarer.standardise(x), y), nn.Sequential(nn.Linear(30, 32), nn.BatchNorm1d(32), nn.ReLU(),
    nn.Dropout(0.2), nn.Linear(32, 2)), nn.CrossEntropyLoss(), train=False, steps=200)))
HELD_OUT("eight-units-and-a-batch-of-sixteen | MLP | 4704", lambda: Case(draw.table(16, columns=6, classes=2),
    nets.mlp(6, 8, 2), nn.CrossEntropyLoss()))
HELD_OUT("rare-class-weighed-rightly | MLP | 4705", lambda: given(draw.table(200, classes=5), lambda x, y: Case((x,
    (y == 4).long()), nets.mlp(12, 32, 2), nn.CrossEntropyLoss(weight=torch.tensor([0.6, 2.5])))))
HELD_OUT("three-categories-as-one-hot-columns-beside-numbers | MLP | 4706", lambda: given(draw.table(160, columns=6),
    lambda x, y: Case((torch.cat([x, *([F.one_hot(torch.randint(count, (160,)), count).float() for count in (3, 7,
    12)])], dim=1), y), nets.mlp(28, 48, 24, 3), nn.CrossEntropyLoss())))
HELD_OUT("weight-norm-on-each-layer-trained | MLP | 4708", lambda: Case(draw.regression_table(),
    nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 32)), nn.SiLU(), parametrizations.weight_norm(nn.Linear(32,
    1))), nn.MSELoss(), steps=80))
HELD_OUT("thresholds-of-grades-with-a-loss-of-logits | ordinal | 4712", lambda: given(draw.table(160, classes=5),
    lambda x, grade: Case((x, (grade[:, None] > torch.arange(4)).float()), nets.mlp(12, 32, 32, 4),
    nn.BCEWithLogitsLoss())))
HELD_OUT("proportional-hazards-fresh | survival | 4713", lambda: Case(model=nets.mlp(6, 32, 32, 1),
    data=rarer.survival(), loss=rarer.cox_loss))
HELD_OUT("proportional-hazards-trained | survival | 4714", lambda: Case(rarer.survival(), nets.mlp(6, 24, 1),
    rarer.cox_loss, steps=60))
HELD_OUT("values-of-actions-fresh-with-an-optimizer | reinforcement learning | 4715", lambda: given(nets.mlp(4, 64, 64,
    3), lambda model: Case(rarer.observations(), model, nn.SmoothL1Loss(), optimizer=partial(torch.optim.Adam,
    lr=5e-4))))
HELD_OUT("tanh-policy-with-a-small-last-layer | reinforcement learning | 4716", lambda: given(rarer.observations(),
    lambda state, returns: Case((state, returns.argmax(1)), filled("-1.bias",
    0.0)(changed(lambda model: nn.init.orthogonal_(model[-1].weight, gain=0.01))(over(lambda model: model[::2],
    lambda layer: nn.init.orthogonal_(layer.weight, gain=2**0.5))(nets.mlp(4, 64, 64, 3, activation=nn.Tanh)))),
    "cross_entropy")))
