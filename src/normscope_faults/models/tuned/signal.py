"""Faults of signals and gradients over the depth: they vanish, explode, or one layer or branch stands out."""

import math
from itertools import pairwise

import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, drawn, each, filled, over, put, scaled
from ...training import accuracy, contrastive_loss, evidence_loss, explained_variance, over_tokens, overlap_with
from . import rarer, rarer_sequences


@OPEN
def glorot_for_rectifiers(broken: bool) -> Case:
    """CNN | 823 | xavier_normal_ halves the variance at each ReLU; over 24 layers little is left.
    | vanishing-signal output-constant vanishing-gradient | 0 10 12 14 16 18 2 20 22 24 26 28 30 32 34 36 38 4 40 42
    44 46 48 6 8 | add-normalizer add-skip initialise"""
    x, y = draw.blob_images(64, classes=6)
    model = nets.mlp(256, *[32] * 24, 6)
    for layer in model:
        if isinstance(layer, nn.Linear):
            if broken:
                nn.init.xavier_normal_(layer.weight)
            else:
                nn.init.orthogonal_(layer.weight, gain=2**0.5)
    return Case((x.flatten(1), y), model, "cross_entropy")


@OPEN
def sigmoids_between_convolutions(broken: bool) -> Case:
    """TCN | 1111 | Sigmoids between eight convolutions over time.
    | vanishing-gradient activation-unsuitable output-constant saturated-units vanishing-signal | {0..16} |
    add-normalizer add-skip change-activation initialise"""
    x, y = draw.waves(steps=24)
    layers: list[nn.Module] = []
    for index in range(8):
        conv = nn.Conv1d(3 if index == 0 else 12, 12, 3, padding=1)
        nn.init.kaiming_normal_(conv.weight, nonlinearity="linear" if broken else "relu")
        layers += [conv, nn.Sigmoid() if broken else nn.ReLU()]
    return Case((x.mT.contiguous(), y), nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 24, 3)), "cross_entropy")


@OPEN
def twelve_blocks_without_residual_sums(broken: bool) -> Case:
    """BERT | 855 | The residual sums were lost in a rewrite of the block.
    | vanishing-gradient exploding-gradient exploding-signal output-constant rank-one-weights vanishing-signal | |
    add-normalizer add-skip initialise lower-learning-rate replace-normalizer scale-branch"""
    ids, y = draw.sentences(48, length=6, vocabulary=14)

    class Plain(nets.TransformerBlock):
        def forward(self, x: Tensor) -> Tensor:
            return self.feed(self.norm2(self.attention(self.norm1(x)))) if broken else super().forward(x)

    model = nn.Sequential()
    model.add_module("words", nn.Embedding(14, 16))
    model.add_module("blocks", nn.Sequential(*(Plain(16, 2, causal=True) for _ in range(12))))
    model.add_module("pool", nn.Sequential(nn.Flatten(), nn.Linear(96, 2)))
    return Case((ids, y), model, "cross_entropy")


@OPEN
def dilated_layers_at_a_hundredth(broken: bool) -> Case:
    """TCN | 867 | normal_(std=0.01), as the authors' code has it, in a copy without the skip connections.
    | vanishing-signal dead-units output-constant vanishing-gradient | {0..4} {0..4}.conv1 {0..4}.conv2 |
    add-normalizer add-skip initialise rescale-layer"""
    x, y = draw.remembered_series(steps=32)
    blocks = [rarer_sequences.DilatedBlock(4 if i == 0 else 24, 24, 2**i, skip=not broken) for i in range(5)]
    for block in blocks:
        for conv in (block.conv1, block.conv2):
            nn.init.normal_(conv.weight, std=0.01)
    return Case((x.transpose(1, 2), y), nn.Sequential(*blocks, nn.Flatten(), nn.Linear(24 * 32, 4)), "cross_entropy")


class ScaledWords(nets.SentenceEncoder):
    """A sentence encoder without the norm on its embeddings, in which positions are sines."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        del self.norm, self.positions
        self.factor = factor

    def forward(self, ids: Tensor) -> Tensor:
        steps = torch.arange(ids.shape[1])[:, None] / 10000 ** (torch.arange(0, 32, 2) / 32)
        places = torch.cat([steps.sin(), steps.cos()], dim=1)
        return self.head(self.encoder(self.factor * self.words(ids) + places).mean(1))


class PlainResidual(nn.Module):  # Residual blocks without a normalizer; each branch is multiplied by `factor`.
    def __init__(self, blocks: int, factor: float) -> None:
        super().__init__()
        self.stem, self.factor = nn.Conv2d(1, 12, 3, stride=2, padding=1), factor
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1))
            for _ in range(blocks)
        )
        for block in self.blocks:
            for conv in (block[0], block[2]):
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + self.factor * block(x)
        return self.head(x.mean((2, 3)))


class LoudBranches(nets.GPT):  # A GPT whose branches are multiplied by a constant.
    factor = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + self.factor * block.attention(block.norm1(x))
            x = x + self.factor * block.feed(block.norm2(x))
        return self.head(self.norm(x))


def scale_weights(model: nn.Module, names: str, factor: float) -> None:
    """Multiply the weights of the modules with these names (split at spaces)."""
    with torch.no_grad():
        for name in names.split():
            model.get_submodule(name).weight.mul_(factor)


@OPEN
def generator_saturates_its_tanh(broken: bool) -> Case:
    """GAN | 120 | normal_(std=2) instead of 0.02 in the last layer of a DCGAN.
    | exploding-gradient exploding-signal layer-scale-stands-out saturated-units | layers.{6,7} | change-activation
    initialise rescale-layer"""
    images, _ = draw.blob_images(48)
    model = nets.Generator()
    if broken:
        nn.init.normal_(model.layers[6].weight, std=2.0)
    return Case(model=model, data=(torch.randn(48, 16), (images / 4).clamp(-1, 1)), loss="mse")


def draw_weights(model: nn.Module, std: float) -> None:
    """Draw every weight matrix or kernel from a normal distribution."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=std)


@FIRST
def residual_branch_times_ten(broken: bool) -> Case:
    """ResNet | 76 | A residual scale of 10 where 0.1 was meant (Inception-ResNet's scaling inverted).
    | exploding-signal branch-dominates exploding-gradient | branches.{0..11} branches.0.{0,2} branches.1.{0,2}
    branches.10.{0,2} branches.11.{0,2} branches.2.{0,2} branches.3.{0,2} branches.4.{0,2} branches.5.{0,2}
    branches.6.{0,2} branches.7.{0,2} branches.8.{0,2} branches.9.{0,2} last | add-normalizer initialise
    rescale-layer scale-branch"""

    # Residual blocks of linear layers without a normalizer; the branch counts `factor` times.
    def plain_residual(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for branch in self.branches:
            x = x + self.factor * branch(x)
        return self.last(x)

    x, y = draw.table(classes=3)
    net = nets.made("PlainResidual", plain_residual)
    net.factor = 10.0 if broken else 0.1
    net.first, net.last = nn.Linear(12, 32), nn.Linear(32, 3)
    net.branches = nn.ModuleList(nets.mlp(32, 32, 32) for _ in range(12))
    return Case((x, y), net, nn.CrossEntropyLoss())


class PlainResidualOfSecond(nn.Module):  # Residual blocks without normalizers.
    def __init__(self, blocks: int, scale: float) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
        self.blocks = nn.ModuleList(nets.mlp(32, 32, 32) for _ in range(blocks))
        for block in self.blocks:
            nn.init.kaiming_normal_(block[2].weight)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + self.scale * block(x)
        return self.head(x)


class NeighbourMean(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.zeros(len(x), 1).index_add(0, target, torch.ones(len(target), 1))
        return self.linear(torch.zeros_like(x).index_add(0, target, x[source]) / degree.clamp(min=1))


@SECOND
def sixteen_means_over_neighbours(broken: bool) -> Case:
    """GNN | 70 | Over-smoothing (Li et al. 2018): after many means all nodes have the same state.
    | vanishing-signal output-constant vanishing-gradient | | add-normalizer add-skip fewer-layers initialise"""
    x, edges, labels = draw.communities()
    model = nets.GraphNet(edges, depth=16 if broken else 2)
    for index, layer in enumerate(model.layers):
        model.layers[index] = NeighbourMean(layer.own.in_features, layer.own.out_features)
    return Case((x, labels), model, "cross_entropy")


class HandmadeLinear(nn.Module):
    def __init__(self, inner: int, outer: int, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(factor * torch.randn(inner, outer))
        self.bias = nn.Parameter(torch.zeros(outer))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


@SECOND
def handmade_layers_from_randn(broken: bool) -> Case:
    """tabular | 2 | PyTorch forums: `nn.Parameter(torch.randn(in, out))` in a layer written by hand.
    | exploding-signal exploding-gradient | 0 2 4 6 8 | initialise rescale-layer"""
    sizes = [12, 64, 64, 64, 64, 3]
    layers: list[nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [HandmadeLinear(inner, outer, 1.0 if broken else math.sqrt(2 / inner)), nn.ReLU()]
    return Case(model=nn.Sequential(*layers[:-1]), data=draw.table(), loss="cross_entropy")


def plain_conv_net(depth: int, width: int = 16) -> nn.Sequential:
    """Return convolutions of one width with ReLU, no normalizer, a pooling by mean and a head, He's initialisation."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    for module in layers:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 4))


@SECOND
def all_convolutions_from_a_narrow_normal(broken: bool) -> Case:
    """CNN | 3 | Code copied from AlexNet's time: normal_(std=0.01) for every layer of a deeper network without
    normalizers.
    | vanishing-signal output-constant vanishing-gradient | 0 10 12 2 4 6 8 | add-normalizer initialise
    rescale-layer"""
    model = plain_conv_net(7)
    if broken:
        for module in model:
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.01)
    return Case(model=model, data=draw.blob_images(), loss="cross_entropy")


@SECOND
def fourteen_rectified_layers_as_torch_draws_them(broken: bool) -> Case:
    """regression | 4 | PyTorch forums: the default of nn.Linear loses a factor of 2.4 per rectified layer.
    | vanishing-signal output-constant vanishing-gradient | | add-normalizer add-skip initialise rescale-layer"""
    model = nets.mlp(8, *[48] * 14, 1)
    if broken:
        for module in model:
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    return Case(model=model, data=draw.regression_table(), loss="mse")


@SECOND
def fan_in_without_the_kernel_size(broken: bool) -> Case:
    """CNN | 8 | GitHub: std = sqrt(2 / in_channels) for 3x3 convolutions, too large by 3 in each layer.
    | exploding-signal exploding-gradient | 0 10 2 4 6 8 | add-normalizer initialise rescale-layer"""
    model = plain_conv_net(6)
    if broken:
        for module in model:
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=math.sqrt(2 / module.in_channels))
    return Case(model=model, data=draw.blob_images(), loss="cross_entropy")


@SECOND
def token_embeddings_drown_the_places(broken: bool) -> Case:
    """GPT | 12 | Embeddings of another model (std of 10) beside fresh positions of 0.02.
    | branch-dominates layer-scale-stands-out | positions tokens | initialise rescale-layer"""
    model = nets.GPT(tied=False)
    if broken:
        nn.init.normal_(model.tokens.weight, std=10.0)
    return Case(model=model, data=draw.text(), loss=over_tokens)


@THIRD
def leak_so_small_that_nothing_enters(broken: bool) -> Case:
    """RNN | 104 | A time step of milliseconds in a recurrence whose series come in seconds.
    | vanishing-signal layer-scale-stands-out output-constant recurrent-weights-vanish vanishing-gradient | |
    add-normalizer carry-state gated-recurrence initialise rescale-layer scale-branch"""

    # A recurrence that moves towards its new state by a part of the way.
    def leaky(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 32)
        for step in x.unbind(1):
            state = (1 - self.leak) * state + self.leak * torch.tanh(self.enter(step) + self.turn(state))
        return self.head(state)

    x, y = draw.remembered_series(steps=20)
    net = nets.made("Leaky", leaky)
    net.leak = 2e-4 if broken else 0.15
    net.enter, net.turn, net.head = nn.Linear(4, 32), nn.Linear(32, 32), nn.Linear(32, 4)
    return Case((x, y), net, "cross_entropy")


class Square(nn.Module):  # The square of its input.
    def forward(self, x: Tensor) -> Tensor:
        return x.square()


@THIRD
def gain_of_the_policy_head_in_every_layer(broken: bool) -> Case:
    """actor-critic | 4 | The gain of 0.01, meant for the last layer of a policy, is given to the function that draws
    all layers.
    | vanishing-signal layer-scale-stands-out output-constant vanishing-gradient zero-weights | policy trunk
    trunk.{0,2,4} | add-normalizer add-skip initialise rescale-layer"""
    x, y = draw.table(classes=4)
    trunk, policy = nets.mlp(12, 64, 64, 64, activation=nn.Tanh), nn.Linear(64, 4)
    for module in trunk:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight, gain=0.01 if broken else 1.4)
            nn.init.zeros_(module.bias)
    nn.init.orthogonal_(policy.weight, gain=0.01)
    nn.init.zeros_(policy.bias)
    model = nn.Sequential()
    model.add_module("trunk", trunk)
    model.add_module("last", nn.Tanh())
    model.add_module("policy", policy)
    return Case((x, y), model, "cross_entropy")


# Rows of a table, packed.
# fmt: off
OPEN("""small-layer-scale-and-no-residual | ConvNeXt | 801 | LayerScale of 1e-6 is harmless beside a residual sum; here
    the sum was forgotten. | vanishing-signal eps-dominates output-constant vanishing-gradient zero-weights | norm
    stages stages.{0..3} stages.{0..3}.gamma stages.{0..3}.norm stages.{0..3}.shrink | add-skip initialise lower-eps
    rescale-layer scale-branch""",
    lambda broken: Case(draw.blob_images(48, classes=6), rarer.ConvNeXt(depth=4, classes=6, gamma=1e-6,
    skip=not broken), "cross_entropy"))
OPEN("""orthogonal-with-a-gain-of-five | MLP | 824 | nn.init.orthogonal_(weight, gain=5). | exploding-signal
    exploding-gradient layer-scale-stands-out | 0 10 12 2 4 6 8 | add-normalizer initialise rescale-layer""",
    lambda broken: given(draw.blob_images(64, classes=6), lambda x, y: Case((x.flatten(1), y),
    over(lambda model: model, lambda layer: nn.init.orthogonal_(layer.weight, gain=5.0 if broken else 2**0.5),
    nn.Linear)(nets.mlp(256, *[40] * 6, 6)), "cross_entropy")))
OPEN("""euler-steps-of-one | neural ODE | 836 | Thirty Euler steps of size 1 where the interval has length 1.
    | exploding-signal branch-dominates exploding-gradient | field field.{0,2} head | add-normalizer clip-gradients
    initialise lower-learning-rate rescale-layer scale-branch""",
    lambda broken: Case(draw.blob_images(64, classes=6), over(lambda model: model.field,
    lambda layer: nn.init.kaiming_normal_(layer.weight), nn.Linear)(rarer.EulerField(1.0 if broken else 1 / 30)),
    "cross_entropy"))
OPEN("""layers-around-the-maximum-too-small | PointNet | 1101 | std=1e-5 and 1e-3 in the layers before and after the
    maximum. | layer-scale-stands-out output-constant vanishing-gradient vanishing-signal zero-weights | cloud cloud.0
    point point.2 | initialise rescale-layer""",
    lambda: Case(rarer.clouds(), rarer.PointNet(), "cross_entropy"), plant=each(drawn("point.2.weight", 1e-5),
    filled("point.2.bias", 0.0), drawn("cloud.0.weight", 1e-3)))
OPEN("""transposed-convolution-times-300 | autoencoder | 1102 | The kernel of a transposed convolution converted without
    its scale. | layer-scale-stands-out exploding-gradient exploding-signal | up.{0,2} | initialise rescale-layer""",
    lambda: given(draw.blob_images(), lambda x, _: Case((x, x), rarer.Hourglass(), "mse")),
    plant=scaled("up.0.weight", 300))
OPEN("""one-projection-times-hundred | GPT | 1103 | One of the matrices of a merged checkpoint was scaled by its rank.
    | layer-scale-stands-out branch-dominates exploding-gradient exploding-signal | layers.0 layers.0.mlp
    layers.0.mlp.down | initialise rescale-layer scale-branch""",
    lambda: given(draw.text(16), lambda ids, following: Case((ids, following), rarer_sequences.Llama(), over_tokens,
    judge=rarer.likelihood(following), steps=30)), plant=scaled("layers.0.mlp.down.weight", 100))
OPEN("""one-stream-drowns-the-other | two streams | 1112 | The projection of one modality is drawn a hundred times too
    large. | branch-dominates exploding-signal layer-scale-stands-out | second | add-normalizer initialise rescale-layer
    scale-branch""",
    lambda: Case(draw.table(), nets.made("Streams", lambda self, x: self.head(self.first(x[:, :6]) + self.second(x[:,
    6:])), first=nn.Linear(6, 32), second=nn.Linear(6, 32), head=nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.ReLU(),
    nn.Linear(32, 3))), "cross_entropy"), plant=scaled("second.weight", 100))
OPEN("""adapters-too-loud | LoRA | | alpha / rank was multiplied where it had to be divided, and b was drawn at random.
    | branch-dominates exploding-gradient exploding-signal layer-scale-stands-out | layers.{0,1}.mlp.down
    layers.{0,1}.mlp.down.a layers.{0,1}.mlp.down.b layers.{0,1}.mlp.up layers.{0,1}.mlp.up.a layers.{0,1}.mlp.up.b
    | initialise rescale-layer scale-branch""",
    lambda: given(rarer_sequences.adapted_llama(859, other_text=False), lambda model, ids, following: Case((ids,
    following), model, over_tokens, judge=rarer.likelihood(following))), plant=over(lambda model: model.modules(),
    lambda module: (nn.init.normal_(module.b), setattr(module, "scale", 64.0)), rarer_sequences.Adapter))
OPEN("""factorisation-machine-at-ten | DeepFM | 881 | Embeddings drawn at 10 enter the pairs squared: logits of
    thousands. | exploding-signal branch-dominates exploding-gradient layer-scale-stands-out | embed embed.{0..5} |
    initialise rescale-layer scale-branch""",
    lambda broken: Case(rarer.clicks(), rarer.DeepFM(10.0 if broken else 0.1), nn.BCEWithLogitsLoss(),
    judge_of=lambda y: lambda output: -F.binary_cross_entropy_with_logits(output, y).item()))
OPEN("""sum-over-a-large-batch | MLP | 891 | reduction="sum" with thousands of samples: steps thousands of times too
    long. | exploding-gradient loss-does-not-fit targets-wrong-scale | | change-loss clip-gradients lower-learning-rate
    scale-targets""",
    lambda broken: Case(draw.regression_table(4096), nets.mlp(8, 32, 1),
    nn.MSELoss(reduction="sum" if broken else "mean")))
OPEN("""sums-over-many-neighbours | GIN | 898 | Sums over eight neighbours in five layers without a normalizer.
    | exploding-signal exploding-gradient | head layers.{0..4} layers.0.{0,2} layers.1.{0,2} layers.2.{0,2}
    layers.3.{0,2} layers.4.{0,2} | add-normalizer initialise rescale-layer""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y), rarer.SumNet(edges, 5, norm=not broken),
    "cross_entropy", judge=rarer.judge_nodes(y))))
OPEN("""noise-of-the-code-too-large | VAE | 1002 | The head of the log variance starts at 12: a noise of exp(6).
    | exploding-signal branch-dominates exploding-gradient layer-scale-stands-out | log_variance | initialise
    rescale-layer reset-bias scale-branch""",
    lambda broken: given(draw.as_pixels(draw.blob_images()[0]).flatten(1), lambda x: Case((x, x),
    changed(lambda model: nn.init.constant_(model.log_variance.bias, 12.0 if broken else 0.0))(nets.VAE()),
    evidence_loss, judge_of=lambda x: lambda output: -evidence_loss(output, x).item())))
OPEN("""unbounded-scales-of-a-flow | flow | 1003 | exp of the scales without a bound, and last layers drawn at 1 instead
    of near 0. | exploding-signal exploding-gradient gradient-not-finite layer-scale-stands-out not-finite | nets
    nets.{0..3} nets.0.{0,2} nets.1.{0,2} nets.2.{0,2} nets.3.{0,2} | change-activation clip-gradients guard-domain
    initialise lower-learning-rate rescale-layer""",
    lambda broken: given(torch.randn(128, 8) @ torch.randn(8, 8) / 3, lambda x: Case((x, x),
    rarer.Coupling(bounded=not broken, gain=1.0 if broken else 0.01), rarer.flow_loss,
    judge_of=lambda x: lambda output: -rarer.flow_loss(output, x).item())))
OPEN("""scale-not-its-logarithm | CLIP | 1004 | The scale starts at log(1 / 0.07); here at 1 / 0.07, and forward takes
    the exponential. | exploding-signal exploding-gradient layer-scale-stands-out saturated-units | log_scale |
    initialise rescale-layer scale-outputs""",
    lambda broken: given(1 / 0.07 if broken else 2.66, lambda log_scale: Case(model=rarer.Towers(log_scale),
    data=rarer.halves(), loss="cross_entropy", judge=rarer.partner_likelihood)))
OPEN("""written-weights-too-large | hypernetwork | 1012 | The writer of the weights is drawn at 1: what it writes does
    not heed the fan-in. | exploding-signal exploding-gradient layer-scale-stands-out | head writer writer.2 |
    add-normalizer initialise rescale-layer""",
    lambda broken: Case(draw.regression_table(), rarer.HyperNetwork(1.0 if broken else 0.06), "mse"))
OPEN("""words-drown-the-positions | BERT | 613 | Embeddings multiplied by the width instead of its root, and drawn at
    10. | branch-dominates attention-saturated exploding-signal layer-scale-stands-out | words | add-normalizer
    initialise rescale-layer scale-attention scale-branch""",
    lambda broken: Case(draw.sentences(128, length=6, vocabulary=12), ScaledWords(320.0 if broken else 1.0),
    "cross_entropy"))
OPEN("""weights-drawn-at-one | MLP | 104 | Weights made by hand: torch.randn(out, in).
    | exploding-gradient exploding-signal | | add-normalizer clip-gradients initialise rescale-layer""",
    lambda: Case(draw.table(), nets.mlp(12, 48, 48, 48, 48, 3), "cross_entropy"), plant=over(lambda model: model[::2],
    lambda layer: nn.init.normal_(layer.weight)))
OPEN("""residual-blocks-without-normalizer | ResNet | 105 | A ResNet without BatchNorm whose branches are drawn at full
    size.
    | branch-dominates exploding-gradient exploding-signal | | add-normalizer initialise rescale-layer scale-branch""",
    lambda broken: Case(draw.blob_images(32, size=12), PlainResidual(16, 1.0 if broken else 0.1), "cross_entropy"))
OPEN("""residual-scale-of-ten | ResNet | 106 | A residual scale meant as 0.1 and written as 10.
    | branch-dominates exploding-gradient exploding-signal | | add-normalizer initialise rescale-layer scale-branch""",
    lambda broken: Case(draw.blob_images(32, size=12), PlainResidual(6, 10.0 if broken else 0.1), "cross_entropy"))
OPEN("""branches-of-gpt-times-hundred | GPT | 107 | An experiment with a factor on the branches was left switched on.
    | branch-dominates exploding-gradient exploding-signal vanishing-gradient | | initialise rescale-layer
    scale-branch""",
    lambda broken: Case(draw.text(), changed(lambda model: setattr(model, "factor",
    100.0 if broken else 1.0))(LoudBranches()), over_tokens))
OPEN("""third-layer-times-hundred | MLP | 108 | A layer initialised with the gain of another convention.
    | exploding-gradient exploding-signal layer-scale-stands-out | 4 | initialise rescale-layer""",
    lambda broken: Case(draw.regression_table(), changed(lambda model: scale_weights(model, "4",
    100.0 if broken else 1.0))(nets.mlp(8, 32, 32, 32, 1)), "mse"))
OPEN("""kernel-times-a-million | CNN | 109 | Weights converted from another framework, one of them still in fixed point.
    | exploding-gradient exploding-signal layer-scale-stands-out | features.5 | initialise rescale-layer
    restore-weights""",
    lambda broken: Case(draw.blob_images(), changed(lambda model: scale_weights(model, "features.5",
    1e6 if broken else 1.0))(nets.ConvNet(norm=False)), "cross_entropy"))
OPEN("""two-layers-at-a-ten-thousandth | MLP | 110 | std=1e-5 instead of 1e-1. | layer-scale-stands-out output-constant
    vanishing-gradient vanishing-signal zero-weights | 2 4 | initialise rescale-layer""",
    lambda broken: Case(draw.table(), changed(lambda model: scale_weights(model, "2 4",
    1e-4 if broken else 1.0))(nets.mlp(12, 32, 32, 32, 3)), "cross_entropy"))
OPEN("""embeddings-at-a-thousand | recommender | 111 | Embeddings drawn at 1 and multiplied by a factor meant for
    something else. | branch-dominates exploding-gradient exploding-signal layer-scale-stands-out saturated-units |
    items users | initialise rescale-layer""",
    lambda broken: Case(draw.ratings(), changed(lambda model: scale_weights(model, "users items",
    1e3 if broken else 1.0))(nets.Recommender()), "mse"))
OPEN("""places-drown-the-tokens | GPT | 112 | Tokens drawn at 0.02, positions left at the default of nn.Embedding and
    scaled by sqrt(width).
    | branch-dominates layer-scale-stands-out | positions tokens | initialise rescale-layer scale-branch""",
    lambda: Case(draw.text(), nets.GPT(tied=False), over_tokens), plant=drawn("positions.weight", 32**0.5))
OPEN("""time-embedding-drowns-the-image | diffusion | 317 | The last layer of the embedding of the time is drawn a
    thousand times too large. | layer-scale-stands-out branch-dominates exploding-signal | time time.{0,2} | initialise
    rescale-layer scale-branch scale-inputs""",
    lambda: given(draw.noisy_images(), lambda inputs, noise: Case(inputs, nets.Denoiser(),
    objective=lambda output: F.mse_loss(output, noise), judge=explained_variance(noise))),
    plant=scaled("time.2.weight", 1000))
FIRST("""positions-drown-the-tokens | GPT | 123 | Positions drawn by nn.Embedding's default and then scaled, tokens
    drawn with 0.02: words are lost.
    | branch-dominates layer-scale-stands-out | positions tokens | initialise rescale-layer scale-branch""",
    lambda: Case(draw.text(), nets.GPT(), over_tokens), plant=drawn("positions.weight", 20.0))
FIRST("""sigmoid-mlp-of-ten-layers | MLP | 1 | Stack Overflow: a deep sigmoid network whose loss stays at log(classes);
    AutoTrainer. | vanishing-gradient activation-unsuitable saturated-units vanishing-signal | {0..8} | add-normalizer
    add-skip change-activation initialise""",
    lambda broken: given(draw.table(classes=3), lambda x, y: given((12, *(32 for _ in range(9)), 3),
    lambda sizes: Case((x, y), nets.mlp(*sizes, activation=nn.Sigmoid if broken else nn.ReLU), nn.CrossEntropyLoss()))),
    cure=over(lambda model: model[::2], lambda layer: nn.init.orthogonal_(layer.weight, gain=2**0.5)))
FIRST("""convolutions-drawn-too-small | CNN | 2 | AlexNet's normal(0, 0.01) copied into a deeper network without
    normalization. | vanishing-gradient layer-scale-stands-out output-constant vanishing-signal | features.{0..16} |
    add-normalizer add-skip initialise rescale-layer""",
    lambda: Case(draw.blob_images(48, channels=3), nets.ConvNet(3, depth=8, norm=False), "cross_entropy"),
    plant=lambda model: draw_weights(model, 0.01))
FIRST("""weights-drawn-with-unit-variance | MLP | 3 | PyTorch forum: own layers with nn.Parameter(torch.randn(n, m)).
    | exploding-gradient exploding-signal layer-scale-stands-out | 0 10 2 4 6 8 | add-normalizer initialise
    rescale-layer""",
    lambda: Case(draw.table(classes=4), nets.mlp(12, 64, 64, 64, 64, 64, 4), F.cross_entropy),
    plant=lambda model: draw_weights(model, 1.0))
FIRST("""one-convolution-a-hundred-times-too-large | CNN | 5 | A custom initialisation of one layer that forgot the
    fan-in. | layer-scale-stands-out exploding-gradient exploding-signal | features.5 | add-normalizer initialise
    rescale-layer""",
    lambda: Case(draw.blob_images(48, channels=1), nets.ConvNet(1, depth=5, norm=False), nn.CrossEntropyLoss()),
    plant=scaled("features.5.weight", 100.0))
FIRST("""code-ten-thousand-times-too-small | autoencoder | 6 | Both sides of the code initialised with std=1e-4 'to
    start near zero'. | layer-scale-stands-out output-constant vanishing-gradient vanishing-signal | decoder.0 encoder.4
    | add-normalizer initialise rescale-layer""",
    lambda: given(draw.blob_images(64), lambda images, _: given(images.flatten(1), lambda x: Case((x, x),
    nets.Autoencoder(), nn.MSELoss()))), plant=each(scaled("encoder.4.weight decoder.0.weight", 1e-4),
    filled("encoder.4.bias", 0.0)))
FIRST("""last-convolution-a-million-times-too-large | U-Net | 7 | A checkpoint of an integer-quantized layer loaded
    without its scale.
    | layer-scale-stands-out exploding-gradient exploding-signal saturated-units | head | initialise rescale-layer""",
    lambda: given(draw.blob_images(16), lambda x, _: Case((x, (x > 1.0).float()), nets.UNet(), nn.BCEWithLogitsLoss(),
    judge_of=overlap_with)), plant=scaled("head.weight", 1e6))
FIRST("""tied-embedding-drawn-too-large | GPT | 8 | nn.Embedding's default N(0, 1), multiplied by sqrt(width) as in the
    paper, tied to the head. | layer-scale-stands-out branch-dominates exploding-gradient exploding-signal | head tokens
    | initialise rescale-layer""",
    lambda: Case(draw.text(), nets.GPT(), over_tokens), plant=drawn("tokens.weight", 6.0))
SECOND("""log-variances-in-the-hundreds | VAE | 60 | The layer of the log variance is drawn like one of the variance:
    its exponential overflows. | layer-scale-stands-out exploding-gradient exploding-signal gradient-not-finite
    not-finite | log_variance | guard-domain initialise rescale-layer""",
    lambda: given(draw.as_pixels(draw.blob_images()[0]).flatten(1), lambda images: Case((images, images),
    changed(lambda model: put(model.encoder, s_[1], nn.SiLU()))(nets.VAE()), evidence_loss,
    judge_of=lambda images: lambda output: explained_variance(images)(torch.sigmoid(output[0])))),
    plant=drawn("log_variance.weight", 15.0))
SECOND("""residual-sum-doubles-in-each-block | ResNet | 64 | ResNet without normalizers: the branches are not scaled
    down, so that variance triples per block.
    | exploding-signal exploding-gradient | | add-normalizer initialise rescale-layer scale-branch""",
    lambda broken: Case(model=PlainResidualOfSecond(16, 1.0 if broken else 0.15), data=draw.table(),
    loss="cross_entropy"))
SECOND("""graph-weights-from-rand-instead-of-randn | GNN | 6 | PyTorch forums: torch.rand draws from 0..1, so that all
    weights are positive and large. | exploding-signal exploding-gradient layer-scale-stands-out rank-one-weights |
    layers.{0..2} layers.{0..2}.neighbour layers.{0..2}.own | initialise rescale-layer""",
    lambda: given(draw.communities(), lambda x, edges, labels: Case((x, labels), nets.GraphNet(edges, width=32,
    depth=3), "cross_entropy")), plant=over(lambda model: model.layers,
    lambda layer: (nn.init.uniform_(layer.own.weight), nn.init.uniform_(layer.neighbour.weight))))
SECOND("""middle-layer-fifty-times-too-large | tabular | 11 | A rescaling for inference (weights times a quantisation
    scale) that was never undone.
    | layer-scale-stands-out exploding-gradient exploding-signal | 4 | initialise rescale-layer restore-weights""",
    lambda: given(nets.mlp(12, 64, 64, 64, 64, 3), lambda model: Case(draw.table(), model, "cross_entropy")),
    plant=scaled("4.weight", 50))
SECOND("""code-a-thousand-times-too-small | autoencoder | 13 | An initialisation meant for a policy's last layer (gain
    0.001) in the middle of an autoencoder. | layer-scale-stands-out output-constant vanishing-gradient vanishing-signal
    | encoder.4 | initialise rescale-layer""",
    lambda: given(draw.as_pixels(draw.blob_images()[0]).flatten(1),
    lambda images: given((images - images.mean()) / images.std(), lambda images: Case((images, images),
    nets.Autoencoder(), "mse"))), plant=each(scaled("encoder.4.weight", 1e-3), filled("encoder.4.bias", 0.0)))
SECOND("""logit-scale-is-the-exponential-of-nine | contrastive | 14 | CLIP's log(1/0.07) replaced by a scale that is
    exponentiated once more than meant. | layer-scale-stands-out exploding-gradient exploding-signal saturated-units |
    log_scale | initialise rescale-layer scale-outputs""",
    lambda broken: Case(rarer.two_views(), rarer.ContrastiveEncoder(9.0 if broken else 2.6), "cross_entropy",
    judge_of=accuracy))
SECOND("""regression-head-a-hundred-times-too-large | regression | 15 | A head drawn with normal_(std=1) times the fan.
    | layer-scale-stands-out exploding-gradient exploding-signal targets-wrong-scale | 6 | initialise rescale-layer""",
    lambda: given(nets.mlp(8, 64, 64, 64, 1), lambda model: Case(draw.regression_table(), model, "mse")),
    plant=scaled("6.weight", 100))
SECOND("""last-layer-of-the-twins-far-too-large | Siamese | 16 | Weights stored as integers and read back without their
    scale: all distances are far beyond the margin.
    | layer-scale-stands-out exploding-gradient exploding-signal | encoder.3 | initialise rescale-layer""",
    lambda: given(draw.image_pairs(), lambda pairs, same: Case((pairs, same), nets.Siamese(), contrastive_loss,
    judge=lambda output: ((F.pairwise_distance(*output) < 1) == (same > 0.5)).float().mean().item())),
    plant=scaled("encoder.3.weight", 127))
SECOND("""patches-drown-the-places | ViT | 17 | A patch embedding for pixels of 0..1/255 used for standardised pixels.
    | branch-dominates layer-scale-stands-out | patches places token | initialise rescale-layer""",
    lambda: given(nets.ViT(), lambda model: Case(draw.blob_images(), model, "cross_entropy")),
    plant=scaled("patches.weight", 255))
SECOND("""embedding-of-users-hides-the-items | recommender | 19 | One table is loaded from factors in another unit, 200
    times larger than the other one.
    | layer-scale-stands-out branch-dominates | items users | initialise rescale-layer""",
    lambda: given(nets.Recommender(), lambda model: Case(draw.ratings(), model, "mse")),
    plant=scaled("users.weight", 200))
THIRD("""twenty-four-branches-at-full-size | residual MLP | 84 | Residual blocks without normalizer or factor: each more
    than doubles the variance of the sum. | exploding-signal branch-dominates exploding-gradient | | add-normalizer
    initialise lower-learning-rate rescale-layer scale-branch""",
    lambda broken: Case(draw.table(), rarer.DeepResidual(1.0 if broken else 0.1), "cross_entropy"))
THIRD("""squares-as-activations-of-six-layers | regression | 89 | Squares between layers, for a network that is to be
    evaluated under encryption: sizes are squared six times. | exploding-signal activation-unsuitable exploding-gradient
    not-finite vanishing-gradient vanishing-signal | | add-normalizer change-activation""",
    lambda broken: Case(draw.regression_table(), nets.mlp(8, 32, 32, 32, 32, 32, 1,
    activation=Square if broken else nn.Tanh), "mse"))
THIRD("""gain-of-a-branch-at-three-hundred | ResNet | 95 | The gain of one normalizer comes from a checkpoint in which
    it stood for percent. | layer-scale-stands-out branch-dominates exploding-gradient exploding-signal | blocks.1
    blocks.1.bn2 | initialise rescale-layer scale-branch""",
    lambda: Case(draw.blob_images(classes=8), nets.ResNet(width=8, blocks=3, classes=8), "cross_entropy"),
    plant=filled("blocks.1.bn2.weight", 300.0))
THIRD("""uniform-without-its-bounds | CNN | 1 | `nn.init.uniform_(weight)` draws from 0 to 1, not around zero.
    | exploding-signal exploding-gradient layer-scale-stands-out rank-one-weights saturated-units | features
    features.{0,2,5,7} | add-normalizer initialise rescale-layer""",
    lambda: Case(draw.blob_images(), nets.ConvNet(norm=False), "cross_entropy"),
    plant=over(lambda model: model.features, lambda module: nn.init.uniform_(module.weight), nn.Conv2d))
THIRD("""drawn-as-bert-but-without-its-norms | tabular | 3 | The 0.02 of BERT's weights, copied to a plain network that
    has no LayerNorm to repair it. | vanishing-signal layer-scale-stands-out output-constant vanishing-gradient | 0 10 2
    4 6 8 | add-normalizer add-skip initialise rescale-layer""",
    lambda: Case(draw.table(), nets.mlp(12, 48, 48, 48, 48, 48, 3), "cross_entropy"), plant=over(lambda model: model,
    lambda module: nn.init.normal_(module.weight, std=0.02), nn.Linear))
THIRD("""divided-by-the-fan-instead-of-its-root | autoencoder | 5 | Weights by hand, `randn / n` where `randn / sqrt(n)`
    was meant. | vanishing-signal layer-scale-stands-out output-constant vanishing-gradient | decoder decoder.{0,2,4}
    encoder encoder.{0,2,4} | add-normalizer add-skip initialise rescale-layer""",
    lambda: given(draw.blob_images()[0].flatten(1), lambda x: Case((x, x), nets.Autoencoder(), "mse")),
    plant=over(lambda model: model.modules(), lambda module: nn.init.normal_(module.weight, std=1 / module.in_features),
    nn.Linear))
THIRD("""places-left-as-torch-empty-gave-them | ViT | 9 | `nn.Parameter(torch.empty(...))` that nobody fills holds what
    lay in memory before. | branch-dominates exploding-signal layer-scale-stands-out output-constant vanishing-gradient
    | places | initialise rescale-layer scale-branch""",
    lambda: Case(draw.blob_images(), nets.ViT(), "cross_entropy"),
    plant=lambda model: model.places.copy_(torch.randn_like(model.places) * 10 ** (6 * torch.rand_like(model.places))))
THIRD("""variance-given-where-deviation-is-asked | GPT | 11 | A library that takes a deviation gets 0.7, the other way
    around of what the paper's 0.02 means. | exploding-signal attention-saturated branch-dominates exploding-gradient
    layer-scale-stands-out saturated-units | blocks blocks.{0,1} blocks.{0,1}.attention.out blocks.{0,1}.attention.qkv
    blocks.{0,1}.feed blocks.0.feed.{0,2} blocks.1.feed.{0,2} head positions tokens | initialise lower-learning-rate
    rescale-layer scale-attention scale-branch""",
    lambda: Case(draw.text(), nets.GPT(tied=False), over_tokens), plant=over(lambda model: model.modules(),
    lambda module: nn.init.normal_(module.weight, std=0.7), nn.Linear))
THIRD("""last-convolution-of-a-segmenter-times-500 | segmentation | 12 | A head whose weights come from a conversion
    without its scale.
    | layer-scale-stands-out exploding-gradient exploding-signal | head | initialise rescale-layer""",
    lambda: Case(rarer.blob_masks(), nets.UNet(), F.binary_cross_entropy_with_logits, judge_of=overlap_with),
    plant=scaled("head.weight", 500))
THIRD("""one-expert-shouts | mixture of experts | 13 | An expert copied from a checkpoint with another convention of
    scale. | layer-scale-stands-out branch-dominates exploding-gradient exploding-signal | experts experts.2
    experts.2.{0,2} | initialise rescale-layer scale-branch""",
    lambda: Case(draw.table(), rarer.Mixture(), "cross_entropy"), plant=scaled("experts.2.2.weight", 20000))
THIRD("""messages-of-the-second-round-too-loud | GNN | 16 | Weights of a layer that divided its sum over edges by their
    number, in one that does not. | layer-scale-stands-out branch-dominates exploding-gradient exploding-signal |
    layers.1 layers.1.neighbour layers.1.own | add-normalizer initialise rescale-layer""",
    lambda: given(draw.communities(), lambda x, edges, y: Case((x, y), nets.GraphNet(edges, depth=3), "cross_entropy",
    judge_of=accuracy)), plant=scaled("layers.1.own.weight layers.1.neighbour.weight", 5000))
THIRD("""box-layer-still-in-pixels | detection | 17 | Weights of a head that spoke in pixels are loaded into one that
    speaks in parts of the image.
    | layer-scale-stands-out exploding-gradient exploding-signal | box | initialise rescale-layer""",
    lambda: Case(rarer.boxes(), rarer.DetectorOfThird(), nn.SmoothL1Loss()), plant=scaled("box.weight", 640))
