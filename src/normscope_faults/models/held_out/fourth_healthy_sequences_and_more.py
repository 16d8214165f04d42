"""Healthy models of the fourth part: sequences, attention, graphs, recommenders, pairs, diffusion, precision."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from ...case import Case, Healthy, healthy
from .. import parts
from . import fourth_parts

HEALTHY: list[Healthy] = []


@healthy(HEALTHY, family="GPT")
def decoder_with_tied_words_and_its_optimizer() -> Case:
    torch.manual_seed(4801)
    model = parts.GPT()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    return Case(model=model, data=parts.text(), loss=parts.over_tokens, optimizer=optimizer)


@healthy(HEALTHY, family="GPT")
def decoder_trained_for_sixty_steps() -> Case:
    torch.manual_seed(4802)
    ids, following = parts.text(48)
    model = parts.GPT(depth=1)
    parts.train(model, ids, following, parts.over_tokens, steps=60)
    return Case(model=model, data=(ids, following), loss=parts.over_tokens, train=False)


@healthy(HEALTHY, family="GPT")
def the_same_block_applied_three_times() -> Case:
    torch.manual_seed(4803)

    class Shared(parts.GPT):
        """One block, three times."""

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for _ in range(3):
                x = self.blocks[0](x)
            return self.head(self.norm(x))

    return Case(model=Shared(depth=1), data=parts.text(), loss=parts.over_tokens)


@healthy(HEALTHY, family="GPT")
def losses_of_padding_ignored() -> Case:
    torch.manual_seed(4804)
    ids, following = parts.text()
    kept = torch.arange(24) < torch.randint(10, 24, (32, 1))
    following = torch.where(kept, following, torch.full_like(following, -100))
    return Case(model=parts.GPT(depth=1), data=(ids * kept, following), loss=parts.over_tokens)


@healthy(HEALTHY, family="ViT")
def vision_transformer_trained_until_it_fits() -> Case:
    torch.manual_seed(4805)
    x, y = parts.blob_images(48)
    model = parts.ViT(depth=1)
    parts.train(model, x, y, F.cross_entropy, steps=70)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="ViT")
def factors_per_channel_that_begin_at_a_hundred_thousandth() -> Case:
    torch.manual_seed(4806)

    class Scaled(parts.TransformerBlock):
        """A block whose branches are multiplied by small learned factors."""

        def __init__(self) -> None:
            super().__init__(32, 4, causal=False)
            self.factor1, self.factor2 = nn.Parameter(torch.full((32,), 1e-5)), nn.Parameter(torch.full((32,), 1e-5))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.factor1 * self.attention(self.norm1(x))
            return x + self.factor2 * self.feed(self.norm2(x))

    model = parts.ViT(depth=2)
    model.blocks = nn.Sequential(Scaled(), Scaled())
    return Case(model=model, data=parts.blob_images(32), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="BERT")
def encoder_that_hides_its_padding() -> Case:
    torch.manual_seed(4807)

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

    ids, _, y = fourth_parts.reviews()
    return Case(model=Reader(), data=(ids, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="BERT")
def masked_words_to_be_filled_in() -> Case:
    torch.manual_seed(4808)

    class Words(parts.SentenceEncoder):
        """Predicts the word at each place."""

        def __init__(self) -> None:
            super().__init__(depth=1)
            self.head = nn.Linear(32, 50)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.encoder(self.norm(self.words(ids) + self.positions(torch.arange(ids.shape[1])))))

    ids, _ = parts.sentences(32)
    hidden = torch.rand(32, 16) < 0.15
    data = (ids.masked_fill(hidden, 1), ids.masked_fill(~hidden, -100))
    return Case(model=Words(), data=data, loss=parts.over_tokens)


@healthy(HEALTHY, family="LSTM")
def packed_texts_of_different_lengths() -> Case:
    torch.manual_seed(4809)

    class Packed(nn.Module):
        """Words and an LSTM that stops where a text does."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.recurrent = nn.Embedding(40, 16, padding_idx=0), nn.LSTM(16, 24, batch_first=True)
            self.head = nn.Linear(24, 2)

        def forward(self, ids: Tensor) -> Tensor:
            packed = pack_padded_sequence(
                self.words(ids), (ids > 0).sum(1).cpu(), batch_first=True, enforce_sorted=False
            )
            return self.head(self.recurrent(packed)[1][0][-1])

    ids, _, y = fourth_parts.reviews()
    return Case(model=Packed(), data=(ids, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="LSTM")
def two_directions_and_their_last_states_trained() -> Case:
    torch.manual_seed(4810)

    class Both(nn.Module):
        """An LSTM in both directions, and a head on both last states."""

        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(3, 12, batch_first=True, bidirectional=True)
            self.head = nn.Linear(24, 3)

        def forward(self, series: Tensor) -> Tensor:
            return self.head(torch.cat(list(self.recurrent(series)[1][0]), dim=1))

    x, y = parts.waves(48, steps=20)
    model = Both()
    parts.train(model, x, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="LSTM")
def forget_gates_that_begin_open() -> Case:
    torch.manual_seed(4811)
    model = parts.SequenceClassifier(nn.LSTM(4, 24, batch_first=True), 4)
    with torch.no_grad():
        model.recurrent.bias_hh_l0[24:48] = 1.0
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    data = parts.remembered_series(64, steps=25)
    return Case(model=model, data=data, loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@healthy(HEALTHY, family="GRU")
def demand_forecast_by_a_gru_trained() -> Case:
    torch.manual_seed(4812)
    x, y = fourth_parts.demand()
    model = fourth_parts.Forecaster(nn.GRU(1, 24, batch_first=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    parts.train(model, x, y, F.mse_loss, steps=80, optimizer=optimizer)
    return Case(model=model, data=(x, y), loss=nn.MSELoss(), optimizer=optimizer)


@healthy(HEALTHY, family="GRU")
def a_cell_in_a_loop_with_its_state_handed_on() -> Case:
    torch.manual_seed(4813)

    class Loop(nn.Module):
        """A GRU cell, step by step."""

        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRUCell(3, 16), nn.Linear(16, 3)

        def forward(self, series: Tensor) -> Tensor:
            state = series.new_zeros(len(series), 16)
            for step in series.unbind(1):
                state = self.cell(step, state)
            return self.head(state)

    return Case(model=Loop(), data=parts.waves(48, steps=20), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="RNN")
def orthogonal_tanh_network_over_thirty_steps() -> Case:
    torch.manual_seed(4814)
    model = parts.SequenceClassifier(nn.RNN(4, 32, batch_first=True), 4)
    nn.init.orthogonal_(model.recurrent.weight_hh_l0)
    return Case(model=model, data=parts.remembered_series(64, steps=30), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="time series")
def convolutions_padded_on_the_left_alone() -> Case:
    torch.manual_seed(4815)

    class Causal(nn.Module):
        """Dilated convolutions over tokens that see the past."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(40, 24), nn.Linear(24, 40)
            self.convs = nn.ModuleList(nn.Conv1d(24, 24, 2, dilation=2**i) for i in range(3))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids).transpose(1, 2)
            for index, conv in enumerate(self.convs):
                x = x + torch.relu(conv(F.pad(x, (2**index, 0))))
            return self.head(x.transpose(1, 2))

    return Case(model=Causal(), data=parts.text(), loss=parts.over_tokens)


@healthy(HEALTHY, family="time series")
def windows_normalised_and_put_back() -> Case:
    torch.manual_seed(4816)

    class Reversible(fourth_parts.Forecaster):
        """Forecasts in units of the window, and puts those back."""

        def forward(self, series: Tensor) -> Tensor:
            mean, deviation = series.mean(1), series.std(1) + 1e-4
            return super().forward((series - mean[:, None]) / deviation[:, None]) * deviation + mean

    return Case(model=Reversible(nn.GRU(1, 24, batch_first=True)), data=fourth_parts.demand(), loss="mse")


@healthy(HEALTHY, family="GNN")
def two_rounds_over_a_graph_trained() -> Case:
    torch.manual_seed(4817)
    x, edges, y = parts.communities()
    model = parts.GraphNet(edges)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(50):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="GNN")
def labels_known_for_every_fourth_node() -> Case:
    torch.manual_seed(4818)
    x, edges, y = parts.communities()
    shown = torch.where(torch.arange(96) % 4 == 0, y, torch.full_like(y, -100))
    return Case(model=parts.GraphNet(edges), data=(x, shown), loss=nn.CrossEntropyLoss(ignore_index=-100))


@healthy(HEALTHY, family="recommender")
def factors_and_small_biases_fresh() -> Case:
    torch.manual_seed(4819)

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
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    return Case(model=model, data=parts.ratings(), loss=nn.MSELoss(), optimizer=optimizer)


@healthy(HEALTHY, family="recommender")
def purchases_ranked_above_others_trained() -> Case:
    torch.manual_seed(4820)

    class Ranker(parts.Recommender):
        """Scores two items of one user."""

        def forward(self, triples: Tensor) -> Tensor:
            return torch.stack([super(Ranker, self).forward(triples[:, [0, item]]) for item in (1, 2)], dim=1)

    triples = torch.stack([torch.randint(high, (256,)) for high in (40, 30, 30)], dim=1)
    appeal = torch.randn(30)
    y = 2 * (appeal[triples[:, 1]] > appeal[triples[:, 2]]).float() - 1

    def loss(scores: Tensor, target: Tensor) -> Tensor:
        return -F.logsigmoid(target * (scores[:, 0] - scores[:, 1])).mean()

    model = Ranker()
    parts.train(model, triples, y, loss, steps=60)
    return Case(model=model, data=(triples, y), loss=loss)


@healthy(HEALTHY, family="siamese")
def twins_trained_on_pairs_of_images() -> Case:
    torch.manual_seed(4821)
    pairs, same = parts.image_pairs()
    model = parts.Siamese()
    parts.train(model, pairs, same, parts.contrastive_loss, steps=40)
    return Case(model=model, data=(pairs, same), loss=parts.contrastive_loss)


@healthy(HEALTHY, family="contrastive")
def views_matched_with_a_temperature_fresh() -> Case:
    torch.manual_seed(4822)

    class Views(nn.Module):
        """Returns the similarities of all first views (rows) with all second views (columns)."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, pairs: Tensor) -> Tensor:
            first, second = (F.normalize(self.encoder(pairs[:, view]), dim=1) for view in (0, 1))
            return first @ second.T / 0.1

    base = torch.randn(48, 40)
    pairs = torch.stack([base + 0.5 * torch.randn(48, 40) for _ in range(2)], dim=1)
    return Case(model=Views(), data=(pairs, torch.arange(48)), loss=nn.CrossEntropyLoss())


@healthy(HEALTHY, family="contrastive")
def student_with_a_predictor_and_a_slow_teacher() -> Case:
    torch.manual_seed(4823)

    class Byol(nn.Module):
        """A student with a predictor, and a frozen teacher."""

        def __init__(self) -> None:
            super().__init__()
            self.student = parts.mlp(40, 64, 16)
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)
            self.predictor = nn.Linear(16, 16)

        def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
            student = self.predictor(self.student(views[:, 0]))
            return F.normalize(student, dim=1), F.normalize(self.teacher(views[:, 1]), dim=1).detach()

    base = torch.randn(96, 40)
    views = torch.stack([base + 0.3 * torch.randn_like(base) for _ in range(2)], dim=1)
    return Case(model=Byol(), data=views, objective=lambda output: (output[0] - output[1]).square().sum(1).mean())


@healthy(HEALTHY, family="knowledge distillation")
def student_beside_a_teacher_under_no_grad() -> Case:
    torch.manual_seed(4824)
    x, y = parts.table()
    teacher = parts.mlp(12, 64, 3)
    parts.train(teacher, x, y, F.cross_entropy, steps=100)

    class Distilled(nn.Module):
        """Returns the logits of the student and of the frozen teacher."""

        def __init__(self) -> None:
            super().__init__()
            self.teacher = teacher.requires_grad_(False)
            self.student = parts.mlp(12, 24, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                wanted = self.teacher(x)
            return self.student(x), wanted

    def loss(output: tuple[Tensor, Tensor], label: Tensor) -> Tensor:
        near = F.kl_div((output[0] / 2).log_softmax(1), (output[1] / 2).softmax(1), reduction="batchmean")
        return 4 * near + F.cross_entropy(output[0], label)

    return Case(model=Distilled(), data=(x, y), loss=loss)


@healthy(HEALTHY, family="diffusion")
def denoiser_trained_a_little_with_its_times() -> Case:
    torch.manual_seed(4825)
    inputs, noise = parts.noisy_images(32)
    model = parts.Denoiser(width=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(30):
        optimizer.zero_grad()
        F.mse_loss(model(**inputs), noise).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case(model=model, data=(inputs, noise), loss=nn.MSELoss(), optimizer=optimizer)


@healthy(HEALTHY, family="MLP")
def layers_under_autocast_and_a_loss_in_full_precision() -> Case:
    torch.manual_seed(4826)

    class Mixed(nn.Module):
        """Layers in bfloat16, weights and logits in float32."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = parts.mlp(12, 64, 64, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.layers(x)
            return logits.float()

    return Case(model=Mixed(), data=parts.table(), loss="cross_entropy")


@healthy(HEALTHY, family="multiple instances")
def gated_attention_over_bags_trained() -> Case:
    torch.manual_seed(4827)

    class Bag(nn.Module):
        """Weighs the instances of a bag, and reads their sum."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.score = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 1)
            self.head = nn.Linear(16, 2)

        def forward(self, bags: Tensor) -> Tensor:
            hidden = self.body(bags)
            return self.head((self.score(hidden).softmax(1) * hidden).sum(1))

    bags = torch.randn(160, 20, 8)
    y = (bags[:, :, 0].mean(1) > 0).long()
    model = Bag()
    parts.train(model, bags, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(bags, y), loss=nn.CrossEntropyLoss(), train=False)
