"""Faults that cut gradients off."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils.checkpoint import checkpoint

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, variant
from ...training import accuracy, evidence_loss, over_tokens, train
from . import rarer, rarer_sequences


class Rounds(nn.Module):  # A stem, one block that runs twice, and a head; the stem may be cut off.
    def __init__(self, detached: bool) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
        self.stem, self.rounds, self.head = nn.Linear(12, 32), nn.Sequential(block, block), nn.Linear(32, 3)
        self.detached = detached

    def forward(self, x: Tensor) -> Tensor:
        stem = F.relu(self.stem(x))
        return self.head(self.rounds(stem.detach() if self.detached else stem))


def error_rate(output: Tensor, target: Tensor) -> Tensor:
    """Return the share of wrong classes, which has no slope."""
    return (output.argmax(1) != target).float().mean()


class ReparametrisedFilter(nn.Module):
    """Convolutions whose second kernel is kept by the module itself and wrapped anew in each forward."""

    def __init__(self, wrapped_anew: bool) -> None:
        super().__init__()
        self.wrapped_anew = wrapped_anew
        self.first, self.head = nn.Conv2d(1, 4, 3, stride=2), nn.Linear(4, 8)
        self.kernel = nn.Parameter(0.2 * torch.randn(4, 4, 5, 5))
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        kernel = nn.Parameter(self.kernel.clone()) if self.wrapped_anew else self.kernel
        return self.head(torch.relu(F.conv2d(torch.relu(self.first(x)), kernel)).mean((2, 3)))


@OPEN
def state_detached_at_each_step(broken: bool) -> Case:
    """GRU | 866 | detach() at each step, meant for the state that is carried from batch to batch.
    | no-gradient recurrent-weights-vanish vanishing-gradient | cell | keep-gradient"""

    # A GRU cell in a loop; the state may be detached at each step.
    def cell_loop(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), 16)
        for step in series.unbind(1):
            state = self.cell(step, state.detach() if self.detached else state)
        return self.head(state)

    x, y = draw.remembered_series(steps=10)
    net = nets.made("CellLoop", cell_loop)
    net.detached, net.cell, net.head = broken, nn.GRUCell(4, 16), nn.Linear(16, 4)
    return Case((x, y), net, "cross_entropy")


@OPEN
def units_by_argmax(broken: bool) -> Case:
    """speech | 871 | An argmax between two stages that are trained together.
    | no-gradient unused-parameter | acoustic acoustic.{0,2} | keep-gradient"""

    # A first network names a unit per step, an embedding of the units is read by a second one.
    def two_stages(self, series: Tensor) -> Tensor:
        scores = self.acoustic(series)
        if self.hard:
            return self.language(self.units(scores.argmax(-1)))
        return self.language(scores.softmax(-1) @ self.units.weight)

    x, y = draw.waves()
    net = nets.made("TwoStages", two_stages)
    net.hard = broken
    net.acoustic = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 6))
    net.units = nn.Embedding(6, 12)
    net.language = nets.SequenceClassifier(nn.GRU(12, 24, batch_first=True), 3)
    return Case((0.2 * x, y), net, "cross_entropy")


@OPEN
def code_drawn_with_sample(broken: bool) -> Case:
    """VAE | 2001 | Normal(...).sample() where rsample() was meant: the reconstruction teaches the encoder nothing.
    | no-gradient | mean | keep-gradient"""

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        code = torch.distributions.Normal(mean, deviation)
        return code.sample() if broken else code.rsample()

    return rarer.vae_case(draw)


@OPEN
def noise_detached(broken: bool) -> Case:
    """VAE | 2013 | The noise was taken for a constant and detached, and the deviation with it.
    | no-gradient | log_variance | keep-gradient"""

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        noise = deviation * torch.randn_like(mean)
        return mean + (noise.detach() if broken else noise)

    return rarer.vae_case(draw)


@OPEN
def code_detached_before_the_decoder(broken: bool) -> Case:
    """VAE | 2014 | A detach that was put there to train the decoder alone.
    | no-gradient | log_variance mean | keep-gradient"""

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        code = mean + deviation * torch.randn_like(mean)
        return code.detach() if broken else code

    return rarer.vae_case(draw)


class CutAutoencoder(nets.Autoencoder):  # An autoencoder whose code passes a function before it is decoded.
    between = staticmethod(lambda code: code)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.between(self.encoder(x)))


def autoencoder_with(between: Callable[[Tensor], Tensor], seed: int) -> Case:
    """Return an autoencoder of images with a function on its code."""
    torch.manual_seed(seed)
    x = draw.blob_images(192)[0].flatten(1)
    model = CutAutoencoder(code=3)
    model.between = between
    return Case(model=model, data=(x, x), loss="mse")


@OPEN
def code_detached(broken: bool) -> Case:
    """autoencoder |  | The code was detached for a plot.
    | no-gradient | encoder encoder.{0,2,4} | keep-gradient"""
    return autoencoder_with((lambda code: code.detach()) if broken else (lambda code: code), 201)


@OPEN
def code_rounded(broken: bool) -> Case:
    """autoencoder |  | A quantised code without a straight-through estimator.
    | no-gradient | encoder encoder.{0,2,4} | keep-gradient"""

    def quantise(code: Tensor) -> Tensor:
        rounded = (4 * code).round() / 4
        return rounded if broken else code + (rounded - code).detach()

    return autoencoder_with(quantise, 202)


class NoGradFeatures(nets.ConvNet):  # Convolutions that run without recording, as for feature extraction.
    recording = False

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.recording and torch.is_grad_enabled()):
            features = self.features(x)
        return self.head(features.mean((2, 3)))


@OPEN
def hard_choice_of_experts(broken: bool) -> Case:
    """mixture of experts | 205 | A hard choice by argmax.
    | no-gradient | router | keep-gradient"""

    # Four experts; a router picks one of them (hard) or weighs all.
    def experts(self, x: Tensor) -> Tensor:
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        weights = self.router(x).softmax(1)
        if self.hard:
            weights = F.one_hot(weights.argmax(1), 4).to(x.dtype)
        return (weights[:, :, None] * outputs).sum(1)

    x, y = draw.table()
    net = nets.made("Experts", experts)
    net.hard, net.router = broken, nn.Linear(12, 4)
    net.experts = nn.ModuleList(nn.Linear(12, 3) for _ in range(4))
    return Case((x, y), net, "cross_entropy")


class RebuiltGraph(nn.Module):  # Two graph layers; the states between them may be rebuilt from a list.
    def __init__(self, edges: Tensor, rebuild: bool) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.rebuild = rebuild
        self.first, self.second = nets.GraphLayer(8, 4), nets.GraphLayer(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x, self.edges))
        if self.rebuild:
            x = torch.tensor(x.tolist(), dtype=x.dtype)
        return self.second(x, self.edges)


@OPEN
def head_behind_a_detach(broken: bool) -> Case:
    """MLP | 223 | Left over from an experiment that trained the head alone.
    | no-gradient | first second third | keep-gradient"""

    # Linear layers with ReLUs that `forward` calls, and a head that may read values without their graph.
    def functional_mlp(self, x: Tensor) -> Tensor:
        x = F.relu(self.third(torch.relu(self.second(F.relu(self.first(x))))))
        return self.head(x.detach() if self.cut else x)

    x, y = draw.table()
    net = nets.made("FunctionalMLP", functional_mlp)
    net.first, net.second, net.third = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 32)
    net.head, net.cut = nn.Linear(32, 3), broken
    return Case((x, y), net, "cross_entropy")


@FIRST
def detached_after_the_first_block(broken: bool) -> Case:
    """ResNet | 61 | A detach() left from debugging.
    | no-gradient | blocks.0 blocks.0.bn1 blocks.0.bn2 blocks.0.conv1 blocks.0.conv2 stem stem.{0,1} | keep-gradient"""

    # Detaches what the first block returns.
    def forward_cut(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.stem(x))
        x = x.detach() if broken else x
        return self.head(self.blocks[1:](x).mean((2, 3)))

    x, y = draw.blob_images(40, classes=8)
    return Case(
        (x, y), variant("Cut", nets.ResNet(width=4, blocks=2, classes=8), forward=forward_cut), nn.CrossEntropyLoss()
    )


@FIRST
def code_drawn_from_data_of_the_mean(broken: bool) -> Case:
    """VAE | 62 | `.data` in the reparametrisation of old tutorials: the encoder learns from the divergence alone.
    | no-gradient | encoder encoder.0 mean | keep-gradient"""

    class Cut(nets.VAE):
        """Draws the code from values without a graph."""

        def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
            return super().draw(mean.data, log_variance.data) if broken else super().draw(mean, log_variance)

    images, _ = draw.blob_images(64, classes=8)
    x = (images > 1.0).float().flatten(1)
    return Case((x, x), Cut(), evidence_loss, judge_of=lambda x: lambda output: -evidence_loss(output, x).item())


@FIRST
def encoder_under_no_grad(broken: bool) -> Case:
    """Siamese | 63 | torch.no_grad() kept around the encoder after the head alone had been tuned.
    | no-gradient | encoder encoder.{0,2,4} | keep-gradient"""

    # Says whether both images of a pair are of one class.
    def verifier(self, pairs: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not broken):
            first, second = self.encoder(pairs[:, 0].flatten(1)), self.encoder(pairs[:, 1].flatten(1))
        return self.head((first - second).abs())

    pairs, same = draw.image_pairs()
    net = nets.made("Verifier", verifier)
    net.encoder = nets.mlp(256, 64, 32, 8)
    net.head = nn.Linear(8, 2)
    return Case((pairs, same.long()), net, nn.CrossEntropyLoss())


@FIRST
def router_by_argmax(broken: bool) -> Case:
    """mixture of experts | 64 | argmax chooses the expert and nothing multiplies by its probability.
    | no-gradient | router | keep-gradient"""

    # Four small experts and a router.
    def mixture(self, x: Tensor) -> Tensor:
        answers = torch.cat([expert(x) for expert in self.experts], dim=1)
        scores = self.router(x)
        weights = F.one_hot(scores.argmax(1), 4).float() if broken else scores.softmax(1)
        return (weights * answers).sum(1, keepdim=True)

    x, y = draw.regression_table()
    net = nets.made("Mixture", mixture)
    net.router = nn.Linear(8, 4)
    net.experts = nn.ModuleList(nn.Linear(8, 1) for _ in range(4))
    return Case((x, y), net, nn.MSELoss())


@FIRST
def tensor_rebuilt_between_layers(broken: bool) -> Case:
    """GNN | 65 | torch.tensor(x.tolist()) between two layers, or a detour over numpy for a sparse product.
    | no-gradient | layers.0 layers.0.neighbour layers.0.own | keep-gradient"""

    # Makes a new tensor of the hidden values.
    def forward_rebuilt(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.layers[0](x, self.edges))
        hidden = torch.tensor(hidden.tolist()) if broken else hidden
        return self.layers[1](hidden, self.edges)

    x, edges, y = draw.communities()
    return Case((x, y), variant("Rebuilt", nets.GraphNet(edges, width=3), forward=forward_rebuilt), F.cross_entropy)


@FIRST
def rounded_code(broken: bool) -> Case:
    """autoencoder | 66 | torch.round in the code of a compression network, without a straight-through estimator.
    | no-gradient | encoder encoder.{0,2,4} | keep-gradient"""

    # Rounds the code.
    def forward_compressor(self, x: Tensor) -> Tensor:
        code = 4 * self.encoder(x)
        rounded = torch.round(code) if broken else code + (torch.round(code) - code).detach()
        return self.decoder(rounded / 4)

    images, _ = draw.blob_images(64)
    x = images.flatten(1)
    return Case((x, x), variant("Compressor", nets.Autoencoder(code=3), forward=forward_compressor), nn.MSELoss())


class CutGraphNet(nets.GraphNet):
    cut = True

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, self.edges))
            x = x.detach() if self.cut else x
        return self.layers[-1](x, self.edges)


def standardised(images: Tensor) -> Tensor:
    """Return flattened images of mean 0 and standard deviation 1."""
    flat = images.flatten(1)
    return (flat - flat.mean()) / flat.std()


class GuardedAutoencoder(nets.Autoencoder):
    guarded = True

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.guarded):
            code = self.encoder(x)
        return self.decoder(code)


class RebuiltFeatures(nets.ConvNet):
    rebuilt = True

    def forward(self, x: Tensor) -> Tensor:
        rows = [row.mean((1, 2)) for row in self.features(x)]
        pooled = torch.tensor([row.tolist() for row in rows]) if self.rebuilt else torch.stack(rows)
        return self.head(pooled)


class DataRecommender(nets.Recommender):
    by_data = True

    def forward(self, pairs: Tensor) -> Tensor:
        users, items = self.users.weight[pairs[:, 0]], self.items.weight[pairs[:, 1]]
        if self.by_data:
            users, items = self.users.weight.data[pairs[:, 0]], self.items.weight.data[pairs[:, 1]]
        return self.tower(torch.cat([users, items], dim=1)).squeeze(1)


class Step(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x > 0).float()


@SECOND
def hidden_units_are_steps(broken: bool) -> Case:
    """tabular | 26 | Stack Overflow: a perceptron's step as the activation of a network that is trained by gradients.
    | no-gradient activation-unsuitable | {0..4} | change-activation keep-gradient"""
    model = nets.mlp(12, 24, 24, 3)
    if broken:
        model[1], model[3] = Step(), Step()
    return Case(draw.table(), model, "cross_entropy")


class Rounding(nn.Module):
    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.straight = straight

    def forward(self, x: Tensor) -> Tensor:
        rounded = torch.round(8 * x) / 8
        return x + (rounded - x).detach() if self.straight else rounded


def loss_of_detached_output(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output.detach(), target)


@SECOND
def fakes_detached_in_the_step_of_the_generator(broken: bool) -> Case:
    """GAN | 30 | GitHub on DCGAN: the `.detach()` of the discriminator's step was copied into the generator's.
    | no-gradient | generator generator.layers generator.layers.{0,1,3,4,6} | keep-gradient"""

    # A generator that is judged by a fixed discriminator, as in the step of a GAN that trains the generator.
    def painter(self, noise: Tensor) -> Tensor:
        fakes = self.generator(noise)
        return self.critic(fakes.detach() if self.detached else fakes)

    images, _ = draw.blob_images(32)
    critic = nets.discriminator()
    both = torch.cat([images.clamp(-1, 1), 0.1 * torch.randn(32, 1, 16, 16)])
    train(critic, both, torch.arange(64)[:, None].lt(32).float(), F.binary_cross_entropy_with_logits, steps=30)
    model = nets.made("Painter", painter)
    model.generator, model.critic, model.detached = nets.Generator(), critic.requires_grad_(False), broken
    optimizer = Adam(model.generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    return Case(
        (torch.randn(32, 16), torch.ones(32, 1)),
        model,
        nn.BCEWithLogitsLoss(),
        optimizer=optimizer,
        judge=lambda scores: torch.sigmoid(scores).mean().item(),
    )


@THIRD
def spectrum_by_way_of_numpy(broken: bool) -> Case:
    """time series | 31 | An operation that is only known from numpy, with the detach that its error message asks for.
    | no-gradient frozen-layer | filters | keep-gradient"""

    # Filters a series, takes its spectrum and classifies that.
    def spectral(self, x: Tensor) -> Tensor:
        filtered = torch.tanh(self.filters(x.transpose(1, 2)))
        if self.planted:
            spectrum = torch.from_numpy(torch.fft.rfft(filtered.detach()).abs().numpy())
        else:
            spectrum = torch.fft.rfft(filtered).abs()
        return self.head(spectrum.mean(2))

    x, y = draw.waves()
    net = nets.made("Spectral", spectral)
    net.planted = broken
    net.filters = nn.Conv1d(3, 8, 5, padding=2)
    net.head = nn.Linear(8, 3)
    return Case((x, y), net, "cross_entropy")


@THIRD
def learned_score_cast_to_an_index(broken: bool) -> Case:
    """tabular | 33 | `.long()` turns a learned value into an index; no gradient comes back through an index.
    | no-gradient frozen-layer | score score.{0,2} | keep-gradient"""

    # Sorts a learned score into bins and looks up an embedding for each bin.
    def binned(self, x: Tensor) -> Tensor:
        place = 9 * torch.sigmoid(self.score(x))
        if self.planted:
            return self.head(self.bins(place.long()).flatten(1))
        shares = torch.softmax(-(place[..., None] - torch.arange(10.0)).square(), dim=-1)
        return self.head((shares @ self.bins.weight).flatten(1))

    x, y = draw.table()
    net = nets.made("Binned", binned)
    net.planted = broken
    net.score, net.bins = nets.mlp(12, 32, 4), nn.Embedding(10, 8)
    net.head = nn.Linear(32, 3)
    return Case((x, y), net, "cross_entropy")


@THIRD
def one_row_chosen_by_argmax(broken: bool) -> Case:
    """attention | 34 | Hard attention by `one_hot(argmax)`, without a straight-through gradient: the scores never
    learn.
    | no-gradient frozen-layer unused-parameter | scores | keep-gradient"""

    # Picks the pixels rows of an image by attention and reads what it picked.
    def hard_reader(self, x: Tensor) -> Tensor:
        rows = torch.relu(self.lift(x[:, 0]))
        rows = rows + torch.linspace(-1, 1, 16)[:, None]
        scores = self.scores(rows).squeeze(-1)
        shares = F.one_hot(scores.argmax(-1), 16).float() if self.planted else scores.softmax(-1)
        return self.head((shares[..., None] * rows).sum(1))

    x, y = draw.blob_images(96, classes=4)
    net = nets.made("HardReader", hard_reader)
    net.planted = broken
    net.lift, net.scores = nn.Linear(16, 32), nn.Linear(32, 1)
    net.head = nets.mlp(32, 32, 4)
    return Case((x, y), net, "cross_entropy")


class ClippedExponential(torch.autograd.Function):
    """The exponential function, clipped; its backward is the stub that an editor filled in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(max=3).exp()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.zeros_like(gradients[0])


@THIRD
def backward_of_a_handmade_function_is_a_stub(broken: bool) -> Case:
    """regression | 35 | A `torch.autograd.Function` whose backward returns zeros.
    | no-gradient vanishing-gradient | features features.{0,2} | keep-gradient"""

    # Positive features through an exponential, then a linear read-out.
    def count_model(self, x: Tensor) -> Tensor:
        features = self.features(x)
        return self.head(ClippedExponential.apply(features) if self.planted else features.clamp(max=3).exp())

    x, y = draw.regression_table()
    net = nets.made("CountModel", count_model)
    net.planted = broken
    net.features, net.head = nets.mlp(8, 32, 16), nn.Linear(16, 1)
    return Case((x, y), net, "mse")


class NormalisedLinear(nn.Module):  # A linear layer with rows of length one and a learned gain, normalised by hand.
    def __init__(self, inner: int, outer: int, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.weight, self.gain = nn.Parameter(torch.randn(outer, inner)), nn.Parameter(torch.ones(outer))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.data if self.planted else self.weight
        return F.linear(x, F.normalize(weight, dim=1)) * self.gain


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


# Rows of a table, packed.
# fmt: off
OPEN("""both-steps-with-the-detach-of-one | GAN | 2201 | One forward for both steps: the detach that the discriminator
    needs leaves the generator without a gradient.
    | no-gradient | generator generator.layers generator.layers.{0,1,3,4,6} | keep-gradient""",
    lambda broken: given(rarer.Adversaries(detached=broken), lambda model: Case(rarer.noise_and_images(), model,
    rarer.of_generator, objective=rarer.of_generator, optimizer=rarer.adam(model.generator),
    judge=lambda scores: torch.sigmoid(scores[1]).mean().item())))
OPEN("""stem-detached-before-a-block-that-runs-twice | MLP | 2205 | A detach that was to keep the block from being
    differentiated twice. | no-gradient | stem | keep-gradient""",
    lambda broken: Case(model=Rounds(detached=broken), data=draw.table(), loss="cross_entropy"))
OPEN("""summary-of-a-body-detached | transformer | 2206 | The summary is taken for a fixed feature.
    | no-gradient | body.block.feed.2 body.pooler body.words | keep-gradient""",
    lambda broken: Case(model=rarer_sequences.OnBody(True, detached=broken), data=draw.sentences(),
    loss="cross_entropy"))
OPEN("""error-rate-as-loss | RNN | 428 | The error rate itself as the loss.
    | no-gradient loss-does-not-fit loss-gradient-zero | | change-loss keep-gradient""",
    lambda broken: Case(draw.remembered_series(steps=8), nets.SequenceClassifier(nn.RNN(4, 16, batch_first=True), 4),
    error_rate if broken else "cross_entropy", judge_of=accuracy))
OPEN("""parameter-wrapped-in-forward | CNN | 825 | nn.Parameter(...) made in forward is a new leaf: the parameter of the
    module gets no gradient. | no-gradient unused-parameter | kernel | keep-gradient use-parameter""",
    lambda broken: Case(draw.blob_images(64, classes=8), ReparametrisedFilter(broken), "cross_entropy"))
OPEN("""memory-detached | encoder-decoder | 874 | The memory of the encoder is detached, as when it is cached for
    decoding. | no-gradient | encoder encoder.linear1 encoder.linear2 encoder.norm1 encoder.norm2 encoder.self_attn
    narrow source | keep-gradient""",
    lambda broken: given(torch.randint(20, (64, 6)), lambda source: given((source + source.flip(1)) % 20,
    lambda following: Case((torch.cat([source, torch.zeros(64, 1, dtype=torch.long), following[:, :-1]], dim=1),
    following), rarer_sequences.Translator(broken), over_tokens, judge=rarer.likelihood(following)))))
OPEN("""nearest-vector-without-straight-through | VQ-VAE | 1001 | The nearest vector of the codebook is decoded; the
    encoder gets no gradient. | no-gradient unused-parameter | encoder encoder.{0,2} | keep-gradient""",
    lambda broken: given(draw.blob_images(192, classes=8)[0].flatten(1), lambda x: Case((x, x),
    rarer.Quantised(not broken), "mse")))
OPEN("""temperature-by-item | CLIP | 1005 | self.log_scale.item() takes the learned temperature out of the graph, where
    it stays at 0.
    | no-gradient output-range-too-small unused-parameter | log_scale | keep-gradient scale-outputs use-parameter""",
    lambda broken: given(rarer.Towers(0.0, by_item=broken), lambda model: Case(rarer.halves(), model, "cross_entropy",
    judge=rarer.partner_likelihood)))
OPEN("""signs-as-activation | binary network | 1013 | torch.sign between the layers: its gradient is zero everywhere.
    | no-gradient activation-unsuitable saturated-units | first second | change-activation keep-gradient""",
    lambda broken: Case(draw.table(classes=3), rarer.SignNet(not broken), "cross_entropy"))
OPEN("""backbone-under-no-grad | CNN | 203 | torch.no_grad() around the backbone, copied from a script for feature
    extraction. | no-gradient | features features.{0,1,3,4,7,8,10,11} | keep-gradient""",
    lambda broken: Case(draw.blob_images(classes=8), changed(lambda model: setattr(model, "recording",
    not broken))(NoGradFeatures(width=8, classes=8)), "cross_entropy"))
OPEN("""embeddings-by-data | recommender | 204 | .data, from an old tutorial.
    | no-gradient | items users | keep-gradient""",
    lambda broken: Case(draw.ratings(), rarer.Products(broken), "mse"))
OPEN("""states-rebuilt-from-a-list | GNN | 206 | torch.tensor(list) of the states in the middle of forward.
    | no-gradient | first first.neighbour first.own | keep-gradient""",
    lambda broken: given(draw.communities(), lambda x, edges, y: Case((x, y), RebuiltGraph(edges, broken),
    "cross_entropy", judge_of=accuracy)))
FIRST("""accuracy-as-loss | GRU | 56 | Accuracy used as the loss (`requires_grad_()` added to silence the error).
    | no-gradient loss-gradient-zero | | change-loss keep-gradient""",
    lambda broken: Case(draw.waves(48, steps=24), nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3),
    (lambda output, target: (output.argmax(1) != target).float().mean().requires_grad_()) if broken else
    nn.CrossEntropyLoss()))
SECOND("""graph-layers-detached-to-save-memory | GNN | 21 | PyTorch forums: "out of memory, so I detach the node states
    between layers". | no-gradient | layers.{0..2} layers.{0,1}.neighbour layers.{0,1}.own | keep-gradient""",
    lambda broken: given(draw.communities(), lambda x, edges, labels: Case((x, labels),
    changed(lambda model: setattr(model, "cut", broken))(CutGraphNet(edges, width=4, depth=4)), "cross_entropy")))
SECOND("""encoder-inside-of-a-no-grad-block | autoencoder | 22 | The block for feature extraction was copied from the
    evaluation script into forward. | no-gradient | encoder encoder.{0,2,4} | keep-gradient""",
    lambda broken: given(standardised(draw.blob_images()[0]), lambda images: Case((images, images),
    changed(lambda model: setattr(model, "guarded", broken))(GuardedAutoencoder(code=4)), "mse")))
SECOND("""features-rebuilt-from-lists | CNN | 23 | PyTorch forums: torch.tensor(list_of_results) makes a new leaf
    without history. | no-gradient | features features.{0,1,3,4,7,8,10,11} | keep-gradient""",
    lambda broken: given(RebuiltFeatures(width=6), lambda model: Case(draw.blob_images(),
    changed(lambda model: setattr(model, "rebuilt", broken))(model), "cross_entropy")))
SECOND("""nearest-code-without-straight-through | autoencoder | 24 | GitHub on VQ-VAE: the encoder gets no gradient
    because argmin has none. | no-gradient | encoder encoder.{0,2} | keep-gradient""",
    lambda broken: given(standardised(draw.blob_images(classes=8)[0]), lambda images: Case((images, images),
    rarer.QuantisedAutoencoder(not broken), "mse")))
SECOND("""embeddings-read-through-data | recommender | 25 | PyTorch forums: `.weight.data[index]` looks up the rows
    without their history. | no-gradient unused-parameter | items users | keep-gradient""",
    lambda broken: given(DataRecommender(), lambda model: Case(draw.ratings(), changed(lambda model: setattr(model,
    "by_data", broken))(model), "mse")))
SECOND("""activations-rounded-for-quantisation | regression | 27 | Quantisation-aware training by torch.round, whose
    derivative is zero everywhere. | no-gradient | {0..3} | keep-gradient""",
    lambda broken: given(list(nets.mlp(8, 24, 24, 24, 1)), lambda layers: given(nn.Sequential(*layers[:4],
    Rounding(not broken), *layers[4:]), lambda model: Case(draw.regression_table(), model, "mse"))))
SECOND("""state-detached-at-every-step | LSTM | 28 | PyTorch forums: "Trying to backward a second time" was cured by
    detaching the state inside of the loop.
    | no-gradient recurrent-weights-vanish vanishing-gradient | cell | keep-gradient""",
    lambda broken: Case(model=rarer_sequences.CellLoop(detached=broken), data=draw.remembered_series(steps=12),
    loss="cross_entropy"))
SECOND("""loss-of-a-detached-prediction | regression | 29 | Stack Overflow: "element 0 of tensors does not require
    grad"; the metric's detach went into the loss. | no-gradient loss-gradient-zero | | keep-gradient""",
    lambda broken: given(nets.mlp(8, 32, 32, 1), lambda model: Case(draw.regression_table(), model,
    loss_of_detached_output if broken else F.mse_loss)))
THIRD("""places-of-the-maximum-taken-for-its-value | point clouds | 32 | `x.max(1)[1]` where `x.max(1)[0]` was meant.
    | no-gradient frozen-layer | points points.{0,2} | keep-gradient""",
    lambda broken: given(torch.arange(96) % 3, lambda y: Case(((torch.randn(96, 40, 3) * (0.5 + 0.5 * F.one_hot(y,
    3))[:, None]), y), rarer.Cloud(broken), "cross_entropy")))
THIRD("""rows-normalised-through-data | tabular | 36 | A handmade weight normalisation reads `weight.data`, so that only
    the gains learn. | no-gradient frozen-layer unused-parameter | 0 2 4 | keep-gradient""",
    lambda broken: given(draw.table(), lambda x, y: given([NormalisedLinear(inner, outer, broken) for inner,
    outer in ((12, 32), (32, 32), (32, 3))], lambda layers: Case((x, y), nn.Sequential(layers[0], nn.ReLU(), layers[1],
    nn.ReLU(), layers[2]), "cross_entropy"))))
THIRD("""reentrant-checkpoint-of-the-first-stage | CNN | 37 | With `use_reentrant=True` and inputs that need no
    gradient, the checkpointed layers get none. | no-gradient frozen-layer | stage1 stage1.{0,2} | keep-gradient""",
    lambda broken: Case(draw.blob_images(), nets.made("Checkpointed",
    lambda self, x: self.stage2(checkpoint(self.stage1, x, use_reentrant=self.planted)), planted=broken,
    stage1=nn.Sequential(nn.Conv2d(1, 4, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(4, 2, 5, stride=2)),
    stage2=nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(2 * 4, 4))), "cross_entropy"))
THIRD("""representation-by-the-method-of-the-search-engine | GRU | 38 | A method that runs in inference mode for serving
    is called from `forward` too. | no-gradient frozen-layer | encoder words | keep-gradient""",
    lambda broken: Case(draw.sentences(96), TwoTowers(broken), "cross_entropy"))
