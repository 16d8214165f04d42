"""The open half, more healthy models: other architectures and states of training, as people write them."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from ...case import Case, Healthy, healthy
from ..parts import (
    ConvNet,
    ResNet,
    SequenceClassifier,
    TransformerBlock,
    UNet,
    as_pixels,
    blob_images,
    communities,
    discriminator,
    image_pairs,
    mlp,
    noisy_images,
    over_tokens,
    regression_table,
    remembered_series,
    sentences,
    table,
    text,
    train,
    waves,
)
from .open_more_images import (
    Capsules,
    ConvNeXt,
    Detector,
    Enlarger,
    EulerField,
    FilmDenoiser,
    Mixer,
    PointNet,
    cells_and_boxes,
    clouds,
    pixel_classes,
)
from .open_more_layers import Hourglass
from .open_more_sequences import (
    DilatedBlock,
    Llama,
    MaskedReader,
    Pointer,
    Reservoir,
    Routed,
    StateSpace,
    Tagger,
    Translator,
    WaveNet,
    adapted_llama,
    needle_sentences,
    padded_sentences,
    tags,
)
from .open_more_tables import (
    DLRM,
    GAT,
    GCN,
    ActorCritic,
    Conditional,
    CosinePairs,
    Coupling,
    DeepFM,
    HyperNetwork,
    Quantised,
    SignNet,
    SumNet,
    Towers,
    clicks,
    flow_loss,
    halves,
    several_labels,
)

HEALTHY: list[Healthy] = []


# --------------------------------------------------------------------------------------------------------------- images


@healthy(HEALTHY, family="ConvNeXt")
def convnext_with_small_layer_scale() -> Case:
    torch.manual_seed(901)
    x, y = blob_images(48)
    return Case(model=ConvNeXt(depth=4, gamma=1e-6), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="MLP-Mixer")
def mixer_trained_a_little() -> Case:
    torch.manual_seed(902)
    x, y = blob_images(48)
    model = Mixer()
    train(model, x, y, F.cross_entropy, steps=40)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class DenseNet(nn.Module):
    """Each layer reads all earlier maps; pre-activation BatchNorm, a transition, mean over places."""

    def __init__(self, growth: int = 6, depth: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False)
        widths = [8 + growth * index for index in range(depth + 1)]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, growth, 3, padding=1, bias=False))
            for w in widths[:-1]
        )
        self.norm, self.head = nn.BatchNorm2d(widths[-1]), nn.Linear(widths[-1], 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return self.head(F.relu(self.norm(x)).mean((2, 3)))


@healthy(HEALTHY, family="DenseNet")
def dense_blocks() -> Case:
    torch.manual_seed(903)
    x, y = blob_images()
    return Case(model=DenseNet(), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="capsules")
def capsules_with_a_guard() -> Case:
    torch.manual_seed(904)
    x, y = blob_images()
    return Case(model=Capsules(1e-6), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="detector")
def detector_with_a_prior() -> Case:
    torch.manual_seed(905)
    x, _ = blob_images()
    model = Detector()
    nn.init.constant_(model.objectness.bias, -2.2)
    targets = torch.cat(cells_and_boxes(x), dim=1)

    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return F.binary_cross_entropy(output[0], target[:, :16]) + F.smooth_l1_loss(output[1], target[:, 16:])

    return Case(model=model, data=(x, targets), loss=loss)


@healthy(HEALTHY, family="U-Net")
def borders_that_are_ignored() -> Case:
    torch.manual_seed(906)
    x, _ = blob_images(16)
    y = pixel_classes(x)
    y[:, 0], y[:, -1], y[:, :, 0], y[:, :, -1] = 255, 255, 255, 255
    return Case(model=UNet(outputs=4), data=(x, y), loss=nn.CrossEntropyLoss(ignore_index=255))


@healthy(HEALTHY, family="super-resolution")
def residual_of_an_enlarged_image() -> Case:
    torch.manual_seed(907)
    large = blob_images()[0]
    model = Enlarger(lambda image: image)
    nn.init.zeros_(model.body[-1].weight)
    nn.init.zeros_(model.body[-1].bias)
    return Case(model=model, data=(F.avg_pool2d(large, 2), large), loss=nn.L1Loss())


@healthy(HEALTHY, family="diffusion")
def film_from_zero() -> Case:
    torch.manual_seed(908)
    inputs, noise = noisy_images()
    return Case(model=FilmDenoiser(1.0), data=(inputs, noise), loss="mse")


@healthy(HEALTHY, family="PointNet")
def point_clouds_trained_well() -> Case:
    torch.manual_seed(909)
    x, y = clouds(64)
    model = PointNet()
    train(model, x, y, F.cross_entropy, steps=150)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


@healthy(HEALTHY, family="neural ODE")
def thirty_small_euler_steps() -> Case:
    torch.manual_seed(910)
    x, y = blob_images(64, classes=6)
    return Case(model=EulerField(1 / 30), data=(x, y), loss="cross_entropy")


def hinge(output: Tensor, sign: Tensor) -> Tensor:
    """Return the hinge loss of a GAN's discriminator; targets are 1 and -1."""
    return F.relu(1 - output * sign).mean()


@healthy(HEALTHY, family="GAN")
def discriminator_with_a_hinge() -> Case:
    torch.manual_seed(911)
    x, y = blob_images(classes=2)
    sign = (2.0 * y - 1)[:, None]
    x = torch.where(sign[:, :, None, None] > 0, x, torch.randn_like(x))
    model = discriminator(spectral_norm)
    train(model, x, sign, hinge, steps=2)
    return Case(model=model, data=(x, sign), loss=hinge)


class StochasticDepth(ResNet):
    """A ResNet whose blocks are left out at random in training."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if not self.training or torch.rand(()) > 0.2:
                x = block(x)
        return self.head(x.mean((2, 3)))


@healthy(HEALTHY, family="ResNet")
def blocks_left_out_at_random() -> Case:
    torch.manual_seed(912)
    x, y = blob_images(64)
    model = StochasticDepth(blocks=3)
    train(model, x, y, F.cross_entropy, steps=50)
    return Case(model=model, data=(x, y), loss="cross_entropy", train=False)


class FrozenStatistics(ConvNet):
    """A trained network whose BatchNorms stay in eval mode while it is tuned further."""

    def train(self, mode: bool = True) -> "FrozenStatistics":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d) and module.num_batches_tracked >= 40:
                module.eval()
        return self


@healthy(HEALTHY, family="CNN")
def tuned_with_frozen_statistics() -> Case:
    torch.manual_seed(913)
    x, y = blob_images(96)
    model = FrozenStatistics(width=8)
    train(model, x, y, F.cross_entropy, steps=40)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="CNN")
def smoothed_labels() -> Case:
    torch.manual_seed(914)
    x, y = blob_images()
    return Case(model=ConvNet(), data=(x, y), loss=nn.CrossEntropyLoss(label_smoothing=0.1))


class Siren(nn.Module):
    """Sines of linear maps, drawn as Sitzmann et al. (2020) say."""

    def __init__(self, speed: float = 30.0) -> None:
        super().__init__()
        self.speed = speed
        self.layers = nn.ModuleList([nn.Linear(2, 48), nn.Linear(48, 48), nn.Linear(48, 1)])
        for index, layer in enumerate(self.layers):
            fan_in = layer.in_features
            bound = 1 / fan_in if index == 0 else math.sqrt(6 / fan_in) / speed
            nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(self.speed * layer(x))
        return self.layers[-1](x)


@healthy(HEALTHY, family="neural field")
def sines_of_a_field() -> Case:
    torch.manual_seed(915)
    place = 2 * torch.rand(256, 2) - 1
    field = torch.sin(6 * place[:, :1]) * torch.cos(5 * place[:, 1:])
    model = Siren()
    train(model, place, field, F.mse_loss, steps=60, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))
    return Case(model=model, data=(place, field), loss="mse")


class TiedAutoencoder(nn.Module):
    """The decoder is the transposed encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 256) / 16)
        self.inner, self.outer = nn.Parameter(torch.zeros(24)), nn.Parameter(torch.zeros(256))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.weight, self.inner)), self.weight.T, self.outer)


@healthy(HEALTHY, family="autoencoder")
def decoder_tied_to_encoder() -> Case:
    torch.manual_seed(916)
    x = blob_images()[0].flatten(1)
    return Case(model=TiedAutoencoder(), data=(x, x), loss="mse")


class CosineClassifier(nn.Module):
    """Cosines between an embedding and one direction per class, times 16."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.directions = mlp(256, 48, 24), nn.Parameter(torch.randn(6, 24))

    def forward(self, x: Tensor) -> Tensor:
        return 16 * F.normalize(self.encoder(x.flatten(1)), dim=1) @ F.normalize(self.directions, dim=1).T


@healthy(HEALTHY, family="metric learning")
def cosines_times_sixteen() -> Case:
    torch.manual_seed(917)
    x, y = blob_images(96, classes=6)
    model = CosineClassifier()
    train(model, x, y, F.cross_entropy, steps=50)
    return Case(model=model, data=(x, y), loss="cross_entropy")


# ------------------------------------------------------------------------------------------------------ text and series


@healthy(HEALTHY, family="GPT")
def llama_fresh() -> Case:
    torch.manual_seed(921)
    ids, following = text(16)
    return Case(model=Llama(depth=3), data=(ids, following), loss=over_tokens)


@healthy(HEALTHY, family="GPT")
def llama_with_branches_from_zero() -> Case:
    torch.manual_seed(922)
    ids, following = text(16)
    model = Llama()
    for layer in model.layers:
        nn.init.zeros_(layer.o.weight)
        nn.init.zeros_(layer.mlp.down.weight)
    return Case(model=model, data=(ids, following), loss=over_tokens)


@healthy(HEALTHY, family="GPT")
def llama_in_bfloat16_trained() -> Case:
    torch.manual_seed(923)
    ids, following = text(16)
    model = Llama()
    train(model, ids, following, over_tokens, steps=40)
    return Case(model=model.bfloat16(), data=(ids, following), loss=over_tokens, train=False)


@healthy(HEALTHY, family="LoRA")
def adapters_of_llama_trained() -> Case:
    model, ids, following = adapted_llama(924)
    train(model, ids, following, over_tokens, steps=30)
    return Case(model=model, data=(ids, following), loss=over_tokens)


class Universal(nn.Module):
    """One block applied six times, on purpose, with a step embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Parameter(0.1 * torch.randn(16, 32))
        self.steps, self.block = nn.Parameter(0.1 * torch.randn(6, 32)), TransformerBlock(32, 4, causal=False)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places
        for step in self.steps:
            x = self.block(x + step)
        return self.head(self.norm(x).mean(1))


@healthy(HEALTHY, family="BERT")
def one_block_six_times_on_purpose() -> Case:
    torch.manual_seed(925)
    ids, y = sentences()
    return Case(model=Universal(), data=(ids, y), loss="cross_entropy")


@healthy(HEALTHY, family="encoder-decoder")
def translator_fresh() -> Case:
    torch.manual_seed(926)
    source = torch.randint(20, (32, 6))
    following = source.flip(1)
    ids = torch.cat([source, torch.zeros(32, 1, dtype=torch.long), following[:, :-1]], dim=1)
    return Case(model=Translator(detached=False), data=(ids, following), loss=over_tokens)


@healthy(HEALTHY, family="seq2seq")
def additive_attention_trained() -> Case:
    torch.manual_seed(927)
    ids, y = needle_sentences()
    model = Pointer()
    train(model, ids, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(ids, y), loss="cross_entropy")


@healthy(HEALTHY, family="mixture of experts")
def soft_experts_for_tokens() -> Case:
    torch.manual_seed(928)
    ids, following = text(32)
    model = Routed()
    train(model, ids, following, over_tokens, steps=40)
    return Case(model=model, data=(ids, following), loss=over_tokens)


@healthy(HEALTHY, family="tagger")
def tagger_fresh() -> Case:
    torch.manual_seed(929)
    return Case(model=Tagger(), data=tags(), loss=over_tokens)


@healthy(HEALTHY, family="WaveNet")
def gated_dilations_trained() -> Case:
    torch.manual_seed(930)
    x, y = waves()
    model = WaveNet()
    train(model, x, y, F.cross_entropy, steps=25)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="TCN")
def dilated_blocks_with_weight_norm() -> Case:
    torch.manual_seed(931)
    x, y = remembered_series(steps=32)
    blocks = [DilatedBlock(4 if i == 0 else 24, 24, 2**i, skip=True) for i in range(5)]
    for block in blocks:
        block.conv1, block.conv2 = weight_norm(block.conv1), weight_norm(block.conv2)
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(24 * 32, 4))
    return Case(model=model, data=(x.mT.contiguous(), y), loss="cross_entropy")


@healthy(HEALTHY, family="echo state")
def reservoir_with_a_trained_readout() -> Case:
    torch.manual_seed(932)
    x, y = remembered_series(steps=12)
    return Case(model=Reservoir(0.98), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="state space model")
def state_space_with_long_memory() -> Case:
    torch.manual_seed(933)
    x, y = remembered_series(steps=50)
    return Case(model=StateSpace(0.97), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="GRU")
def two_recurrent_layers_with_dropout() -> Case:
    torch.manual_seed(934)
    x, y = waves()
    model = SequenceClassifier(nn.GRU(3, 16, num_layers=2, dropout=0.3, batch_first=True), 3)
    train(model, x, y, F.cross_entropy, steps=15)
    return Case(model=model, data=(x, y), loss="cross_entropy")


class BagOfWords(nn.Module):
    """A mean of embeddings and a linear layer (fastText)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(400, 16, mode="mean"), nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))


@healthy(HEALTHY, family="bag of words")
def mean_of_embeddings() -> Case:
    torch.manual_seed(935)
    ids, y = needle_sentences(64, 8)
    return Case(model=BagOfWords(), data=(ids, y), loss="cross_entropy")


class Speech(nn.Module):
    """Frames, a bidirectional GRU, log probabilities of five symbols and the blank, for CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(6, 16, batch_first=True, bidirectional=True), nn.Linear(32, 6)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.recurrent(frames)[0]).log_softmax(-1)


def ctc(output: Tensor, target: Tensor) -> Tensor:
    """Return the CTC loss of log probabilities (batch, time, symbols); all targets have the same length."""
    lengths = [torch.full((len(target),), size) for size in (output.shape[1], target.shape[1])]
    return F.ctc_loss(output.transpose(0, 1), target, *lengths)


@healthy(HEALTHY, family="speech")
def symbols_by_ctc() -> Case:
    torch.manual_seed(936)
    symbols = torch.randint(1, 6, (32, 5))
    frames = F.one_hot(symbols.repeat_interleave(4, dim=1), 6) + 0.3 * torch.randn(32, 20, 6)
    model = Speech()
    train(model, frames, symbols, ctc, steps=20)
    return Case(model=model, data=(frames, symbols), loss=ctc)


# ------------------------------------------------------------------------- tables, recommenders, graphs, codes, control


@healthy(HEALTHY, family="DeepFM")
def factorisation_machine_fresh() -> Case:
    torch.manual_seed(941)
    return Case(model=DeepFM(0.1), data=clicks(), loss=nn.BCEWithLogitsLoss())


@healthy(HEALTHY, family="DLRM")
def logarithms_of_counts() -> Case:
    torch.manual_seed(942)
    ids, y = clicks()
    counts = (10 ** (1 + 0.8 * torch.randn(192, 5))).round()
    return Case(
        model=DLRM(), data=({"dense": torch.log1p(counts), "sparse": ids[:, :3]}, y), loss=nn.BCEWithLogitsLoss()
    )


@healthy(HEALTHY, family="GAT")
def graph_attention_trained() -> Case:
    torch.manual_seed(943)
    x, edges, y = communities()
    model = GAT(edges, per_node=True)
    train_on_all(model, x, y, 40)
    return Case(model=model, data=(x, y), loss="cross_entropy")


def train_on_all(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Take steps of Adam on the whole of the data, as a graph needs it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()


@healthy(HEALTHY, family="GIN")
def sums_with_batch_norm() -> Case:
    torch.manual_seed(944)
    x, edges, y = communities()
    return Case(model=SumNet(edges, 3, norm=True), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="GCN")
def deep_graph_with_an_initial_residual() -> Case:
    torch.manual_seed(945)
    x, edges, y = communities()
    return Case(model=GCN(edges, 8, residual=True), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="VQ-VAE")
def codebook_partly_unused() -> Case:
    torch.manual_seed(946)
    x = blob_images(96, classes=8)[0].flatten(1)
    model = Quantised(straight=True)
    train(model, x, x, F.mse_loss, steps=40)
    return Case(model=model, data=(x, x), loss="mse")


@healthy(HEALTHY, family="flow")
def flow_close_to_the_identity() -> Case:
    torch.manual_seed(947)
    x = torch.randn(128, 8) @ torch.randn(8, 8) / 3
    return Case(model=Coupling(bounded=True, gain=0.01), data=(x, x), loss=flow_loss)


@healthy(HEALTHY, family="CLIP")
def towers_with_a_learned_scale() -> Case:
    torch.manual_seed(948)
    return Case(model=Towers(math.log(5)), data=halves(), loss="cross_entropy")


@healthy(HEALTHY, family="Siamese")
def scaled_cosines_of_pairs_trained() -> Case:
    torch.manual_seed(949)
    x, y = image_pairs()
    model = CosinePairs(10.0)
    train(model, x, y, F.binary_cross_entropy_with_logits, steps=15)
    return Case(model=model, data=(x, y), loss=nn.BCEWithLogitsLoss())


def policy_loss(output: tuple[Tensor, Tensor], returns: Tensor) -> Tensor:
    """Return the loss of the values, less a bonus for entropy."""
    p, value = output
    return F.mse_loss(value, returns) + 0.01 * torch.special.xlogy(p, p + 1e-8).sum(1).mean()


@healthy(HEALTHY, family="actor-critic")
def policy_with_forbidden_actions() -> Case:
    torch.manual_seed(950)
    state, returns = regression_table()
    return Case(model=ActorCritic(), data=(state, returns[:, 0]), loss=policy_loss)


class Dueling(nn.Module):
    """The Q-values of a state from its value and the advantages of the actions; only the taken one is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.value, self.advantage = mlp(8, 48, 48), nn.Linear(48, 1), nn.Linear(48, 4)

    def forward(self, state: Tensor) -> Tensor:
        hidden = torch.relu(self.trunk(state))
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(1, keepdim=True)


def taken_action_loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the Huber loss of the taken actions; the target holds the action and its return."""
    return F.smooth_l1_loss(output.gather(1, target[:, :1].long()), target[:, 1:])


@healthy(HEALTHY, family="DQN")
def one_action_of_four_compared() -> Case:
    torch.manual_seed(951)
    state, returns = regression_table()
    taken = torch.randint(4, (128, 1)).float()
    return Case(model=Dueling(), data=(state, torch.cat([taken, returns], dim=1)), loss=taken_action_loss)


@healthy(HEALTHY, family="MLP")
def rare_labels_weighed() -> Case:
    torch.manual_seed(952)
    x, y = several_labels()
    y = y * (torch.rand_like(y) < 0.3)
    return Case(model=mlp(12, 32, 5), data=(x, y), loss=nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 6.0)))


def pinball(output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of the quantiles 0.1, 0.5 and 0.9."""
    wrong, level = target - output, torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(level * wrong, (level - 1) * wrong).mean()


@healthy(HEALTHY, family="quantiles")
def three_quantiles() -> Case:
    torch.manual_seed(953)
    x, y = regression_table()
    model = mlp(8, 32, 3)
    train(model, x, y, pinball, steps=60)
    return Case(model=model, data=(x, y), loss=pinball)


def partial_likelihood(output: Tensor, target: Tensor) -> Tensor:
    """Return the negative partial likelihood of Cox's model, for samples by falling time."""
    return -(output - torch.logcumsumexp(output, dim=0)).mean()


@healthy(HEALTHY, family="survival")
def hazards_by_logcumsumexp() -> Case:
    torch.manual_seed(954)
    x, y = regression_table()
    order = y[:, 0].argsort()
    return Case(model=mlp(8, 32, 1), data=(x[order], y[order]), loss=partial_likelihood)


@healthy(HEALTHY, family="counts")
def logarithms_of_rates() -> Case:
    torch.manual_seed(955)
    x, _ = regression_table()
    counts = torch.poisson(torch.exp(0.5 + 0.6 * x[:, :1]))
    return Case(model=mlp(8, 32, 1), data=(x, counts), loss=nn.PoissonNLLLoss())


@healthy(HEALTHY, family="hypernetwork")
def weights_written_small() -> Case:
    torch.manual_seed(956)
    return Case(model=HyperNetwork(0.06), data=regression_table(), loss="mse")


@healthy(HEALTHY, family="logistic regression")
def logistic_regression_from_zero() -> Case:
    torch.manual_seed(957)
    x, y = table(classes=2)
    model = nn.Linear(12, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return Case(model=model, data=(torch.cat([x[:, :11], x[:, :1] * x[:, 1:2]], dim=1), y), loss="cross_entropy")


class RandomFeatures(nn.Module):
    """Random cosines, fixed on purpose, and a trained linear layer (Rahimi and Recht 2007)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Linear(8, 256).requires_grad_(False)
        nn.init.normal_(self.features.weight, std=0.5)
        nn.init.uniform_(self.features.bias, 0, 2 * math.pi)
        self.head = nn.Linear(256, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cos(self.features(x)))


@healthy(HEALTHY, family="random features")
def random_cosines_fixed() -> Case:
    torch.manual_seed(958)
    return Case(model=RandomFeatures(), data=regression_table(), loss="mse")


class Highway(nn.Module):
    """Ten highway layers whose gates begin at a bias of -2: mostly carrying."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 24), nn.Linear(24, 3)
        self.layers, self.gates = (nn.ModuleList(nn.Linear(24, 24) for _ in range(10)) for _ in range(2))
        for gate in self.gates:
            nn.init.constant_(gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer, gate in zip(self.layers, self.gates):
            share = torch.sigmoid(gate(x))
            x = share * torch.relu(layer(x)) + (1 - share) * x
        return self.head(x)


@healthy(HEALTHY, family="Highway")
def gates_that_mostly_carry() -> Case:
    torch.manual_seed(959)
    x, y = table()
    return Case(model=Highway(), data=(x, y), loss="cross_entropy")


class Predictor(nn.Module):
    """Two views, an online network with a predictor, and a frozen copy without a gradient (BYOL)."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target, self.predict = mlp(256, 64, 16), mlp(256, 64, 16), mlp(16, 32, 16)
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)

    def forward(self, views: Tensor) -> Tensor:
        first, second = views.flatten(2).unbind(1)
        with torch.no_grad():
            aim = self.target(second)
        return 2 - 2 * F.cosine_similarity(self.predict(self.online(first)), aim)


@healthy(HEALTHY, family="self-supervised")
def target_network_without_gradient() -> Case:
    torch.manual_seed(960)
    images, _ = blob_images()
    views = torch.stack([images[:, 0] + 0.2 * torch.randn(64, 16, 16) for _ in range(2)], dim=1)
    zeros = torch.zeros(64)
    return Case(model=Predictor(), data=(views, zeros), loss=lambda output, target: (output - target).mean())


class Mixture(nn.Module):
    """A density of three normal distributions: logits, means, logarithms of deviations."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(8, 32, 9)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.net(x).chunk(3, dim=1)


def mixture_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative log likelihood of a mixture."""
    logits, mean, log_deviation = output
    log_density = -0.5 * ((target - mean) / log_deviation.exp()).square() - log_deviation
    return -torch.logsumexp(logits.log_softmax(1) + log_density, dim=1).mean()


@healthy(HEALTHY, family="mixture density")
def mixture_of_three_normals() -> Case:
    torch.manual_seed(961)
    x, y = regression_table()
    model = Mixture()
    train(model, x, y, mixture_loss, steps=30)
    return Case(model=model, data=(x, y), loss=mixture_loss)


@healthy(HEALTHY, family="binary network")
def signs_with_a_straight_through_gradient() -> Case:
    torch.manual_seed(962)
    x, y = table()
    return Case(model=SignNet(straight=True), data=(x, y), loss="cross_entropy")


@healthy(HEALTHY, family="conditional")
def condition_dropped_at_times() -> Case:
    torch.manual_seed(963)
    label = torch.arange(96) % 6
    curve = torch.sin(torch.linspace(0, 3, 32) * (1 + label[:, None])) + 0.05 * torch.randn(96, 32)
    return Case(model=Conditional(0.1), data=({"noise": torch.randn(96, 8), "label": label}, curve), loss="mse")


class TwoTasks(nn.Module):
    """A shared trunk and a ModuleDict of heads: a class and a number, as a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.LayerNorm(48), nn.GELU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(48, 3), "size": nn.Linear(48, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.trunk(x)
        return {name: head(hidden) for name, head in self.heads.items()}


def two_losses(output: dict[str, Tensor], target: Tensor) -> Tensor:
    """Return the loss of the number and a tenth of that of the class, which is its sign by thirds."""
    kind = (target[:, 0] > -0.4).long() + (target[:, 0] > 0.4).long()
    return F.mse_loss(output["size"], target) + 0.1 * F.cross_entropy(output["kind"], kind)


@healthy(HEALTHY, family="two tasks")
def heads_in_a_dict() -> Case:
    torch.manual_seed(964)
    return Case(model=TwoTasks(), data=regression_table(), loss=two_losses)


# ------------------------------------------------------------------- raw data that the model itself brings to its scale


@healthy(HEALTHY, family="MLP")
def raw_columns_into_a_batch_norm() -> Case:
    torch.manual_seed(971)
    x, y = table()
    model = nn.Sequential(nn.BatchNorm1d(12), *mlp(12, 32, 3))
    return Case(model=model, data=(x * torch.logspace(0, 2, 12) + 40, y), loss="cross_entropy")


class ByteImages(nn.Module):
    """Takes images of bytes and standardises them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ConvNet(depth=3)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.net((pixels / 255 - 0.3) / 0.2)


@healthy(HEALTHY, family="CNN")
def bytes_divided_inside() -> Case:
    torch.manual_seed(972)
    images, y = blob_images()
    return Case(model=ByteImages(), data=((255 * as_pixels(images)).round(), y), loss="cross_entropy")


@healthy(HEALTHY, family="MLP")
def served_in_half_precision() -> Case:
    torch.manual_seed(973)
    x, y = table()
    model = mlp(12, 48, 48, 3)
    train(model, x, y, F.cross_entropy, steps=150)
    return Case(model=model.half(), data=(x.half(), y), loss="cross_entropy", train=False)


@healthy(HEALTHY, family="autoencoder")
def hourglass_trained_a_little() -> Case:
    torch.manual_seed(974)
    x, _ = blob_images()
    model = Hourglass()
    train(model, x, x, F.mse_loss, steps=50)
    return Case(model=model, data=(x, x), loss="mse")


@healthy(HEALTHY, family="GPT")
def prompts_left_out_of_the_loss() -> Case:
    torch.manual_seed(975)
    ids, following = text(16)
    following = following.masked_fill(torch.arange(24) < 16, -100)
    return Case(model=Llama(depth=2), data=(ids, following), loss=over_tokens)


@healthy(HEALTHY, family="attention")
def padding_hidden_from_the_reader() -> Case:
    torch.manual_seed(976)
    ids, y = padded_sentences()
    model = MaskedReader()
    train(model, ids, y, F.cross_entropy, steps=60)
    return Case(model=model, data=(ids, y), loss="cross_entropy")


class TabTransformer(nn.Module):
    """Categories as tokens through an encoder, numbers through a LayerNorm, both into one MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.categories = nn.Embedding(60, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.norm, self.head = nn.LayerNorm(5), mlp(6 * 16 + 5, 32, 1)
        self.register_buffer("offsets", 10 * torch.arange(6))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        tokens = self.encoder(self.categories(categories + self.offsets))
        return self.head(torch.cat([tokens.flatten(1), self.norm(numbers)], dim=1)).squeeze(1)


@healthy(HEALTHY, family="TabTransformer")
def categories_as_tokens() -> Case:
    torch.manual_seed(977)
    ids, y = clicks()
    data = {"categories": ids, "numbers": torch.randn(192, 5)}
    return Case(model=TabTransformer(), data=(data, y), loss=nn.BCEWithLogitsLoss())
