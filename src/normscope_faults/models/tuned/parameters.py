"""Parameters that are unused, frozen, unregistered or not in the optimizer."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, each, over, variant
from ...training import accuracy, over_tokens, overlap_with
from . import rarer


@OPEN
def normalised_inputs_thrown_away(broken: bool) -> Case:
    """MLP | 886 | `normalised = norm(x)`, and the next line goes on with x.
    | unused-parameter inputs-not-scaled | | scale-inputs use-parameter"""

    # A BatchNorm of the inputs whose result may be thrown away.
    def skipped_norm(self, x: Tensor) -> Tensor:
        normalised = self.norm(x)
        return self.net(x if self.thrown_away else normalised)

    x, y = draw.table()
    net = nets.made("SkippedNorm", skipped_norm)
    net.thrown_away, net.norm, net.net = broken, nn.BatchNorm1d(12), nets.mlp(12, 32, 32, 3)
    return Case((500 + 200 * x, y), net, "cross_entropy")


class Plain(nn.Module):  # A layer, hidden layers in a container, and a head.
    def __init__(self, container: Callable[[list[nn.Module]], object]) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
        self.hidden = container([nn.Linear(32, 32) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers."""
        x = self.first(x).relu()
        for layer in self.hidden:  # type: ignore[attr-defined]
            x = layer(x).relu()
        return self.head(x)


class OrderEncoder(nets.SentenceEncoder):  # A sentence encoder that may forget to add its positions.
    placed = True

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        if self.placed:
            x = x + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.encoder(self.norm(x)).mean(1))


class LoneGraph(nets.GraphNet):  # A graph network whose layers may leave the neighbours out.
    alone = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer.own(x) if self.alone else layer(x, self.edges))
        return self.layers[-1].own(x) if self.alone else self.layers[-1](x, self.edges)


@OPEN
def second_encoder_never_called(broken: bool) -> Case:
    """MLP | 209 | A second encoder that is built and never called.
    | unused-parameter condition-switched-off | context | restore-condition use-parameter"""

    # A regression that should read its context through a second encoder.
    def conditioned(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.main(x[:, 4:]) + self.context(x[:, :4])))

    def forgetting(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.main(x[:, 4:])))

    x, y = draw.regression_table()
    net = nets.made("Conditioned", forgetting if broken else conditioned)
    net.main, net.context, net.head = nn.Linear(4, 24), nn.Linear(4, 24), nets.mlp(24, 24, 1)
    return Case((x, y), net, "mse")


@OPEN
def random_embeddings_frozen(broken: bool) -> Case:
    """recommender | 211 | nn.Embedding.from_pretrained freezes; here on random vectors.
    | frozen-layer | items users | unfreeze"""
    pairs, score = draw.ratings()
    model = rarer.Products()
    for name in ("users", "items"):
        setattr(model, name, nn.Embedding.from_pretrained(getattr(model, name).weight.data, freeze=broken))
    return Case((pairs, score), model, "mse")


@FIRST
def positions_never_added(broken: bool) -> Case:
    """BERT | 67 | A position embedding that is made and never added: the order of the words is invisible.
    | unused-parameter | positions | use-parameter"""

    class Orderless(nets.SentenceEncoder):
        """Forgets the positions."""

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.encoder(self.norm(self.words(ids))).mean(1)) if broken else super().forward(ids)

    ids, y = draw.sentences(96)
    ids = torch.where(ids > 8, torch.full_like(ids, 9), ids)  # nothing but the order of 7 and 8 tells the classes apart
    return Case((ids, y), Orderless(), nn.CrossEntropyLoss())


@FIRST
def items_looked_up_among_users(broken: bool) -> Case:
    """recommender | 68 | Copy and paste: the items are looked up in the table of the users.
    | unused-parameter | items | use-parameter"""

    def forward_confused(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.users(pairs[:, 0])
        return self.tower(torch.cat([user, item], dim=1)).squeeze(1)

    def forward_right(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.tower(torch.cat([user, item], dim=1)).squeeze(1)

    forward = forward_confused if broken else forward_right
    return Case(draw.ratings(), variant("Confused", nets.Recommender(), forward=forward), nn.MSELoss())


@FIRST
def lower_path_lost(broken: bool) -> Case:
    """U-Net | 69 | A forward that overwrites a variable: the lower path is computed and its result is lost.
    | unused-parameter | bottom bottom.{0,1,3,4} down2 down2.{0,3} up2 up2.{0,3} | use-parameter"""

    class Shallow(nets.UNet):
        """Takes the first level twice in place of what comes from below."""

        def forward(self, x: Tensor) -> Tensor:
            if not broken:
                return super().forward(x)
            first = self.down1(x)
            low = self.bottom(F.max_pool2d(self.down2(F.max_pool2d(first, 2)), 2))
            low = first  # meant: up
            return self.head(self.up1(torch.cat([low, first], dim=1)))

    x, _ = draw.blob_images(24)
    y = F.avg_pool2d(x, 15, stride=1, padding=7)  # a target that needs to see far
    return Case(model=Shallow(width=8), data=(x + 0.8 * torch.randn_like(x), y / y.std()), loss=nn.MSELoss())


class ListedLayers(nn.Module):  # A network whose hidden layers stand in a Python list or in a ModuleList.
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


class TwoTasks(nn.Module):  # A trunk and one head per task, kept in a dict, whose outputs are joined.
    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*nets.mlp(8, 32, 32), nn.ReLU())
        heads = {"rise": nets.mlp(32, 16, 1), "fall": nets.mlp(32, 16, 1)}
        for head in heads.values():
            head[2].weight.data.mul_(0.1)
        for parameter in (p for head in heads.values() for p in head.parameters()):
            parameter.data.mul_(0.1)
        self.heads = heads if plain else nn.ModuleDict(heads)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.trunk(x)
        return torch.cat([self.heads["rise"](hidden), self.heads["fall"](hidden)], dim=1)


class TensorHead(nn.Module):  # A convolutional trunk with a head of a plain tensor or of a parameter.
    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.trunk = nets.ConvNet(width=12)
        self.trunk.head = nn.Identity()
        weight = torch.zeros(12, 4)
        self.weight = weight.requires_grad_() if plain else nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x) @ self.weight


class ForgetfulViT(nets.ViT):
    forgets = True

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.places
        attended = self.blocks(x)
        return self.head(self.norm(x if self.forgets else attended)[:, 0])


class CopyPasteRecommender(nets.Recommender):
    pasted = True

    def forward(self, pairs: Tensor) -> Tensor:
        items = self.users(pairs[:, 0]) if self.pasted else self.items(pairs[:, 1])
        return self.tower(torch.cat([self.users(pairs[:, 0]), items], dim=1)).squeeze(1)


class OneArmedUNet(nets.UNet):
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


@SECOND
def group_with_decay_left_out(broken: bool) -> Case:
    """GPT | 39 | GitHub: the parameters are sorted into those with and without decay, and only one of the two groups
    is passed.
    | not-in-optimizer | blocks blocks.{0,1} blocks.{0,1}.attention blocks.{0,1}.attention.out
    blocks.{0,1}.attention.qkv blocks.{0,1}.feed blocks.0.feed.{0,2} blocks.1.feed.{0,2} positions tokens |
    add-to-optimizer"""
    model = nets.GPT()
    with_decay = [p for p in model.parameters() if p.ndim >= 2]
    without = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": without, "weight_decay": 0.0}]
    if not broken:
        groups.append({"params": with_decay, "weight_decay": 0.01})
    return Case(draw.text(), model, over_tokens, optimizer=torch.optim.AdamW(groups, lr=3e-3))


@SECOND
def optimizer_of_the_discriminator_holds_the_generator(broken: bool) -> Case:
    """GAN | 40 | GitHub on DCGAN: `optimizerD = Adam(netG.parameters())`.
    | not-in-optimizer | 0 2 5 | add-to-optimizer"""
    generator, model = nets.Generator(), nets.discriminator()
    images, _ = draw.blob_images(32)
    with torch.no_grad():
        fakes = generator(torch.randn(32, 16))
    both = torch.cat([images.clamp(-1, 1), fakes])
    real = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
    optimizer = Adam((generator if broken else model).parameters(), lr=2e-3, betas=(0.5, 0.999))
    judge = lambda output: ((output > 0) == (real > 0.5)).float().mean().item()  # noqa: E731
    return Case((both, real), model, nn.BCEWithLogitsLoss(), optimizer=optimizer, judge=judge)


@SECOND
def decoder_never_hears_the_encoder(broken: bool) -> Case:
    """seq2seq | 42 | The wrong variable is passed as memory: the decoder attends to its own first token.
    | unused-parameter condition-switched-off | encoder encoder.linear1 encoder.linear2 encoder.norm1 encoder.norm2
    encoder.self_attn encoder.self_attn.out_proj | use-parameter"""

    # An encoder and a decoder, which should attend to what the encoder has read.
    def deaf_translator(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(self.words(source) + self.places)
        asked = self.words(target) + self.places
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        heard = asked[:, :1] if self.deaf else memory
        return self.head(self.norm(self.decoder(asked, heard, tgt_mask=mask, tgt_is_causal=True)))

    source = torch.randint(2, 40, (48, 12))
    target = (source + 1) % 40
    start = torch.cat([torch.zeros(48, 1, dtype=torch.long), target[:, :-1]], dim=1)
    net = nets.made("DeafTranslator", deaf_translator)
    net.words, net.places = nn.Embedding(40, 32), nn.Parameter(0.3 * torch.randn(1, 12, 32))
    net.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
    net.decoder = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
    net.norm, net.head, net.deaf = nn.LayerNorm(32), nn.Linear(32, 40), broken
    return Case(
        ({"source": source, "target": start}, target),
        net,
        over_tokens,
        judge_of=lambda target: lambda logits: (logits.argmax(-1) == target).float().mean().item(),
    )


class GraphWithList(nn.Module):  # Graph layers, kept as the argument says.
    def __init__(self, edges: Tensor, planted: bool) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        layers = (nets.GraphLayer(8, 4), nets.GraphLayer(4, 4))
        self.layers = layers if planted else nn.ModuleList(layers)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x, self.edges))
        return self.head(x)


class MadeAnew(nn.Module):  # An MLP with a layer between that is made where it is used.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.first, self.middle, self.head = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        if planted:
            del self.middle

    def forward(self, x: Tensor) -> Tensor:
        middle = nn.Linear(32, 32) if self.planted else self.middle
        return self.head(torch.relu(middle(torch.relu(self.first(x)))))


class PlainFactors(nn.Module):  # Ratings as products of factors, which are tensors or parameters.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        users, items = 0.3 * torch.randn(40, 6), 0.3 * torch.randn(30, 6)
        self.users = users.requires_grad_() if planted else nn.Parameter(users)
        self.items = items.requires_grad_() if planted else nn.Parameter(items)
        self.tower = nets.mlp(6, 16, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        return self.tower(self.users[pairs[:, 0]] * self.items[pairs[:, 1]]).squeeze(1)


class StackedCells(nn.Module):  # Stacked LSTM cells for text.
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


@THIRD
def one_branch_joined_twice(broken: bool) -> Case:
    """multi-modal | 43 | A slip of copy and paste: the features of one branch are concatenated with themselves.
    | unused-parameter condition-switched-off no-gradient | row row.{0,2} | use-parameter"""

    # Joins features of an image and of a row of a table.
    def fusion(self, x: Tensor) -> Tensor:
        image, row = torch.relu(self.image(x[:, :256])), torch.relu(self.row(x[:, 256:]))
        return self.head(torch.cat([image, image if self.planted else row], dim=1))

    scene = draw.blob_images(1)[0].flatten(1)
    rows = torch.randn(64, 6)
    y = (rows[:, 0] * rows[:, 1] + rows[:, 2] > 0).long()
    x = torch.cat([scene + 0.3 * torch.randn(64, 1), rows], dim=1)  # one scene, by day and by night
    net = nets.made("Fusion", fusion)
    net.planted = broken
    net.image, net.row = nets.mlp(256, 32, 16), nets.mlp(6, 32, 16)
    net.head = nn.Linear(32, 2)
    return Case((x, y), net, "cross_entropy")


@THIRD
def freezing_recipe_on_a_network_without_pretraining(broken: bool) -> Case:
    """ResNet | 44 | The lines that freeze a backbone stay in the script when its pretrained weights are not loaded any
    more.
    | frozen-layer no-gradient | blocks blocks.{0,1} blocks.{0,1}.bn1 blocks.{0,1}.bn2 blocks.{0,1}.conv1
    blocks.{0,1}.conv2 stem stem.{0,1} | unfreeze"""
    x, y = draw.blob_images(classes=8)
    model = nets.ResNet(width=8, blocks=2, classes=8)
    if broken:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("head" in name)
    return Case((x, y), model, "cross_entropy")


@THIRD
def head_changed_after_the_optimizer_was_made(broken: bool) -> Case:
    """CNN | 45 | The optimizer holds the parameters of the old head.
    | not-in-optimizer | head | add-to-optimizer"""
    x, y = draw.blob_images()
    model = nets.ConvNet(width=4, depth=2, classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.head = nn.Linear(4, 4)
    if not broken:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return Case((x, y), model, "cross_entropy", optimizer=optimizer)


# Rows of a table, packed.
# fmt: off
OPEN("""trunk-left-frozen | MLP | 1015 | requires_grad_(False) on a random narrow trunk, left over from a test of the
    head. | frozen-layer | 1 | unfreeze""",
    lambda: Case(draw.table(), nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 32),
    nn.ReLU(), nn.Linear(32, 3)), "cross_entropy"), plant=lambda model: model[1].requires_grad_(False))
OPEN("""layers-in-a-plain-list | MLP | 2003 | Hidden layers in a Python list, which the optimizer never sees (PyTorch
    forum). | frozen-layer no-gradient unused-parameter | | unfreeze use-parameter""",
    lambda broken: Case(draw.table(), Plain(list if broken else nn.ModuleList), "cross_entropy"))
OPEN("""order-of-words-lost | BERT | 207 | The line that adds the positions was lost.
    | unused-parameter | positions | use-parameter""",
    lambda broken: Case(draw.sentences(128, length=6, vocabulary=12), changed(lambda model: setattr(model, "placed",
    not broken))(OrderEncoder(length=6, depth=1)), "cross_entropy"))
OPEN("""neighbours-never-read | GNN | 208 | A rewritten layer that leaves the messages out.
    | unused-parameter | edges layers.{0,1}.neighbour | use-parameter""",
    lambda broken: given(draw.communities(nodes=150), lambda x, edges, y: Case(((0.5 * x + torch.randn_like(x)), y),
    changed(lambda model: setattr(model, "alone", broken))(LoneGraph(edges, width=4)), "cross_entropy",
    judge_of=accuracy)))
OPEN("""narrow-first-layer-frozen | MLP | 210 | A fresh layer frozen for an experiment and never thawed.
    | frozen-layer | 0 | unfreeze""",
    lambda broken: Case(draw.table(), changed(lambda model: model[0].requires_grad_(not broken))(nets.mlp(12, 5, 32, 32,
    3)), "cross_entropy"))
OPEN("""fresh-lstm-frozen | LSTM | 221 | A fresh recurrent layer frozen together with the pretrained part.
    | frozen-layer | recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0 | unfreeze""",
    lambda broken: Case(draw.remembered_series(steps=20),
    changed(lambda model: model.recurrent.requires_grad_(not broken))(nets.SequenceClassifier(nn.LSTM(4, 8,
    batch_first=True), 4)), "cross_entropy"))
FIRST("""layers-frozen-in-the-middle | MLP | 70 | requires_grad switched off for some layers in an experiment, never
    switched on again. | frozen-layer | 2 4 | unfreeze""",
    lambda: Case(draw.table(512, classes=3), nets.mlp(12, 16, 16, 16, 3), nn.CrossEntropyLoss()),
    plant=each(lambda model: model[2].requires_grad_(False), lambda model: model[4].requires_grad_(False)))
FIRST("""fresh-blocks-frozen | GPT | 71 | Blocks frozen by a slice meant for a pretrained model, in a model that starts
    from random weights. | frozen-layer | blocks.{0,1} blocks.{0,1}.attention blocks.{0,1}.attention.out
    blocks.{0,1}.attention.qkv blocks.0.feed.{0,2} blocks.1.feed.{0,2} blocks.1.norm1 blocks.1.norm2 | unfreeze""",
    lambda: Case(draw.text(), nets.GPT(depth=2), over_tokens), plant=lambda model: model.blocks.requires_grad_(False))
SECOND("""hidden-layers-in-a-python-list | regression | 31 | The most frequent question of this kind: model.parameters()
    does not see what stands in a list. | unregistered-parameter | | register-parameter""",
    lambda broken: Case(model=ListedLayers(broken), data=draw.regression_table(), loss="mse"))
SECOND("""heads-in-a-python-dict | multi-task | 32 | Heads of several tasks in a dict by name: neither moved to the GPU
    nor trained. | unregistered-parameter | | register-parameter""",
    lambda broken: given(draw.regression_table(), lambda x, y: Case((x, torch.cat([y, -y.square() + 1], dim=1)),
    TwoTasks(broken), "mse")))
SECOND("""head-is-a-plain-tensor | CNN | 33 | PyTorch forums: `torch.zeros(..., requires_grad=True)` as an attribute is
    no parameter. | unregistered-parameter output-constant zero-weights | | initialise register-parameter""",
    lambda broken: Case(model=TensorHead(broken), data=draw.blob_images(), loss="cross_entropy"))
SECOND("""head-replaced-before-everything-is-frozen | ResNet | 34 | Transfer learning: the loop that freezes the trunk
    runs after the new head was put on, and freezes it as well.
    | frozen-layer no-gradient | blocks blocks.{0..2} blocks.0.conv1 head stem stem.0 | unfreeze""",
    lambda broken: Case(draw.blob_images(), over(lambda model: model.parameters(),
    lambda parameter: parameter.requires_grad_(not broken))(changed(lambda model: setattr(model, "head",
    nn.Linear(12, 4)))(nets.ResNet())), "cross_entropy", optimizer=partial(Adam, lr=3e-3)))
SECOND("""table-of-word-vectors-empty-and-frozen | BERT | 35 | nn.Embedding.from_pretrained freezes by default; here no
    word was found in the file, so that all rows are 0.
    | frozen-layer zero-weights | words | initialise restore-weights unfreeze""",
    lambda: given(nets.SentenceEncoder(), lambda model: Case(draw.sentences(), model, "cross_entropy")),
    plant=lambda model: setattr(model, "words", nn.Embedding.from_pretrained(torch.zeros(50, 32))))
SECOND("""result-of-the-blocks-not-used | ViT | 36 | UMLAUT's and the forums' classic: `self.blocks(x)` without
    assigning it to x.
    | unused-parameter output-constant | blocks blocks.{0..2} blocks.0.attention blocks.0.attention.out
    blocks.{0..2}.attention.qkv blocks.0.feed.{0,2} blocks.0.norm1 blocks.0.norm2 patches | use-parameter""",
    lambda broken: given(ForgetfulViT(), lambda model: Case(draw.blob_images(), changed(lambda model: setattr(model,
    "forgets", broken))(model), "cross_entropy")))
SECOND("""users-looked-up-twice | recommender | 37 | A copied line that was not changed: the items are never looked up.
    | unused-parameter | items | use-parameter""",
    lambda broken: given(CopyPasteRecommender(), lambda model: Case(draw.ratings(), changed(lambda model: setattr(model,
    "pasted", broken))(model), "mse")))
SECOND("""way-up-of-a-unet-not-used | segmentation | 38 | The head reads the bottom: what the way up computes is thrown
    away. | unused-parameter | up1 up1.{0,1,3,4} up2 up2.{0,1,3,4} | use-parameter""",
    lambda broken: given(draw.blob_images(24), lambda images, _: Case((images, (images > 1.0).float()),
    changed(lambda model: setattr(model, "one_armed", broken))(OneArmedUNet()), nn.BCEWithLogitsLoss(),
    judge_of=overlap_with)))
SECOND("""optimizer-holds-a-copy-of-the-model | tabular | 41 | PyTorch forums: the model is copied (moved, re-created)
    after the optimizer was made. | not-in-optimizer | 0 2 4 | add-to-optimizer""",
    lambda broken: given(nets.mlp(12, 48, 48, 3), lambda model: given(Adam(model.parameters(), lr=3e-3),
    lambda optimizer: given(copy.deepcopy(model) if broken else model, lambda model: Case(draw.table(), model,
    "cross_entropy", optimizer=optimizer)))))
THIRD("""graph-layers-in-a-tuple | GNN | 39 | Layers in a tuple are not parameters of the model.
    | unregistered-parameter | | register-parameter""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y), GraphWithList(edges, broken),
    "cross_entropy", judge_of=accuracy)))
THIRD("""layer-made-anew-in-each-call | tabular | 40 | `nn.Linear(...)` written inside of `forward` is drawn again at
    each call and never learns. | unregistered-parameter | | register-parameter""",
    lambda broken: Case(draw.table(), MadeAnew(broken), "cross_entropy"))
THIRD("""factors-as-tensors-that-require-a-gradient | recommender | 41 | `torch.randn(...).requires_grad_()` as an
    attribute: it gets a gradient, but no optimizer ever sees it. | unregistered-parameter | | register-parameter""",
    lambda broken: Case(draw.ratings(), PlainFactors(broken), "mse"))
THIRD("""cells-in-a-plain-dict | LSTM | 42 | Cells by name in a Python dict instead of an `nn.ModuleDict`.
    | unregistered-parameter | | register-parameter""",
    lambda broken: Case(draw.text(length=12), StackedCells(broken), over_tokens))
THIRD("""optimizer-of-the-head-alone | BERT | 46 | `model.head.parameters()` is handed to the optimizer while everything
    was to be trained from scratch.
    | not-in-optimizer | encoder encoder.layers.{0,1} norm positions words | add-to-optimizer""",
    lambda broken: given(draw.sentences(96), lambda x, y: given(nets.SentenceEncoder(), lambda model: Case((x, y),
    model, "cross_entropy", optimizer=torch.optim.AdamW((model.head if broken else model).parameters(), lr=3e-3)))))
