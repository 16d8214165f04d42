"""Runs in which units, normalizers, attention or the players of a game go wrong."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...data import blob_images, remembered_series, sentences, table, waves
from ...networks import GPT, Autoencoder, ConvNet, ResNet, SentenceEncoder, SequenceClassifier, mlp
from ...training import over_tokens
from ..case import HELD_OUT, fault
from ..data import Data, batches, digits, split
from ..loops import Loop, accuracy, adam, sgd
from ..tuned.parts import unreported
from .parts import (
    Quantised,
    better_than_the_mean,
    descend,
    echoes,
    graph,
    likeness_of_held_out,
    pictures,
    share_right,
    views,
)


class _Routed(nn.Module):
    """Four experts, one of which a router chooses for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(mlp(8, 6, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.router(x).softmax(1).max(1, keepdim=True)
        outputs = torch.cat([expert(x) for expert in self.experts], 1)
        return outputs.gather(1, chosen) * (share / share.detach())


HELD_OUT.add(
    fault("tangents-driven-into-their-ends", "MLP",
        "saturated-units rate-too-high not-learning vanishing-gradient loss-spike",
        "lower-learning-rate change-activation add-normalizer initialise clip-gradients",
        "A net of hyperbolic tangents at a rate at which its units end at minus one or one for good.", lambda broken,
        loop: loop.fit(digits(flat=True), mlp(64, 48, 48, 48, 10, activation=nn.Tanh), adam(0.3 if broken else 3e-3),
        report=None), steps=250, seed=383),
    fault("sigmoid-for-standardised-pixels", "autoencoder",
        "saturated-units not-learning output-constant vanishing-gradient dead-units",
        "change-output-activation remove-final-activation scale-targets change-activation",
        "The decoder ends in a sigmoid, and half of the standardised pixels are negative.", lambda broken,
        loop: loop.fit(Data(3 * (data := digits(flat=True)).x - 2, 3 * data.x - 2, 3 * data.held_x - 2,
        3 * data.held_x - 2), Autoencoder(64, last=nn.Sigmoid() if broken else None), adam(3e-3), loss=F.mse_loss),
        layers="last decoder decoder.4", steps=300, seed=386),
    fault("exported-net-trained-in-eval-mode", "CNN",
        "running-statistics-wrong wrong-mode divergence exploding-values rate-too-high exploding-gradient "
        "inputs-not-scaled",
        "switch-mode mind-batch-statistics refresh-statistics scale-inputs lower-learning-rate replace-normalizer",
        "A net with fresh running statistics is trained in eval mode on raw images, so that nothing is normalised.",
        lambda broken, loop: loop.fit(digits(raw=True), ConvNet(classes=10), sgd(0.2, 0.9), as_it_is=True,
        plant=lambda net: net.train(not broken)),
        layers="features.0 features.1 features.2 features.3 features.4 features.5 features.6 features.7 features.8 "
        "features.9 features.10 features.11 features.12 head", steps=120, seed=395),
    fault("statistics-follow-another-hospital", "MLP", "running-statistics-wrong data-changed validation-worsens",
        "mind-batch-statistics refresh-statistics replace-normalizer check-data",
        "From the middle on batches come from a second site with an offset, and BatchNorm forgets the first.",
        lambda broken, loop: loop.fit(split(*table(1280)), nn.Sequential(nn.Linear(12, 48), nn.BatchNorm1d(48),
        nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 3)), adam(5e-3), change=lambda step,
        x, y: (x + 4.0 if broken and step >= 150 else x, y), validate=25), layers="1 4", onset=150, steps=300,
        seed=402),
)  # fmt: skip


@HELD_OUT.fault("CNN", "dead-units rate-too-high divergence output-constant loss-spike exploding-values not-learning",
    "lower-learning-rate change-activation clip-gradients restore-weights add-normalizer initialise fix-schedule",
    onset=80, steps=240, seed=381)  # fmt: skip
def rectifiers_die_at_the_end_of_the_warm_up(broken: bool, loop: Loop) -> float:
    """A warm-up of 80 steps ends in a jump to a rate a hundred times as high, which few rectifiers survive."""
    data, model = digits(), ConvNet(classes=10, norm=False)
    optimizer = adam(3e-3)(model)

    def then(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.3 if broken and step in range(79, 90) else 3e-3

    return loop.fit(data, model, optimizer, then=then)


@HELD_OUT.fault("CNN", "saturated-units inputs-not-scaled dead-units vanishing-gradient not-learning",
    "scale-inputs change-activation check-data add-normalizer", layers="0 1 2 3 4 5", steps=250,
    seed=382)  # fmt: skip
def bytes_into_rectifiers_that_end_at_six(broken: bool, loop: Loop) -> float:
    """A mobile network with ReLU6 gets pixels of up to 255: nearly every unit stands at zero or at six."""
    data = split(*blob_images(1280))
    if broken:
        data = data._replace(x=60 * data.x + 120, held_x=60 * data.held_x + 120)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU6(), nn.Conv2d(12, 12, 3, 2, 1), nn.ReLU6(), nn.Conv2d(12,
        12, 3, 2, 1), nn.ReLU6(), nn.Flatten(), nn.Linear(48, 4))  # fmt: skip
    return loop.fit(data, model, sgd(0.02, 0.9))


@HELD_OUT.fault("GRU",
    "saturated-units vanishing-gradient not-learning output-constant rate-too-low gradient-too-small",
    "reset-bias initialise forget-bias",
    layers="recurrent recurrent.bias_ih_l0 recurrent.bias_hh_l0 recurrent.weight_ih_l0 recurrent.weight_hh_l0",
    steps=250, seed=384)  # fmt: skip
def update_gates_held_at_the_old_state(broken: bool, loop: Loop) -> float:
    """The trick of a large forget bias, taken over to a GRU with a bias of 12: the state never leaves zero."""
    data = split(*waves(768))
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    with torch.no_grad():
        model.recurrent.bias_hh_l0[24:48] = 12.0 if broken else 0.5
    return loop.fit(data, model, adam(5e-3))


@HELD_OUT.fault("LSTM", "saturated-units exploding-gradient not-learning vanishing-gradient",
    "initialise rescale-layer clip-gradients gated-recurrence lower-learning-rate",
    layers="recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0", steps=300, seed=385)  # fmt: skip
def recurrent_weights_from_a_unit_normal(broken: bool, loop: Loop) -> float:
    """All recurrent weights are drawn by `torch.randn`, and gates and cells stand at their ends."""
    data = split(*remembered_series(768, steps=40))
    model = SequenceClassifier(nn.LSTM(4, 48, batch_first=True), 4)
    if broken:
        for name, parameter in model.recurrent.named_parameters():
            if "weight" in name:
                nn.init.normal_(parameter, std=2.0)
    return loop.fit(data, model, adam(3e-3))


@HELD_OUT.fault("autoencoder", "dead-units output-constant not-learning gradient-missing",
    "change-activation reset-bias initialise lower-learning-rate",
    layers="encoder encoder.0 encoder.1 encoder.2 encoder.3 encoder.4 encoder.5 decoder.0", steps=300,
    seed=387)  # fmt: skip
def code_behind_a_rectifier_that_is_off(broken: bool, loop: Loop) -> float:
    """The bias before a rectified code starts at minus ten, for a code that is meant to be sparse, and none is on."""
    data, model = pictures(), Autoencoder()
    model.encoder.append(nn.ReLU())
    nn.init.constant_(model.encoder[4].bias, -10.0 if broken else 0.5)
    loop.train(data, model, adam(3e-3), loss=F.mse_loss)
    return better_than_the_mean(model, data)


@HELD_OUT.fault("BERT", "attention-collapse saturated-units vanishing-gradient not-learning",
    "scale-attention initialise rescale-layer lower-learning-rate",
    layers="encoder encoder.layers.0 encoder.layers.1 encoder.layers.0.self_attn encoder.layers.1.self_attn "
    "encoder.layers.0.self_attn.in_proj_weight encoder.layers.1.self_attn.in_proj_weight", steps=300,
    seed=388)  # fmt: skip
def queries_and_keys_drawn_too_large(broken: bool, loop: Loop) -> float:
    """Queries and keys are drawn from a unit normal, and each token looks at one other from the first step on."""
    data, model = split(*sentences(1280)), SentenceEncoder()
    for layer in model.encoder.layers if broken else ():
        nn.init.normal_(layer.self_attn.in_proj_weight[:64], std=1.5)
    return loop.fit(data, model, adam(1e-3))


@HELD_OUT.fault("GPT", "attention-collapse not-learning", "scale-attention fix-mask",
    layers="blocks.0 blocks.1 blocks.0.attention blocks.1.attention blocks.0.attention.qkv blocks.1.attention.qkv",
    steps=250, seed=389)  # fmt: skip
def slopes_that_see_one_token(broken: bool, loop: Loop) -> float:
    """Linear biases for distance have a slope of 50 where 0.05 was meant, and every token attends to itself."""
    data, model = echoes(), GPT(tied=False)
    distance = torch.arange(24)[:, None] - torch.arange(24)[None, :]
    bias = torch.where(distance >= 0, -(50.0 if broken else 0.05) * distance, -math.inf)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1]) + bias
        return scores.softmax(-1) @ value

    for block in model.blocks:
        block.attention.attend = attend
    return loop.fit(data, model, adam(5e-3), loss=over_tokens)


@HELD_OUT.fault("GRU", "normalizer-too-few-samples output-constant not-learning running-statistics-wrong",
    "larger-batch replace-normalizer mind-batch-statistics", layers="head head.0", steps=300, seed=391)  # fmt: skip
def last_states_normalised_over_two(broken: bool, loop: Loop) -> float:
    """Only two series fit into memory, and BatchNorm makes plus and minus one of whatever their states are."""
    data = split(*waves(768))
    model = SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3)
    model.head = nn.Sequential(nn.BatchNorm1d(24), nn.Linear(24, 3))
    return loop.fit(data, model, adam(5e-3), batch=2 if broken else 32, validate=100)


@HELD_OUT.fault("CNN",
    "dead-units gradient-missing layer-decayed output-constant vanishing-gradient not-learning no-step",
    "initialise rescale-layer add-skip",
    layers="features.1 features.2 features.4 features.5 features.8 features.9 features.11 features.12 features.0 "
    "features.3 features.7 features.10", steps=150, seed=392)  # fmt: skip
def gains_at_zero_without_a_skip(broken: bool, loop: Loop) -> float:
    """The gains of BatchNorm start at zero as at the end of a residual branch, but nothing leads past them."""
    data, model = digits(), ConvNet(classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and broken:
            nn.init.zeros_(module.weight)
    return loop.fit(data, model, adam(3e-3))


@HELD_OUT.fault("ResNet", "running-statistics-wrong validation-worsens overfitting",
    "mind-batch-statistics refresh-statistics larger-batch",
    layers="stem.1 blocks.0.bn1 blocks.0.bn2 blocks.1.bn1 blocks.1.bn2", onset=20, steps=260, seed=394)  # fmt: skip
def statistics_of_the_last_batch_of_all(broken: bool, loop: Loop) -> float:
    """A momentum of one keeps the statistics of the last batch, and each epoch ends with images of one class."""
    data, model = digits(), ResNet(blocks=2, classes=10)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and broken:
            module.momentum = 1.0

    def change(step: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if step % 20 == 19:
            rest = (data.y == step // 20 % 10).nonzero()[:16, 0]
            x, y = data.x[rest], data.y[rest]
        return x, y

    return loop.fit(data, model, adam(3e-3), change=change, validate=20)


@HELD_OUT.fault("VQ-VAE", "output-constant dead-units posterior-collapse not-learning gradient-missing",
    "initialise rescale-layer prevent-collapse lower-penalty", layers="codebook encoder encoder.2 encoder.4 decoder",
    steps=300, seed=396)  # fmt: skip
def one_entry_for_every_picture(broken: bool, loop: Loop) -> float:
    """The codebook is drawn fifty times wider than the codes, and one entry near zero is next to all of them."""
    data = pictures()
    model = Quantised(data.x)
    if broken:
        nn.init.normal_(model.codebook, std=50.0)
    loop.train(data, model, adam(3e-3), loss=lambda out, y: 100 * F.mse_loss(out, y) + model.commitment)
    return better_than_the_mean(model, data)


@HELD_OUT.fault("contrastive", "output-constant not-learning", "prevent-collapse", steps=300, seed=398)
def gradient_through_both_sides_of_a_pair(broken: bool, loop: Loop) -> float:
    """A pair of views without negatives, and the `detach` of the side without the predictor was forgotten."""
    data = digits(flat=True)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16))
    model = nn.ModuleDict({"encoder": encoder, "predictor": mlp(16, 32, 16)})
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        first, second = (model["encoder"](x) for x in views(next(stream)[0]))
        wanted = second if broken else second.detach()
        return -F.cosine_similarity(model["predictor"](first), wanted).mean()

    descend(loop.watch, model, adam(5e-3)(model), loop.steps, loss_of)
    return likeness_of_held_out(model["encoder"], data)


@HELD_OUT.fault("contrastive", "output-constant units-alike not-learning", "prevent-collapse lower-penalty", steps=300,
    seed=400)  # fmt: skip
def variances_of_the_code_fade(broken: bool, loop: Loop) -> float:
    """Two views are pulled together and the term that keeps each variance up has a factor of zero."""
    data, model = digits(flat=True), mlp(64, 64, 16)
    stream = batches(data, 64)

    def loss_of(step: int) -> Tensor:
        first, second = (model(x) for x in views(next(stream)[0]))
        spread = F.relu(1 - first.std(0)).mean() + F.relu(1 - second.std(0)).mean()
        mixed = torch.cov(first.T)
        mixed = (mixed - torch.diag(mixed.diag())).square().sum() / 16
        return 5 * F.mse_loss(first, second) + (0.0 if broken else 5.0) * spread + (0.0 if broken else 0.2) * mixed

    descend(unreported(loop.watch), model, adam(3e-3)(model), loop.steps, loss_of)
    return likeness_of_held_out(model, data)


@HELD_OUT.fault("experts",
    "dead-units gradient-missing attention-collapse saturated-units gradient-cut vanishing-gradient no-step",
    "reset-bias initialise prevent-collapse lower-penalty balance-classes",
    layers="router router.bias experts.1 experts.2 experts.3 experts.1.0 experts.2.0 experts.3.0 experts.1.2 "
    "experts.2.2 experts.3.2", steps=500, seed=401)  # fmt: skip
def router_that_sends_all_to_one_expert(broken: bool, loop: Loop) -> float:
    """The router starts with a bias of twenty for one expert, and the three others never see a gradient."""
    x = torch.randn(1536, 8)
    part = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    slopes = torch.randn(4, 8)
    y = (x * slopes[part]).sum(1, keepdim=True)
    data, model = split(x, y / y.std()), _Routed()
    with torch.no_grad():
        model.router.weight[:, :2] = 3 * torch.tensor([[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
        model.router.bias[0] = 20.0 if broken else 0.0
    return loop.fit(data, model, adam(5e-3), loss=F.mse_loss)


@HELD_OUT.fault("CNN",
    "output-constant not-learning labels-constant sign-of-loss gradient-too-small gradient-missing exploding-values",
    "fix-targets change-loss check-labels flip-sign", steps=150, seed=342)  # fmt: skip
def hinge_with_zero_and_one(broken: bool, loop: Loop) -> float:
    """A hinge loss for labels of -1 and 1 gets 0 and 1: half of the samples have no gradient at all."""
    data, model = split(*blob_images(1280, classes=2)), ConvNet(classes=1, norm=False)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        sign = y.float() if broken else 2.0 * y - 1
        return F.relu(1 - sign * output[:, 0]).mean()

    loop.train(data, model, adam(3e-3), loss=loss)
    with torch.no_grad():
        return ((model.eval()(data.held_x)[:, 0] > 0) == data.held_y).float().mean().item()


@HELD_OUT.fault("GNN", "output-constant not-learning vanishing-gradient", "fewer-layers add-skip add-normalizer",
    steps=200, seed=349)  # fmt: skip
def sixteen_rounds_of_averages(broken: bool, loop: Loop) -> float:
    """After sixteen averages over neighbours all nodes look alike."""
    x, edges, y, train, rest = graph()
    near = torch.eye(len(x))
    near[edges[1], edges[0]] = 1.0
    near = near / near.sum(1, keepdim=True)
    maps = nn.ModuleList(nn.Linear(8 if i == 0 else 16, 16) for i in range(16 if broken else 2))
    model = nn.ModuleDict({"maps": maps, "head": nn.Linear(16, 3)})

    def output() -> Tensor:
        hidden = x
        for layer in maps:
            hidden = torch.relu(layer(near @ hidden))
        return model["head"](hidden)

    descend(loop.watch, model, adam(1e-2)(model), loop.steps, lambda step: F.cross_entropy(output()[train], y[train]))
    return share_right(output()[rest], y[rest])


@HELD_OUT.fault("LSTM", "units-alike not-learning", "initialise",
    layers="recurrent head recurrent.weight_ih_l0 recurrent.weight_hh_l0 head.weight", steps=250,
    seed=354)  # fmt: skip
def every_weight_at_one_tenth(broken: bool, loop: Loop) -> float:
    """All weights and biases start at the same value, and all units stay copies of one."""
    data = split(*waves(768))
    model = SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    if broken:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.1)
    return loop.fit(data, model, adam(1e-2))


@HELD_OUT.fault("GPT",
    "layer-decayed decay-too-strong not-learning gradient-missing gradient-cut output-constant vanishing-gradient",
    "order-of-calls lower-penalty rescale-loss keep-gradient", steps=250, seed=378)  # fmt: skip
def only_the_penalty_is_sent_backward(broken: bool, loop: Loop) -> float:
    """`penalty.backward()` stands where `(loss + penalty).backward()` was meant."""
    data, model = echoes(), GPT()
    optimizer = adam(5e-3)(model)
    with loop.watch(model, optimizer) as run:
        for _, (x, y) in zip(range(loop.steps), batches(data)):
            optimizer.zero_grad()
            loss = over_tokens(model(x), y)
            penalty = 1e-4 * sum(parameter.square().sum() for parameter in model.parameters())
            (penalty if broken else loss + penalty).backward()
            run.observe(loss=loss)
            optimizer.step()
    return accuracy(model, data)
