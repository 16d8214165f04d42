"""Faults of the training code: gradients cut off, parameters unused, frozen, unregistered or not in the optimizer."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from ...case import Case, Fault, fault
from ..parts import (
    GPT,
    Autoencoder,
    ConvNet,
    Generator,
    GraphNet,
    Recommender,
    ResNet,
    SentenceEncoder,
    UNet,
    ViT,
    blob_images,
    communities,
    discriminator,
    mlp,
    over_tokens,
    overlap_with,
    ratings,
    regression_table,
    remembered_series,
    sentences,
    table,
    text,
    train,
)

FAULTS: list[Fault] = []


def standardised(images: Tensor) -> Tensor:
    """Return flattened images of mean 0 and standard deviation 1."""
    flat = images.flatten(1)
    return (flat - flat.mean()) / flat.std()


# ------------------------------------------------------------------------------------------------------- gradients cut


class CutGraphNet(GraphNet):
    cut = True

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, self.edges))
            x = x.detach() if self.cut else x
        return self.layers[-1](x, self.edges)


@fault(FAULTS, "GNN", causes="no-gradient", layers="layers.0 layers.0.own layers.0.neighbour layers.1 layers.1.own "
       "layers.1.neighbour layers.2", remedies="keep-gradient")  # fmt: skip
def graph_layers_detached_to_save_memory(planted: bool) -> Case:
    """PyTorch forums: "out of memory, so I detach the node states between layers"."""
    torch.manual_seed(21)
    x, edges, labels = communities()
    model = CutGraphNet(edges, width=4, depth=4)
    model.cut = planted
    return Case(model=model, data=(x, labels), loss="cross_entropy")


class GuardedAutoencoder(Autoencoder):
    guarded = True

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.guarded):
            code = self.encoder(x)
        return self.decoder(code)


@fault(
    FAULTS,
    "autoencoder",
    causes="no-gradient",
    layers="encoder encoder.0 encoder.2 encoder.4",
    remedies="keep-gradient",
)
def encoder_inside_of_a_no_grad_block(planted: bool) -> Case:
    """The block for feature extraction was copied from the evaluation script into forward."""
    torch.manual_seed(22)
    images = standardised(blob_images()[0])
    model = GuardedAutoencoder(code=4)
    model.guarded = planted
    return Case(model=model, data=(images, images), loss="mse")


class RebuiltFeatures(ConvNet):
    rebuilt = True

    def forward(self, x: Tensor) -> Tensor:
        rows = [row.mean((1, 2)) for row in self.features(x)]
        pooled = torch.tensor([row.tolist() for row in rows]) if self.rebuilt else torch.stack(rows)
        return self.head(pooled)


@fault(
    FAULTS, "CNN", causes="no-gradient", remedies="keep-gradient",
    layers="features features.0 features.1 features.3 features.4 features.7 features.8 features.10 features.11",
)  # fmt: skip
def features_rebuilt_from_lists(planted: bool) -> Case:
    """PyTorch forums: torch.tensor(list_of_results) makes a new leaf without history."""
    torch.manual_seed(23)
    model = RebuiltFeatures(width=6)
    model.rebuilt = planted
    return Case(model=model, data=blob_images(), loss="cross_entropy")


class QuantisedAutoencoder(nn.Module):
    """An autoencoder whose code is the nearest of 16 learned vectors."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(256, 64, 8), mlp(8, 64, 256)
        self.codes = nn.Parameter(torch.randn(16, 8))
        self.straight = straight

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        nearest = self.codes[torch.cdist(code, self.codes).argmin(1)]
        return self.decoder(
            code + (nearest - code).detach() + 0.1 * (nearest - nearest.detach()) if self.straight else nearest
        )


@fault(FAULTS, "autoencoder", causes="no-gradient", layers="encoder encoder.0 encoder.2", remedies="keep-gradient")
def nearest_code_without_straight_through(planted: bool) -> Case:
    """GitHub on VQ-VAE: the encoder gets no gradient because argmin has none."""
    torch.manual_seed(24)
    images = standardised(blob_images(classes=8)[0])
    return Case(model=QuantisedAutoencoder(not planted), data=(images, images), loss="mse")


class DataRecommender(Recommender):
    by_data = True

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = self.users.weight[pairs[:, 0]], self.items.weight[pairs[:, 1]]
        if self.by_data:
            users, items = self.users.weight.data[pairs[:, 0]], self.items.weight.data[pairs[:, 1]]
        return self.tower(torch.cat([users, items], dim=1)).squeeze(1)


@fault(
    FAULTS, "recommender", causes="no-gradient unused-parameter", layers="users items users.weight items.weight",
    remedies="keep-gradient",
)  # fmt: skip
def embeddings_read_through_data(planted: bool) -> Case:
    """PyTorch forums: `.weight.data[index]` looks up the rows without their history."""
    torch.manual_seed(25)
    model = DataRecommender()
    model.by_data = planted
    return Case(model=model, data=ratings(), loss="mse")


class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x > 0).float()


@fault(
    FAULTS, "tabular", causes="no-gradient activation-unsuitable", layers="0 1 2 3 4",
    remedies="keep-gradient change-activation",
)  # fmt: skip
def hidden_units_are_steps(planted: bool) -> Case:
    """Stack Overflow: a perceptron's step as the activation of a network that is trained by gradients."""
    torch.manual_seed(26)
    model = mlp(12, 24, 24, 3)
    if planted:
        model[1], model[3] = Step(), Step()
    return Case(model=model, data=table(), loss="cross_entropy")


class Rounding(nn.Module):
    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.straight = straight

    def forward(self, x: Tensor) -> Tensor:
        rounded = torch.round(8 * x) / 8
        return x + (rounded - x).detach() if self.straight else rounded


@fault(
    FAULTS, "regression", causes="no-gradient", layers="0 1 2 3", remedies="keep-gradient",
)  # fmt: skip
def activations_rounded_for_quantisation(planted: bool) -> Case:
    """Quantisation-aware training by torch.round, whose derivative is zero everywhere."""
    torch.manual_seed(27)
    layers = list(mlp(8, 24, 24, 24, 1))
    model = nn.Sequential(*layers[:4], Rounding(not planted), *layers[4:])
    return Case(model=model, data=regression_table(), loss="mse")


class CellLoop(nn.Module):
    """An LSTM cell in a loop over the steps, whose state may be cut off from its history or begun anew."""

    def __init__(self, detached: bool = False, anew: bool = False) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 24), nn.Linear(24, 4)
        nn.init.constant_(self.cell.bias_ih[24:48], 2.0)
        self.detached, self.anew = detached, anew

    def forward(self, series: Tensor) -> Tensor:
        state = None
        for step in series.unbind(1):
            if self.detached and state is not None:
                state = (state[0].detach(), state[1].detach())
            state = self.cell(step, None if self.anew else state)
        return self.head(state[0])


@fault(
    FAULTS, "LSTM", causes="no-gradient vanishing-gradient recurrent-weights-vanish", layers="cell",
    remedies="keep-gradient",
)  # fmt: skip
def state_detached_at_every_step(planted: bool) -> Case:
    """PyTorch forums: "Trying to backward a second time" was cured by detaching the state inside of the loop."""
    torch.manual_seed(28)
    return Case(model=CellLoop(detached=planted), data=remembered_series(steps=12), loss="cross_entropy")


def loss_of_detached_output(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output.detach(), target)


@fault(FAULTS, "regression", causes="no-gradient loss-gradient-zero", remedies="keep-gradient")
def loss_of_a_detached_prediction(planted: bool) -> Case:
    """Stack Overflow: "element 0 of tensors does not require grad"; the metric's detach went into the loss."""
    torch.manual_seed(29)
    model = mlp(8, 32, 32, 1)
    return Case(model=model, data=regression_table(), loss=loss_of_detached_output if planted else F.mse_loss)


class Painter(nn.Module):
    """A generator that is judged by a fixed discriminator, as in the step of a GAN that trains the generator."""

    def __init__(self, critic: nn.Module, detached: bool) -> None:
        super().__init__()
        self.generator, self.critic, self.detached = Generator(), critic.requires_grad_(False), detached

    def forward(self, noise: Tensor) -> Tensor:
        fakes = self.generator(noise)
        return self.critic(fakes.detach() if self.detached else fakes)


@fault(
    FAULTS, "GAN", causes="no-gradient", remedies="keep-gradient",
    layers="generator generator.layers generator.layers.0 generator.layers.1 generator.layers.3 generator.layers.4 "
    "generator.layers.6",
)  # fmt: skip
def fakes_detached_in_the_step_of_the_generator(planted: bool) -> Case:
    """GitHub on DCGAN: the `.detach()` of the discriminator's step was copied into the generator's."""
    torch.manual_seed(30)
    images, _ = blob_images(32)
    critic = discriminator()
    both = torch.cat([images.clamp(-1, 1), 0.1 * torch.randn(32, 1, 16, 16)])
    train(critic, both, torch.arange(64)[:, None].lt(32).float(), F.binary_cross_entropy_with_logits, steps=30)
    model = Painter(critic, planted)
    optimizer = Adam(model.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    return Case(
        model=model, data=(torch.randn(32, 16), torch.ones(32, 1)), loss=nn.BCEWithLogitsLoss(), optimizer=optimizer,
        judge=lambda scores: torch.sigmoid(scores).mean().item(),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- parameters


class ListedLayers(nn.Module):
    """A network whose hidden layers stand in a Python list or in a ModuleList."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 24), nn.Linear(24, 1)
        hidden = [nn.Linear(24, 24) for _ in range(6)]
        self.hidden = hidden if plain else nn.ModuleList(hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        for layer in self.hidden:
            x = x + torch.tanh(3 * layer(x)) if layer is self.hidden[0] else torch.tanh(2 * layer(x))
        return self.head(x)


@fault(FAULTS, "regression", causes="unregistered-parameter", remedies="register-parameter")
def hidden_layers_in_a_python_list(planted: bool) -> Case:
    """The most frequent question of this kind: model.parameters() does not see what stands in a list."""
    torch.manual_seed(31)
    return Case(model=ListedLayers(planted), data=regression_table(), loss="mse")


class TwoTasks(nn.Module):
    """A trunk and one head per task, kept in a dict, whose outputs are joined."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*mlp(8, 32, 32), nn.ReLU())
        heads = {"rise": mlp(32, 16, 1), "fall": mlp(32, 16, 1)}
        for head in heads.values():
            head[2].weight.data.mul_(0.1)
        for parameter in (p for head in heads.values() for p in head.parameters()):
            parameter.data.mul_(0.1)
        self.heads = heads if plain else nn.ModuleDict(heads)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x)
        return torch.cat([self.heads["rise"](hidden), self.heads["fall"](hidden)], dim=1)


@fault(FAULTS, "multi-task", causes="unregistered-parameter", remedies="register-parameter")
def heads_in_a_python_dict(planted: bool) -> Case:
    """Heads of several tasks in a dict by name: neither moved to the GPU nor trained."""
    torch.manual_seed(32)
    x, y = regression_table()
    return Case(model=TwoTasks(planted), data=(x, torch.cat([y, -y.square() + 1], dim=1)), loss="mse")


class TensorHead(nn.Module):
    """A convolutional trunk with a head of a plain tensor or of a parameter."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.trunk = ConvNet(width=12)
        self.trunk.head = nn.Identity()
        weight = torch.zeros(12, 4)
        self.weight = weight.requires_grad_() if plain else nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x) @ self.weight


@fault(
    FAULTS,
    "CNN",
    causes="unregistered-parameter zero-weights output-constant",
    remedies="register-parameter initialise",
)
def head_is_a_plain_tensor(planted: bool) -> Case:
    """PyTorch forums: `torch.zeros(..., requires_grad=True)` as an attribute is no parameter."""
    torch.manual_seed(33)
    return Case(model=TensorHead(planted), data=blob_images(), loss="cross_entropy")


@fault(
    FAULTS, "ResNet", causes="frozen-layer no-gradient",
    layers="head stem stem.0 blocks blocks.0 blocks.1 blocks.2 blocks.0.conv1 head.weight head.bias",
    remedies="unfreeze",
)  # fmt: skip
def head_replaced_before_everything_is_frozen(planted: bool) -> Case:
    """Transfer learning: the loop that freezes the trunk runs after the new head was put on, and freezes it as well."""
    torch.manual_seed(34)
    images, labels = blob_images()
    model = ResNet()
    model.head = nn.Linear(12, 4)
    for parameter in model.parameters():
        parameter.requires_grad_(not planted)
    return Case(model=model, data=(images, labels), loss="cross_entropy", optimizer=Adam(model.parameters(), lr=3e-3))


@fault(
    FAULTS, "BERT", causes="frozen-layer zero-weights", layers="words words.weight",
    remedies="unfreeze initialise restore-weights",
)  # fmt: skip
def table_of_word_vectors_empty_and_frozen(planted: bool) -> Case:
    """nn.Embedding.from_pretrained freezes by default; here no word was found in the file, so that all rows are 0."""
    torch.manual_seed(35)
    model = SentenceEncoder()
    if planted:
        model.words = nn.Embedding.from_pretrained(torch.zeros(50, 32))
    return Case(model=model, data=sentences(), loss="cross_entropy")


class ForgetfulViT(ViT):
    forgets = True

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.places
        attended = self.blocks(x)
        return self.head(self.norm(x if self.forgets else attended)[:, 0])


@fault(
    FAULTS, "ViT", causes="unused-parameter output-constant", remedies="use-parameter",
    layers="blocks blocks.0 blocks.1 blocks.2 patches blocks.0.attention blocks.0.attention.qkv blocks.0.attention.out "
    "blocks.0.norm1 blocks.0.norm2 blocks.0.feed.0 blocks.0.feed.2 blocks.1.attention.qkv blocks.2.attention.qkv",
)  # fmt: skip
def result_of_the_blocks_not_used(planted: bool) -> Case:
    """UMLAUT's and the forums' classic: `self.blocks(x)` without assigning it to x."""
    torch.manual_seed(36)
    model = ForgetfulViT()
    model.forgets = planted
    return Case(model=model, data=blob_images(), loss="cross_entropy")


class CopyPasteRecommender(Recommender):
    pasted = True

    def forward(self, pairs: Tensor) -> Tensor:
        items = self.users(pairs[:, 0]) if self.pasted else self.items(pairs[:, 1])
        return self.tower(torch.cat([self.users(pairs[:, 0]), items], dim=1)).squeeze(1)


@fault(FAULTS, "recommender", causes="unused-parameter", layers="items items.weight", remedies="use-parameter")
def users_looked_up_twice(planted: bool) -> Case:
    """A copied line that was not changed: the items are never looked up."""
    torch.manual_seed(37)
    model = CopyPasteRecommender()
    model.pasted = planted
    return Case(model=model, data=ratings(), loss="mse")


class OneArmedUNet(UNet):
    one_armed = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.one_armed:
            return super().forward(x)
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        low = self.bottom(F.max_pool2d(second, 2))
        self.up2(torch.cat([F.interpolate(low, scale_factor=2), second], dim=1))
        wide = F.interpolate(low, scale_factor=4)
        return self.head(wide[:, :8])


@fault(
    FAULTS, "segmentation", causes="unused-parameter",
    layers="up1 up2 up1.0 up1.1 up1.3 up1.4 up2.0 up2.1 up2.3 up2.4", remedies="use-parameter",
)  # fmt: skip
def way_up_of_a_unet_not_used(planted: bool) -> Case:
    """The head reads the bottom: what the way up computes is thrown away."""
    torch.manual_seed(38)
    images, _ = blob_images(24)
    fine = (images > 1.0).float()
    model = OneArmedUNet()
    model.one_armed = planted
    loss = nn.BCEWithLogitsLoss()
    return Case(model=model, data=(images, fine), loss=loss, judge=overlap_with(fine))


@fault(
    FAULTS, "GPT", causes="not-in-optimizer", remedies="add-to-optimizer",
    layers="blocks blocks.0 blocks.1 blocks.0.attention.qkv blocks.0.attention.out blocks.0.feed.0 blocks.0.feed.2 "
    "blocks.1.attention.qkv blocks.1.attention.out blocks.1.feed.0 blocks.1.feed.2 blocks.0.attention.qkv.weight "
    "blocks.0.attention.out.weight blocks.0.feed.0.weight blocks.0.feed.2.weight blocks.1.attention.qkv.weight tokens "
    "blocks.1.attention.out.weight blocks.1.feed.0.weight blocks.1.feed.2.weight tokens.weight positions "
    "positions.weight blocks.0.attention blocks.0.feed blocks.1.attention blocks.1.feed",
)  # fmt: skip
def group_with_decay_left_out(planted: bool) -> Case:
    """GitHub: the parameters are sorted into those with and without decay, and only one of the two groups is passed."""
    torch.manual_seed(39)
    model = GPT()
    with_decay = [p for p in model.parameters() if p.ndim >= 2]
    without = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": without, "weight_decay": 0.0}]
    if not planted:
        groups.append({"params": with_decay, "weight_decay": 0.01})
    return Case(model=model, data=text(), loss=over_tokens, optimizer=torch.optim.AdamW(groups, lr=3e-3))


@fault(
    FAULTS, "GAN", causes="not-in-optimizer", remedies="add-to-optimizer",
    layers="0 2 5 0.weight 2.weight 5.weight 0.bias 2.bias 5.bias",
)  # fmt: skip
def optimizer_of_the_discriminator_holds_the_generator(planted: bool) -> Case:
    """GitHub on DCGAN: `optimizerD = Adam(netG.parameters())`."""
    torch.manual_seed(40)
    generator, model = Generator(), discriminator()
    images, _ = blob_images(32)
    with torch.no_grad():
        fakes = generator(torch.randn(32, 16))
    both = torch.cat([images.clamp(-1, 1), fakes])
    real = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
    optimizer = Adam((generator if planted else model).parameters(), lr=2e-3, betas=(0.5, 0.999))
    judge = lambda output: ((output > 0) == (real > 0.5)).float().mean().item()  # noqa: E731
    return Case(model=model, data=(both, real), loss=nn.BCEWithLogitsLoss(), optimizer=optimizer, judge=judge)


@fault(
    FAULTS, "tabular", causes="not-in-optimizer", remedies="add-to-optimizer",
    layers="0 2 4 0.weight 2.weight 4.weight 0.bias 2.bias 4.bias",
)  # fmt: skip
def optimizer_holds_a_copy_of_the_model(planted: bool) -> Case:
    """PyTorch forums: the model is copied (moved, re-created) after the optimizer was made."""
    torch.manual_seed(41)
    model = mlp(12, 48, 48, 3)
    optimizer = Adam(model.parameters(), lr=3e-3)
    model = copy.deepcopy(model) if planted else model
    return Case(model=model, data=table(), loss="cross_entropy", optimizer=optimizer)


class DeafTranslator(nn.Module):
    """An encoder and a decoder, which should attend to what the encoder has read."""

    def __init__(self, deaf: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 32), nn.Parameter(0.3 * torch.randn(1, 12, 32))
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.norm, self.head, self.deaf = nn.LayerNorm(32), nn.Linear(32, 40), deaf

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.words(source) + self.places)
        asked = self.words(target) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        heard = asked[:, :1] if self.deaf else memory
        return self.head(self.norm(self.decoder(asked, heard, tgt_mask=mask, tgt_is_causal=True)))


@fault(
    FAULTS, "seq2seq", causes="unused-parameter condition-switched-off", remedies="use-parameter",
    layers="encoder encoder.self_attn encoder.linear1 encoder.linear2 encoder.norm1 encoder.norm2 "
    "encoder.self_attn.out_proj",
)  # fmt: skip
def decoder_never_hears_the_encoder(planted: bool) -> Case:
    """The wrong variable is passed as memory: the decoder attends to its own first token."""
    torch.manual_seed(42)
    source = torch.randint(2, 40, (48, 12))
    target = (source + 1) % 40
    start = torch.cat([torch.zeros(48, 1, dtype=torch.long), target[:, :-1]], dim=1)
    return Case(
        model=DeafTranslator(planted), data=({"source": source, "target": start}, target), loss=over_tokens,
        judge=lambda logits: (logits.argmax(-1) == target).float().mean().item(),
    )  # fmt: skip
