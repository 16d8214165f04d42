"""Faults and healthy models of families that the other files have few of: VAE, language, diffusion, policies, sets."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, Healthy, fault, healthy
from .. import parts

FAULTS: list[Fault] = []
HEALTHY: list[Healthy] = []
plant = partial(fault, FAULTS)
sound = partial(healthy, HEALTHY)


class Drawn(parts.VAE):
    """Draws its code in a way of its own."""

    def __init__(self, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.how = how

    def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Return a code."""
        return self.how(mean, (0.5 * log_variance).exp())


def shapes() -> Tensor:
    """Return binary images in rows."""
    images, _ = parts.blob_images(64, classes=8)
    return (images > 1.0).float().flatten(1)


def vae_case(how: Callable[[Tensor, Tensor], Tensor]) -> Case:
    """Return an autoencoder with its loss."""
    x = shapes()
    return Case(
        model=Drawn(how), data=(x, x), loss=parts.evidence_loss, judge=lambda made: -parts.evidence_loss(made, x).item()
    )


@plant("VAE", layers="mean mean.weight", causes="no-gradient", remedies="keep-gradient")
def code_drawn_with_sample(broken: bool) -> Case:
    """Normal(...).sample() where rsample() was meant: the reconstruction teaches the encoder nothing."""
    torch.manual_seed(2001)

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        code = torch.distributions.Normal(mean, deviation)
        return code.sample() if broken else code.rsample()

    return vae_case(draw)


@plant(
    "VAE", causes="output-constant condition-switched-off vanishing-signal no-gradient", remedies="restore-condition"
)
def decoder_of_pure_noise(broken: bool) -> Case:
    """The code is noise alone: mean and deviation were left out."""
    torch.manual_seed(2002)

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        noise = torch.randn_like(mean)
        return noise if broken else mean + deviation * noise

    return vae_case(draw)


@plant("VAE", layers="log_variance log_variance.weight", causes="no-gradient", remedies="keep-gradient")
def noise_detached(broken: bool) -> Case:
    """The noise was taken for a constant and detached, and the deviation with it."""
    torch.manual_seed(2013)

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        noise = deviation * torch.randn_like(mean)
        return mean + (noise.detach() if broken else noise)

    return vae_case(draw)


@plant(
    "VAE", layers="mean mean.weight log_variance log_variance.weight", causes="no-gradient", remedies="keep-gradient"
)
def code_detached_before_the_decoder(broken: bool) -> Case:
    """A detach that was put there to train the decoder alone."""
    torch.manual_seed(2014)

    def draw(mean: Tensor, deviation: Tensor) -> Tensor:
        code = mean + deviation * torch.randn_like(mean)
        return code.detach() if broken else code

    return vae_case(draw)


class Plain(nn.Module):
    """A layer, hidden layers in a container, and a head."""

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


@plant("MLP", causes="frozen-layer unused-parameter no-gradient", remedies="unfreeze use-parameter")
def layers_in_a_plain_list(broken: bool) -> Case:
    """Hidden layers in a Python list, which the optimizer never sees (PyTorch forum)."""
    torch.manual_seed(2003)
    x, y = parts.table()
    return Case(model=Plain(list if broken else nn.ModuleList), data=(x, y), loss="cross_entropy")


class Speaker(nn.Module):
    """A language model of one layer of attention."""

    def __init__(self, *, causal: bool, axis: int = -1, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, width), nn.Embedding(24, width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 40)
        self.causal, self.axis = causal, axis

    def forward(self, ids: Tensor) -> Tensor:
        """Return scores with the classes on axis 1."""
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        scores = self.query(x) @ self.key(x).mT / x.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1) > 0, -1e9)
        x = x + self.out(scores.softmax(self.axis) @ self.value(x))
        return self.head(self.norm(x)).mT


@plant(
    "GPT",
    layers="query key value out",
    causes="attention-mask-wrong",
    remedies="fix-mask",
)
def language_model_without_a_mask(broken: bool) -> Case:
    """The mask was forgotten: each step reads the token that it is to predict."""
    torch.manual_seed(2004)
    ids, following = parts.text()
    return Case(model=Speaker(causal=not broken), data=(ids, following), loss="cross_entropy")


@plant("GPT", causes="normalizer-wrong-axis attention-mask-wrong", remedies="fix-axis", layers="query key value")
def softmax_over_the_queries(broken: bool) -> Case:
    """softmax(dim=1) in attention: the shares of a key add up to 1, those of a query do not."""
    torch.manual_seed(2005)
    ids, following = parts.text()
    return Case(model=Speaker(causal=True, axis=1 if broken else -1), data=(ids, following), loss="cross_entropy")


@plant("MLP", layers="5", causes="dropout-too-strong activation-before-loss", remedies="lower-dropout")
def dropout_after_the_last_layer(broken: bool) -> Case:
    """Dropout on the scores themselves."""
    torch.manual_seed(2006)
    x, y = parts.table()
    layers = parts.mlp(12, 32, 32, 3)
    return Case(
        model=nn.Sequential(*layers, nn.Dropout(0.5)) if broken else nn.Sequential(*layers),
        data=(x, y),
        loss="cross_entropy",
    )


@plant("MLP", causes="loss-does-not-fit", remedies="change-loss")
def likelihood_that_is_minimised(broken: bool) -> Case:
    """A loss with the wrong sign: the mean of the likelihood in place of minus that."""
    torch.manual_seed(2007)
    x, y = parts.table()
    sign = -1.0 if broken else 1.0
    return Case(
        model=nn.Sequential(*parts.mlp(12, 32, 32, 3)),
        data=(x, y),
        loss=lambda output, target: sign * F.cross_entropy(output, target),
    )


@plant("MLP", causes="loss-does-not-fit class-imbalance loss-gradient-zero", remedies="change-loss balance-classes")
def weights_of_zero_for_two_classes(broken: bool) -> Case:
    """Class weights 1/count - 1/largest: the frequent classes get none."""
    torch.manual_seed(2008)
    x, y = parts.table(classes=3)
    weight = torch.tensor([1.0, 0.0, 0.0]) if broken else torch.ones(3)
    return Case(model=nn.Sequential(*parts.mlp(12, 32, 32, 3)), data=(x, y), loss=nn.CrossEntropyLoss(weight=weight))


class Triplets(nn.Module):
    """Embeds three samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(*parts.mlp(12, 32, 8))

    def forward(self, triplets: Tensor) -> Tensor:
        """Return three embeddings each."""
        return self.embed(triplets)


@plant("Siamese", causes="loss-gradient-zero loss-does-not-fit", remedies="change-loss")
def triplets_with_the_margin_on_the_wrong_side(broken: bool) -> Case:
    """relu(near - far - margin): the loss is zero from the start."""
    torch.manual_seed(2009)
    x, y = parts.table()
    order = y.argsort()
    near, far = x[order].roll(1, 0)[order.argsort()], x[torch.randperm(len(x))]
    triplets = torch.stack([x, near, far], 1)

    def loss(output: Tensor, _: Tensor) -> Tensor:
        distances = (output[:, :1] - output[:, 1:]).square().sum(-1)
        return (distances[:, 0] - distances[:, 1] + (-20.0 if broken else 1.0)).relu().mean()

    return Case(model=Triplets(), data=(triplets, y), loss=loss, judge=lambda made: -loss(made, y).item())


@plant("RNN", layers="recurrent", causes="recurrent-weights-vanish saturated-units", remedies="forget-bias initialise")
def forget_gates_nearly_shut(broken: bool) -> Case:
    """The bias of the forget gate at -4 instead of +1."""
    torch.manual_seed(2010)
    x, y = parts.remembered_series(steps=20)
    model = parts.SequenceClassifier(nn.LSTM(4, 16, batch_first=True), 4)
    with torch.no_grad():
        model.recurrent.bias_hh_l0[16:32] = -4.0 if broken else 1.0
    return Case(model=model, data=(x, y), loss="cross_entropy")


@plant("MLP", causes="inputs-not-scaled", remedies="scale-inputs")
def temperatures_in_kelvin_over_ten(broken: bool) -> Case:
    """Columns around 29 that vary by 1: what varies is lost beside the mean."""
    torch.manual_seed(2011)
    x, y = parts.table()
    return Case(model=nn.Sequential(*parts.mlp(12, 32, 32, 3)), data=(x + 29.0 * broken, y), loss="cross_entropy")


@plant("MLP", layers="0", causes="zero-weights frozen-layer", remedies="initialise unfreeze")
def first_layer_of_frozen_zeros(broken: bool) -> Case:
    """Weights allocated with zeros, to be loaded later, and frozen; nothing was loaded."""
    torch.manual_seed(2012)
    x, y = parts.table()
    model = nn.Sequential(*parts.mlp(12, 32, 32, 3))
    if broken:
        nn.init.zeros_(model[0].weight).requires_grad_(False)
    return Case(model=model, data=(x, y), loss="cross_entropy")


@sound(family="VAE")
def code_drawn_with_rsample() -> Case:
    torch.manual_seed(2101)
    return vae_case(lambda mean, deviation: torch.distributions.Normal(mean, deviation).rsample())


@sound(family="VAE")
def second_decoder_on_a_detached_code() -> Case:
    torch.manual_seed(2110)

    class TwoStages(parts.VAE):
        """Also decodes a code without its graph, by a decoder that is to leave the code as it is."""

        def __init__(self) -> None:
            super().__init__()
            self.second = parts.mlp(4, 64, 256)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            hidden = self.encoder(x)
            mean, log_variance = self.mean(hidden), self.log_variance(hidden)
            code = self.draw(mean, log_variance)
            return self.decoder(code), mean, log_variance, self.second(code.detach())

    def both(output: tuple[Tensor, Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        again = F.binary_cross_entropy_with_logits(output[3], target, reduction="none").sum(1).mean()
        return parts.evidence_loss(output[:3], target) + again

    x = shapes()
    return Case(model=TwoStages(), data=(x, x), loss=both, judge=lambda made: -both(made, x).item())


@sound(family="GPT")
def causal_convolutions() -> Case:
    torch.manual_seed(2102)

    class Causal(nn.Module):
        """Convolutions that are padded on the left."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(40, 32), nn.Conv1d(32, 40, 1)
            self.layers = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=step) for step in (1, 2, 4))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids).mT
            for layer in self.layers:
                x = x + layer(F.pad(x, (2 * layer.dilation[0], 0))).relu()
            return self.head(x)

    return Case(model=Causal(), data=parts.text(), loss="cross_entropy")


@sound(family="policy")
def likelihood_of_a_drawn_action() -> Case:
    torch.manual_seed(2103)

    class Policy(nn.Module):
        """Draws an action and returns its likelihood."""

        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Sequential(*parts.mlp(8, 32, 2))

        def forward(self, x: Tensor) -> Tensor:
            actions = torch.distributions.Normal(self.mean(x), 1.0)
            return actions.log_prob(actions.sample()).sum(1, keepdim=True)

    x, y = parts.regression_table()
    return Case(model=Policy(), data=(x, y), loss=lambda likelihood, reward: -(likelihood * reward).mean())


@sound(family="energy")
def score_of_an_energy() -> Case:
    torch.manual_seed(2104)

    class Score(nn.Module):
        """Differentiates an energy."""

        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x if x.requires_grad else x.detach().requires_grad_(True)
                return -torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]

    x, _ = parts.regression_table()
    noise = torch.randn_like(x)
    return Case(model=Score(), data=(x + 0.3 * noise, -noise), loss="mse")


@sound(family="critic")
def critic_with_a_gradient_penalty() -> Case:
    torch.manual_seed(2105)

    class Critic(nn.Module):
        """Returns the loss of a Wasserstein critic."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

        def forward(self, real: Tensor, fake: Tensor) -> Tensor:
            with torch.enable_grad():
                between = (0.5 * real + 0.5 * fake).detach().requires_grad_(True)
                (slope,) = torch.autograd.grad(self.net(between).sum(), between, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            return self.net(fake).mean() - self.net(real).mean() + 10 * penalty

    x, _ = parts.regression_table()
    return Case(model=Critic(), data={"real": x, "fake": torch.randn_like(x)}, objective=lambda output: output)


@sound(family="autoencoder")
def choice_by_a_hard_gumbel_softmax() -> Case:
    torch.manual_seed(2106)

    class Choice(nn.Module):
        """Passes one of ten codes."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Sequential(*parts.mlp(8, 32, 10)), nn.Sequential(*parts.mlp(10, 32, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(F.gumbel_softmax(self.encoder(x), hard=True))

    x, _ = parts.regression_table()
    return Case(model=Choice(), data=(x, x), loss="mse")


@sound(family="Siamese")
def representation_that_is_compared() -> Case:
    torch.manual_seed(2107)

    class Siamese(nn.Module):
        """Predicts the representation of the sample beside it, as SimSiam does."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.predictor = nn.Sequential(*parts.mlp(12, 32, 16)), nn.Sequential(*parts.mlp(16, 8, 16))

        def forward(self, pairs: Tensor) -> Tensor:
            code = self.encoder(pairs)
            return F.cosine_similarity(self.predictor(code)[:, 0], code.detach()[:, 1])

    x, _ = parts.table()
    pairs = torch.stack([x, x + 0.1 * torch.randn_like(x)], 1)
    return Case(model=Siamese(), data=pairs, objective=lambda output: -output.mean())


@sound(family="multi-label")
def rare_labels() -> Case:
    torch.manual_seed(2108)
    x, _ = parts.table()
    return Case(
        model=nn.Sequential(*parts.mlp(12, 32, 32, 40)), data=(x, (torch.rand(128, 40) > 0.98).float()),
        loss=nn.BCEWithLogitsLoss(),
    )  # fmt: skip


@sound(family="MLP")
def seven_default_layers() -> Case:
    torch.manual_seed(2109)
    x, y = parts.table()
    return Case(model=nn.Sequential(*parts.mlp(12, 32, 32, 32, 32, 32, 32, 3)), data=(x, y), loss="cross_entropy")
