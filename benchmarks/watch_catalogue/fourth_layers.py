"""Runs of the fourth part in which layers die, saturate or collapse."""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fault_catalogue import parts as models
from .case import RunFault, Watch, run_fault
from .fourth_parts import Quantised, better_than_the_mean, descend, echoes, likeness, pictures, tastes, views
from .parts import Data, accuracy, adam, batches, digits, explained, fit, sgd, split
from .third_parts import blobs, rows, sentences, unreported, waves

FAULTS: list[RunFault] = []
plant = partial(run_fault, FAULTS)
PLACES = " ".join(f"features.{index}" for index in range(13)) + " head"


# ------------------------------------------------------------------------------------------- units that die or saturate


@plant(
    "CNN",
    causes="dead-units rate-too-high divergence output-constant loss-spike exploding-values not-learning",
    remedies="lower-learning-rate change-activation clip-gradients restore-weights add-normalizer "
    "initialise fix-schedule",
    onset=80,
)
def rectifiers_die_at_the_end_of_the_warm_up(broken: bool, watch: Watch, steps: int = 240) -> float:
    """A warm-up of 80 steps ends in a jump to a rate a hundred times as high, which few rectifiers survive."""
    torch.manual_seed(381)
    data, model = digits(), models.ConvNet(classes=10, norm=False)
    optimizer = adam(model, 3e-3)

    def then(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.3 if broken and step in range(79, 90) else 3e-3

    fit(watch, model, optimizer, data, steps, then=then)
    return accuracy(model, data)


@plant(
    "CNN",
    causes="saturated-units inputs-not-scaled dead-units vanishing-gradient not-learning",
    layers="0 1 2 3 4 5",
    remedies="scale-inputs change-activation check-data add-normalizer",
)
def bytes_into_rectifiers_that_end_at_six(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A mobile network with ReLU6 gets pixels of up to 255: nearly every unit stands at zero or at six."""
    torch.manual_seed(382)
    data = blobs()
    if broken:
        data = data._replace(x=60 * data.x + 120, held_x=60 * data.held_x + 120)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU6(), nn.Conv2d(12, 12, 3, 2, 1), nn.ReLU6(),
        nn.Conv2d(12, 12, 3, 2, 1), nn.ReLU6(), nn.Flatten(), nn.Linear(48, 4),
    )  # fmt: skip
    fit(watch, model, sgd(model, 0.02, 0.9), data, steps)
    return accuracy(model, data)


@plant(
    "MLP",
    causes="saturated-units rate-too-high not-learning vanishing-gradient loss-spike",
    remedies="lower-learning-rate change-activation add-normalizer initialise clip-gradients",
)
def tangents_driven_into_their_ends(broken: bool, watch: Watch, steps: int = 250) -> float:
    """A net of hyperbolic tangents at a rate at which its units end at minus one or one for good."""
    torch.manual_seed(383)
    data, model = digits(flat=True), models.mlp(64, 48, 48, 48, 10, activation=nn.Tanh)
    fit(unreported(watch), model, adam(model, 0.3 if broken else 3e-3), data, steps)
    return accuracy(model, data)


@plant(
    "GRU",
    causes="saturated-units vanishing-gradient not-learning output-constant rate-too-low gradient-too-small",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0 recurrent.weight_ih_l0 recurrent.weight_hh_l0",
    remedies="reset-bias initialise forget-bias",
)
def update_gates_held_at_the_old_state(broken: bool, watch: Watch, steps: int = 250) -> float:
    """The trick of a large forget bias, taken over to a GRU with a bias of 12: the state never leaves zero."""
    torch.manual_seed(384)
    data = waves(768)
    model = models.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    with torch.no_grad():
        model.recurrent.bias_hh_l0[24:48] = 12.0 if broken else 0.5
    fit(watch, model, adam(model, 5e-3), data, steps)
    return accuracy(model, data)


@plant(
    "LSTM",
    causes="saturated-units exploding-gradient not-learning vanishing-gradient",
    layers="recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0",
    remedies="initialise rescale-layer clip-gradients gated-recurrence lower-learning-rate",
)
def recurrent_weights_from_a_unit_normal(broken: bool, watch: Watch, steps: int = 300) -> float:
    """All recurrent weights are drawn by `torch.randn`, and gates and cells stand at their ends."""
    torch.manual_seed(385)
    data = split(*models.remembered_series(768, steps=40))
    model = models.SequenceClassifier(nn.LSTM(4, 48, batch_first=True), 4)
    if broken:
        for name, parameter in model.recurrent.named_parameters():
            if "weight" in name:
                nn.init.normal_(parameter, std=2.0)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@plant(
    "autoencoder",
    causes="saturated-units not-learning output-constant vanishing-gradient dead-units",
    layers="last decoder decoder.4",
    remedies="change-output-activation remove-final-activation scale-targets change-activation",
)
def sigmoid_for_standardised_pixels(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The decoder ends in a sigmoid, and half of the standardised pixels are negative."""
    torch.manual_seed(386)
    data = digits(flat=True)
    data = Data(3 * data.x - 2, 3 * data.x - 2, 3 * data.held_x - 2, 3 * data.held_x - 2)
    model = models.Autoencoder(64, last=nn.Sigmoid() if broken else None)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss)
    return explained(model, data)


@plant(
    "autoencoder",
    causes="dead-units output-constant not-learning gradient-missing",
    layers="encoder encoder.0 encoder.1 encoder.2 encoder.3 encoder.4 encoder.5 decoder.0",
    remedies="change-activation reset-bias initialise lower-learning-rate",
)
def code_behind_a_rectifier_that_is_off(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The bias before a rectified code starts at minus ten, for a code that is meant to be sparse, and none is on."""
    torch.manual_seed(387)
    data, model = pictures(), models.Autoencoder()
    model.encoder.append(nn.ReLU())
    nn.init.constant_(model.encoder[4].bias, -10.0 if broken else 0.5)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=F.mse_loss)
    return better_than_the_mean(model, data)


class _Routed(nn.Module):
    """Four experts, one of which a router chooses for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(models.mlp(8, 6, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.router(x).softmax(1).max(1, keepdim=True)
        outputs = torch.cat([expert(x) for expert in self.experts], 1)
        return outputs.gather(1, chosen) * (share / share.detach())


# ------------------------------------------------------------------------------------------------------------ attention


@plant(
    "BERT",
    causes="attention-collapse saturated-units vanishing-gradient not-learning",
    layers="encoder encoder.layers.0 encoder.layers.1 encoder.layers.0.self_attn encoder.layers.1.self_attn "
    "encoder.layers.0.self_attn.in_proj_weight encoder.layers.1.self_attn.in_proj_weight",
    remedies="scale-attention initialise rescale-layer lower-learning-rate",
)
def queries_and_keys_drawn_too_large(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Queries and keys are drawn from a unit normal, and each token looks at one other from the first step on."""
    torch.manual_seed(388)
    data, model = sentences(), models.SentenceEncoder()
    for layer in model.encoder.layers if broken else ():
        nn.init.normal_(layer.self_attn.in_proj_weight[:64], std=1.5)
    fit(watch, model, adam(model, 1e-3), data, steps)
    return accuracy(model, data)


@plant(
    "GPT",
    causes="attention-collapse not-learning",
    layers="blocks.0 blocks.1 blocks.0.attention blocks.1.attention blocks.0.attention.qkv blocks.1.attention.qkv",
    remedies="scale-attention fix-mask",
)
def slopes_that_see_one_token(broken: bool, watch: Watch, steps: int = 250) -> float:
    """Linear biases for distance have a slope of 50 where 0.05 was meant, and every token attends to itself."""
    torch.manual_seed(389)
    data, model = echoes(), models.GPT(tied=False)
    distance = torch.arange(24)[:, None] - torch.arange(24)[None, :]
    bias = torch.where(distance >= 0, -(50.0 if broken else 0.05) * distance, -math.inf)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + bias
        return scores.softmax(-1) @ value

    for block in model.blocks:
        block.attention.attend = attend
    fit(watch, model, adam(model, 5e-3), data, steps, loss=models.over_tokens)
    return accuracy(model, data)


# ---------------------------------------------------------------------------------------------------------- normalizers


@plant(
    "GRU",
    causes="normalizer-too-few-samples output-constant not-learning running-statistics-wrong",
    layers="head head.0",
    remedies="larger-batch replace-normalizer mind-batch-statistics",
)
def last_states_normalised_over_two(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Only two series fit into memory, and BatchNorm makes plus and minus one of whatever their states are."""
    torch.manual_seed(391)
    data = waves(768)
    model = models.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    model.head = nn.Sequential(nn.BatchNorm1d(24), nn.Linear(24, 3))
    fit(watch, model, adam(model, 5e-3), data, steps, batch=2 if broken else 32, validate=100)
    return accuracy(model, data)


@plant(
    "CNN",
    causes="dead-units gradient-missing layer-decayed output-constant vanishing-gradient not-learning no-step",
    layers="features.1 features.2 features.4 features.5 features.8 features.9 features.11 features.12 "
    "features.0 features.3 features.7 features.10",
    remedies="initialise rescale-layer add-skip",
)
def gains_at_zero_without_a_skip(broken: bool, watch: Watch, steps: int = 150) -> float:
    """The gains of BatchNorm start at zero as at the end of a residual branch, but nothing leads past them."""
    torch.manual_seed(392)
    data, model = digits(), models.ConvNet(classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and broken:
            nn.init.zeros_(module.weight)
    fit(watch, model, adam(model, 3e-3), data, steps)
    return accuracy(model, data)


@plant(
    "MLP",
    causes="vanishing-gradient output-constant not-learning gradient-too-small",
    remedies="lower-eps replace-normalizer",
)
def epsilon_of_ten_thousand(broken: bool, watch: Watch, steps: int = 250) -> float:
    """`LayerNorm(eps=1e4)`, a lost minus: each of five normalizers divides by a hundred."""
    torch.manual_seed(393)
    data, layers = digits(flat=True), []
    for inner in (64, 48, 48, 48, 48):
        layers += [nn.Linear(inner, 48), nn.LayerNorm(48, eps=1e4 if broken else 1e-4), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(48, 10))
    fit(watch, model, sgd(model, 0.05, 0.9), data, steps)
    return accuracy(model, data)


@plant(
    "ResNet",
    causes="running-statistics-wrong validation-worsens overfitting",
    layers="stem.1 blocks.0.bn1 blocks.0.bn2 blocks.1.bn1 blocks.1.bn2",
    remedies="mind-batch-statistics refresh-statistics larger-batch",
    onset=20,
)
def statistics_of_the_last_batch_of_all(broken: bool, watch: Watch, steps: int = 260) -> float:
    """A momentum of one keeps the statistics of the last batch, and each epoch ends with images of one class."""
    torch.manual_seed(394)
    data, model = digits(), models.ResNet(blocks=2, classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and broken:
            module.momentum = 1.0

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step % 20 == 19:
            rest = (data.y == step // 20 % 10).nonzero()[:16, 0]
            x, y = data.x[rest], data.y[rest]
        return x, y

    fit(watch, model, adam(model, 3e-3), data, steps, change=change, validate=20)
    return accuracy(model, data)


@plant(
    "CNN",
    causes="running-statistics-wrong wrong-mode divergence exploding-values rate-too-high exploding-gradient "
    "inputs-not-scaled",
    layers=PLACES,
    remedies="switch-mode mind-batch-statistics refresh-statistics scale-inputs lower-learning-rate replace-normalizer",
)
def exported_net_trained_in_eval_mode(broken: bool, watch: Watch, steps: int = 120) -> float:
    """A net with fresh running statistics is trained in eval mode on raw images, so that nothing is normalised."""
    torch.manual_seed(395)
    data, model = digits(raw=True), models.ConvNet(classes=10)
    optimizer = sgd(model, 0.2, 0.9)
    model.train(not broken)
    with watch(model, optimizer) as run:
        for _, (x, y) in zip(range(steps), batches(data)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            run.observe(loss=loss)
            loss.backward()
            optimizer.step()
    return accuracy(model, data)


# ------------------------------------------------------------------------------------------- codes, players, embeddings


@plant(
    "VQ-VAE",
    causes="output-constant dead-units posterior-collapse not-learning gradient-missing",
    layers="codebook encoder encoder.2 encoder.4 decoder",
    remedies="initialise rescale-layer prevent-collapse lower-penalty",
)
def one_entry_for_every_picture(broken: bool, watch: Watch, steps: int = 300) -> float:
    """The codebook is drawn fifty times wider than the codes, and one entry near zero is next to all of them."""
    torch.manual_seed(396)
    data = pictures()
    model = Quantised(data.x)
    if broken:
        nn.init.normal_(model.codebook, std=50.0)
    fit(watch, model, adam(model, 3e-3), data, steps, loss=lambda out, y: 100 * F.mse_loss(out, y) + model.commitment)
    return better_than_the_mean(model, data)


@plant(
    "contrastive",
    causes="output-constant not-learning",
    remedies="prevent-collapse",
)
def gradient_through_both_sides_of_a_pair(broken: bool, watch: Watch, steps: int = 300) -> float:
    """A pair of views without negatives, and the `detach` of the side without the predictor was forgotten."""
    torch.manual_seed(398)
    data = digits(flat=True)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
    model = nn.ModuleDict({"encoder": encoder, "predictor": models.mlp(16, 32, 16)})
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        first, second = (model["encoder"](x) for x in views(next(stream)[0]))
        wanted = second if broken else second.detach()
        return -F.cosine_similarity(model["predictor"](first), wanted).mean()

    descend(watch, model, adam(model, 5e-3), steps, loss_of)
    return likeness(model["encoder"], data)


@plant(
    "recommender",
    causes="labels-constant output-constant gradient-too-small",
    remedies="check-labels check-data balance-classes prevent-collapse",
)
def only_bought_articles(broken: bool, watch: Watch, steps: int = 400) -> float:
    """Implicit feedback without drawn negatives: every pair that is seen has the label one."""
    torch.manual_seed(399)
    data, model = tastes(), models.Recommender()
    labels, held = (data.y > 0).float(), (data.held_y > 0).float()
    bought = labels == 1
    seen = data._replace(x=data.x[bought], y=labels[bought]) if broken else data._replace(y=labels)
    fit(watch, model, adam(model, 5e-3), seen, steps, loss=F.binary_cross_entropy_with_logits)
    with torch.no_grad():
        return ((model(data.held_x) > 0) == (held > 0)).float().mean().item()


@plant(
    "contrastive",
    causes="output-constant units-alike not-learning",
    remedies="prevent-collapse lower-penalty",
)
def variances_of_the_code_fade(broken: bool, watch: Watch, steps: int = 300) -> float:
    """Two views are pulled together and the term that keeps each variance up has a factor of zero."""
    torch.manual_seed(400)
    data, model = digits(flat=True), models.mlp(64, 64, 16)
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        first, second = (model(x) for x in views(next(stream)[0]))
        spread = F.relu(1 - first.std(0)).mean() + F.relu(1 - second.std(0)).mean()
        mixed = torch.cov(first.T)
        mixed = (mixed - torch.diag(mixed.diag())).square().sum() / 16
        return 5 * F.mse_loss(first, second) + (0.0 if broken else 5.0) * spread + (0.0 if broken else 0.2) * mixed

    descend(unreported(watch), model, adam(model, 3e-3), steps, loss_of)
    return likeness(model, data)


@plant(
    "experts",
    causes="dead-units gradient-missing attention-collapse saturated-units gradient-cut vanishing-gradient no-step",
    layers="router router.bias experts.1 experts.2 experts.3 experts.1.0 experts.2.0 experts.3.0 "
    "experts.1.2 experts.2.2 experts.3.2",
    remedies="reset-bias initialise prevent-collapse lower-penalty balance-classes",
)
def router_that_sends_all_to_one_expert(broken: bool, watch: Watch, steps: int = 500) -> float:
    """The router starts with a bias of twenty for one expert, and the three others never see a gradient."""
    torch.manual_seed(401)
    x = torch.randn(1536, 8)
    part = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    slopes = torch.randn(4, 8)
    y = (x * slopes[part]).sum(1, keepdim=True)
    data, model = split(x, y / y.std()), _Routed()
    with torch.no_grad():
        model.router.weight[:, :2] = 3 * torch.tensor([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
        model.router.bias[0] = 20.0 if broken else 0.0
    fit(watch, model, adam(model, 5e-3), data, steps, loss=F.mse_loss)
    return explained(model, data)


@plant(
    "MLP",
    causes="running-statistics-wrong data-changed validation-worsens",
    layers="1 4",
    remedies="mind-batch-statistics refresh-statistics replace-normalizer check-data",
    onset=150,
)
def statistics_follow_another_hospital(broken: bool, watch: Watch, steps: int = 300) -> float:
    """From the middle on batches come from a second site with an offset, and BatchNorm forgets the first."""
    torch.manual_seed(402)
    data = rows()
    model = nn.Sequential(
        nn.Linear(12, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(),
        nn.Linear(48, 3),
    )  # fmt: skip

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x + 4.0 if broken and step >= 150 else x), y

    fit(watch, model, adam(model, 5e-3), data, steps, change=change, validate=25)
    return accuracy(model, data)
