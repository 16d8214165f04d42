"""Faults of units: dead, saturated, without an activation, dropped, too few."""

import torch
from numpy import s_
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import FIRST, OPEN, SECOND, THIRD, Case, given
from ...plants import changed, drawn, each, filled, over, put, scaled
from ...training import accuracy, binary_accuracy, over_tokens, overlap_with, train
from . import rarer, rarer_sequences


@OPEN
def output_gate_shut(broken: bool) -> Case:
    """LSTM | 865 | The bias of the wrong quarter was set: the output gate is shut, not the forget gate opened.
    | saturated-units output-constant vanishing-gradient vanishing-signal | recurrent recurrent.bias_hh_l0
    recurrent.bias_ih_l0 | forget-bias initialise reset-bias"""
    x, y = draw.remembered_series(steps=20)
    model = nets.SequenceClassifier(nn.LSTM(4, 24, batch_first=True), 4)
    with torch.no_grad():
        if broken:
            model.recurrent.bias_ih_l0[72:] = -12.0
        else:
            model.recurrent.bias_ih_l0[24:48] = 1.0
    return Case((x, y), model, "cross_entropy")


@OPEN
def convolutions_killed_by_a_rate(broken: bool) -> Case:
    """TCN | 873 | Three steps of SGD at a rate of 3 have switched every filter off.
    | dead-units bias-holds-units-off output-constant | 1 3 | change-activation initialise lower-learning-rate
    reset-bias restore-weights"""
    x, y = draw.waves(steps=32)
    model = nn.Sequential(
        nn.Identity(), nn.Conv1d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 6, 5, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(192, 3),
    )  # fmt: skip
    rate = 3.0 if broken else 0.01
    train(model, x.mT.contiguous(), y, F.cross_entropy, steps=3, optimizer=torch.optim.SGD(model.parameters(), lr=rate))
    return Case((x.mT.contiguous(), y), model, "cross_entropy")


@OPEN
def one_group_decayed(broken: bool) -> Case:
    """CNN | 119 | One parameter group with a decay of 2 instead of 2e-4.
    | dead-units layer-scale-stands-out output-constant vanishing-gradient vanishing-signal zero-weights |
    features.5 | initialise lower-weight-decay restore-weights"""
    x, y = draw.blob_images()
    model = nets.ConvNet(norm=False)
    group = list(model.features[5].parameters())
    others = [p for p in model.parameters() if all(p is not other for other in group)]
    groups = [{"params": group, "weight_decay": 2.0 if broken else 1e-4}, {"params": others}]
    optimizer = torch.optim.SGD(groups, lr=0.05)
    train(model, x, y, F.cross_entropy, steps=100, optimizer=optimizer)
    return Case((x, y), model, "cross_entropy", train=False)


class RectifiedCode(nets.Autoencoder):  # An autoencoder whose code of eight units is rectified.
    def __init__(self) -> None:
        super().__init__()
        self.last_of_encoder = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.last_of_encoder(self.encoder(x)))


@OPEN(plant=filled("gates.*.bias", -12.0))
def gates_shut(broken: bool) -> Case:
    """GLU | 308 | A gate bias of -2, as highway networks have it, set to -12.
    | saturated-units bias-holds-units-off vanishing-gradient vanishing-signal | gates.{0..2} values.{0..2} |
    forget-bias initialise reset-bias"""

    # Three residual blocks of gated linear units.
    def gated(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for value, gate in zip(self.values, self.gates):
            x = x + value(x) * torch.sigmoid(gate(x))
        return self.head(x)

    x, y = draw.table()
    model = nets.made("Gated", gated)
    model.first, model.head = nn.Linear(12, 32), nn.Linear(32, 3)
    model.values = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    model.gates = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
    return Case((x, y), model, "cross_entropy")


@OPEN
def softmax_between_layers(broken: bool) -> Case:
    """MLP | 310 | nn.Softmax taken for an activation of hidden layers.
    | activation-unsuitable saturated-units vanishing-gradient vanishing-signal | 1 3 | change-activation"""
    x, y = draw.table()
    layers = nets.mlp(12, 48, 48, 3)
    if broken:
        layers[1], layers[3] = nn.Softmax(dim=1), nn.Softmax(dim=1)
    return Case((x, y), layers, "cross_entropy")


@OPEN
def relu_made_and_never_called(broken: bool) -> Case:
    """CNN | 312 | self.relu is made and never called.
    | missing-activation | conv1 conv2 head relu | add-activation"""

    # Convolutions whose activation is made in __init__ and may never be called.
    def two_stage(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        x = self.conv2(self.relu(x) if self.rectify else x)
        return self.head((self.relu(x) if self.rectify else x).mean((2, 3)))

    y, fine = torch.arange(64) % 2, torch.randn(64, 1, 12, 12)
    coarse = F.interpolate(torch.randn(64, 1, 4, 4), scale_factor=3)  # the classes differ in texture, not in the mean
    x = torch.where((y == 1)[:, None, None, None], coarse, fine)
    net = nets.made("TwoStage", two_stage)
    net.conv1, net.conv2 = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 16, 5, padding=2)
    net.head = nn.Linear(16, 2)
    net.rectify, net.relu = (not broken), nn.ReLU()
    return Case((x, y), net, "cross_entropy")


class DroppedGPT(nets.GPT):  # A GPT with dropout on its embeddings.
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(rate)

    def embed(self, ids: Tensor) -> Tensor:
        return self.drop(super().embed(ids))


class DroppedConvNet(nets.ConvNet):  # A ConvNet with dropout before its head.
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.features(x).mean((2, 3))))


@FIRST
def update_gate_shut(broken: bool) -> Case:
    """GRU | 115 | The LSTM trick of a positive bias applied to the update gate of a GRU, too strongly: states stay at
    0.
    | saturated-units output-constant recurrent-weights-vanish vanishing-gradient vanishing-signal | recurrent
    recurrent.bias_hh_l0 recurrent.bias_ih_l0 | forget-bias initialise reset-bias"""
    x, y = draw.waves(48, steps=24)
    recurrent = nn.GRU(3, 24, batch_first=True)
    with torch.no_grad():
        recurrent.bias_ih_l0[24:48] = 16.0 if broken else 0.0
    return Case((x, y), nets.SequenceClassifier(recurrent, 3), nn.CrossEntropyLoss())


@FIRST
def tanh_units_saturated_by_large_weights(broken: bool) -> Case:
    """MLP | 4 | DeepCrime's operator for changed weight initialisation, on a tanh network.
    | saturated-units exploding-gradient layer-scale-stands-out | {0..5} | add-normalizer change-activation
    initialise rescale-layer"""
    x, y = draw.regression_table(512)
    model = nets.mlp(8, 48, 48, 48, 1, activation=nn.Tanh)
    if broken:
        for index in (0, 2, 4):
            rarer.scale(model[index].weight, 100.0)
    return Case((x, y), model, nn.MSELoss())


@FIRST
def units_killed_by_a_high_learning_rate(broken: bool) -> Case:
    """MLP | 15 | AutoTrainer's dying ReLU: the rate of another optimizer kept for SGD.
    | dead-units bias-holds-units-off output-constant | {2..5} | change-activation initialise lower-learning-rate
    restore-weights"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 24, 24, 24, 1)
    target = 3 * y + 4
    rate = 0.08 if broken else 0.01
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return Case((x, target), train(model, x, target, F.mse_loss, steps=25, optimizer=optimizer), nn.MSELoss())


@FIRST
def four_units_dead_by_data(broken: bool) -> Case:
    """MLP | 17 | Inputs that are all positive and large (a sensor in hPa) meet a unit layer whose weights turned
    negative.
    | dead-units bias-holds-units-off inputs-not-scaled | 0 1 | change-activation initialise scale-inputs"""
    values, y = draw.regression_table(columns=4)
    x = 1000 + 12 * values if broken else values
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        rows = model[0].weight
        rows.sub_(rows.mean(1, keepdim=True) + 0.05)
    return Case((x, y), model, nn.MSELoss())


@FIRST
def convolutions_without_activations(broken: bool) -> Case:
    """CNN | 73 | Convolutions stacked with BatchNorm and no activation (Stack Overflow).
    | missing-activation | {0..5} | add-activation"""
    x, y = draw.blob_images(256, classes=2, size=8)
    x = torch.randint(2, (256, 1, 1, 1)).mul(2).sub(1) * x  # light on dark or dark on light: no linear map tells
    inner: list[nn.Module] = [] if broken else [nn.ReLU()]
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), *inner,
        nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), *inner,
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), *inner, nn.Flatten(), nn.Linear(128, 2),
    )  # fmt: skip
    return Case((x, y), model, nn.CrossEntropyLoss())


@FIRST
def closed_channel_gate(broken: bool) -> Case:
    """CNN | 84 | Squeeze-and-excitation whose gate starts closed: the bias of a highway layer taken to the extreme.
    | saturated-units bias-holds-units-off output-constant vanishing-gradient vanishing-signal | gate gate.{2,3} |
    initialise reset-bias"""

    class Gated(nn.Module):
        """Convolutions whose channels are multiplied by a gate."""

        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 2, 1)
            self.gate = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16), nn.Sigmoid())
            self.head = nn.Linear(16 * 16, 4)
            nn.init.constant_(self.gate[2].bias, -12.0 if broken else 1.0)

        def forward(self, x: Tensor) -> Tensor:
            maps = torch.relu(self.conv1(x))
            maps = maps * self.gate(maps.mean((2, 3)))[:, :, None, None]
            return self.head(torch.relu(self.conv2(maps)).flatten(1))

    x, y = draw.blob_images(48)
    return Case(x, Gated(), objective=lambda output: F.cross_entropy(output, y), judge=accuracy(y))


@SECOND
def units_killed_by_large_steps(broken: bool) -> Case:
    """tabular | 52 | DeepDiagnosis, "dying ReLU": a few steps of a far too large rate leave almost no unit alive.
    | dead-units bias-holds-units-off output-constant | {0..5} | add-normalizer change-activation initialise
    lower-learning-rate reset-bias restore-weights"""
    x, y = draw.table()
    model = nets.mlp(12, 32, 32, 32, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.7 if broken else 1e-3)
    for _ in range(12):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return Case((x, y), model, "cross_entropy")


@SECOND
def eight_sigmoid_convolutions(broken: bool) -> Case:
    """CNN | 53 | DeepCrime, "change activation function": sigmoid in all hidden layers of a network without
    normalizers.
    | activation-unsuitable output-constant saturated-units vanishing-gradient vanishing-signal | | add-normalizer
    add-skip change-activation initialise"""
    model = nets.ConvNet(depth=8, norm=False)
    if broken:
        for index, module in enumerate(model.features):
            if isinstance(module, nn.ReLU):
                model.features[index] = nn.Sigmoid()
    return Case(draw.blob_images(), model, "cross_entropy")


@SECOND
def softmax_between_hidden_layers(broken: bool) -> Case:
    """regression | 55 | Stack Overflow (DeepFD): softmax as the activation of hidden layers.
    | activation-unsuitable output-constant vanishing-gradient vanishing-signal | 1 3 5 | change-activation"""
    model = nets.mlp(8, 48, 48, 48, 1)
    if broken:
        for index in (1, 3, 5):
            model[index] = nn.Softmax(dim=1)
    return Case(draw.regression_table(), model, "mse")


@SECOND
def capped_rectifiers_at_their_cap(broken: bool) -> Case:
    """CNN | 56 | ReLU6 of a mobile network behind weights for another range: almost all units stand at 0 or 6.
    | saturated-units exploding-signal layer-scale-stands-out | features.{0,1,2,3,5,6,7,8} | add-normalizer
    change-activation initialise rescale-layer"""
    model = nets.ConvNet(norm=False)
    for index, module in enumerate(model.features):
        if isinstance(module, nn.ReLU):
            model.features[index] = nn.ReLU6()
        if broken and isinstance(module, nn.Conv2d):
            module.weight.data *= 60
    return Case(draw.blob_images(), model, "cross_entropy")


@SECOND(plant=filled("gate1.bias gate2.bias", -12.0))
def gates_closed_by_their_bias(broken: bool) -> Case:
    """regression | 58 | Highway networks: a gate bias of -12 instead of -1 lets nothing through.
    | saturated-units output-constant vanishing-gradient vanishing-signal | gate1 gate2 | initialise reset-bias"""

    # Two layers, each multiplied by a gate of its own.
    def gated_net(self, x: Tensor) -> Tensor:
        x = self.value1(x) * torch.sigmoid(self.gate1(x))
        return self.head(self.value2(x) * torch.sigmoid(self.gate2(x)))

    model = nets.made("GatedNet", gated_net)
    model.value1, model.gate1 = nn.Linear(8, 48), nn.Linear(8, 48)
    model.value2, model.gate2 = nn.Linear(48, 48), nn.Linear(48, 48)
    model.head = nn.Linear(48, 1)
    return Case(draw.regression_table(), model, "mse")


@SECOND
def generator_paints_black_and_white_only(broken: bool) -> Case:
    """GAN | 59 | normal_(std=2) instead of 0.02 in the last layer: the tanh of all pixels is at -1 or 1.
    | saturated-units exploding-signal layer-scale-stands-out | layers.{6,7} | initialise rescale-layer"""
    real = draw.blob_images(32)[0].mul(0.3).clamp(-0.95, 0.95)
    model = nets.Generator()
    if broken:
        nn.init.normal_(model.layers[6].weight, std=2.0)

    def moments(fakes: Tensor) -> Tensor:
        spread = fakes.std(0) - real.std(0)
        return (fakes.mean(0) - real.mean(0)).square().mean() + spread.square().mean()

    return Case(torch.randn(32, 16), model, objective=moments)


@SECOND
def convolutions_without_activation(broken: bool) -> Case:
    """TCN | 62 | UMLAUT: activations forgotten when layers are called one by one in forward.
    | missing-activation | conv1 conv2 conv3 head | add-activation"""

    # Convolutions over time, called one by one, then the mean over the steps.
    def series_net(self, series: Tensor) -> Tensor:
        x = series.transpose(1, 2)
        for conv in (self.conv1, self.conv2, self.conv3):
            x = torch.relu(conv(x)) if self.activate else conv(x)
        return self.head(x.mean(2))

    net = nets.made("SeriesNet", series_net)
    net.conv1 = nn.Conv1d(3, 24, 5, padding=2)
    net.conv2 = nn.Conv1d(24, 24, 5, stride=2, padding=2)
    net.conv3 = nn.Conv1d(24, 24, 5, padding=2)
    net.head = nn.Linear(24, 3)
    net.activate = not broken
    return Case(model=net, data=draw.waves(), loss="cross_entropy")


@SECOND
def one_unit_before_eight_classes(broken: bool) -> Case:
    """CNN | 63 | DeepFD: a hidden layer of one unit, left over from a binary problem, in front of eight classes.
    | bottleneck-too-narrow | head.{0..2} | widen-layer"""
    model = nets.ConvNet(classes=8)
    model.head = nn.Sequential(nn.Linear(16, 1 if broken else 16), nn.ReLU(), nn.Linear(1 if broken else 16, 8))
    return Case(model=model, data=draw.blob_images(classes=8), loss="cross_entropy")


@SECOND
def dropout_behind_the_output(broken: bool) -> Case:
    """regression | 68 | Stack Overflow: dropout as the last layer zeroes predictions themselves.
    | dropout-misplaced dropout-too-strong | 6 | lower-dropout"""
    layers = list(nets.mlp(8, 48, 48, 1))
    layers += [nn.Identity(), nn.Dropout(0.5 if broken else 0.0)]
    return Case(model=nn.Sequential(*layers), data=draw.regression_table(), loss="mse")


@THIRD
def rectified_but_not_assigned(broken: bool) -> Case:
    """tabular | 81 | `F.relu(x)` on a line of its own changes nothing.
    | missing-activation | first second third | add-activation"""

    # An MLP written with functions.
    def rectified(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = layer(x)
            if self.planted:
                F.relu(x)
            else:
                x = F.relu(x)
        return self.third(x)

    x, y = draw.table()
    net = nets.made("Rectified", rectified)
    net.planted = broken
    net.first, net.second, net.third = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 3)
    return Case((x, y), net, "cross_entropy")


class DroppedSeries(nn.Module):  # Dropout before and behind a GRU.
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.before, self.recurrent = nn.Dropout(rate), nn.GRU(4, 32, batch_first=True)
        self.behind, self.head = nn.Dropout(rate), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.behind(self.recurrent(self.before(x))[0].mean(1)))


@THIRD
def biases_from_a_wide_normal(broken: bool) -> Case:
    """regression | 10 | DeepCrime's change of the bias initialiser: a normal distribution that is far too wide for
    tanh.
    | saturated-units bias-holds-units-off layer-scale-stands-out vanishing-gradient | {0..6} | initialise
    reset-bias"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 32, 32, 32, 1, activation=nn.Tanh)
    if broken:
        for index in (0, 2, 4):
            nn.init.normal_(model[index].bias, std=8.0)
    return Case((x, y), model, "mse")


@THIRD
def graph_units_killed_by_one_step(broken: bool) -> Case:
    """GNN | 20 | A first step with a rate of hundreds of times too much leaves rectified units at zero for every node.
    | dead-units bias-holds-units-off no-gradient output-constant | layers layers.{0..2} layers.{0,1}.neighbour
    layers.{0,1}.own | change-activation initialise lower-learning-rate reset-bias restore-weights"""
    x, edges, y = draw.communities()
    model = nets.GraphNet(edges, depth=3)
    if broken:
        for _ in range(2):
            loss = F.cross_entropy(model(x), y)
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 40.0 * parameter.grad
        model.zero_grad()
    return Case((x, y), model, "cross_entropy", judge_of=accuracy)


@THIRD(plant=scaled("lift.weight mix.weight", 100))
def both_tanh_layers_driven_flat(broken: bool) -> Case:
    """time series | 23 | Weights drawn for inputs that were divided by 100, which the loader now does not do any more.
    | saturated-units layer-scale-stands-out vanishing-gradient | lift mix | add-normalizer change-activation
    initialise rescale-layer"""

    # Pools a series by additive attention with tanh scores.
    def pooled_tagger(self, x: Tensor) -> Tensor:
        steps = torch.tanh(self.lift(x))
        windows = torch.cat([steps[:, :-2], steps[:, 1:-1], steps[:, 2:]], dim=-1)
        return self.head(torch.tanh(self.mix(windows)).square().mean(1))

    x, y = draw.waves(96)
    model = nets.made("PooledTagger", pooled_tagger)
    model.lift, model.mix = nn.Linear(3, 32), nn.Linear(96, 32)
    model.head = nn.Linear(32, 3)
    return Case((x, y), model, "cross_entropy")


@THIRD
def units_killed_by_unscaled_targets(broken: bool) -> Case:
    """tabular | 25 | Ten steps of SGD on targets in the thousands, then the targets are standardised and training goes
    on.
    | dead-units bias-holds-units-off no-gradient output-constant | {0..4} | change-activation initialise
    lower-learning-rate reset-bias restore-weights scale-targets"""
    x, y = draw.regression_table()
    model = nets.mlp(8, 32, 32, 1)
    if broken:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        train(model, x, 40 * y - 60, F.mse_loss, steps=2, optimizer=optimizer)
    return Case((x, y), model, "mse")


# Rows of a table, packed.
# fmt: off
OPEN("""prior-of-the-objectness | detector | 806 | The bias that sets a prior of 1 % is -4.6; here it was set to -46.
    | saturated-units bias-holds-units-off loss-gradient-zero output-constant vanishing-gradient | objectness |
    change-loss initialise remove-final-activation reset-bias""",
    lambda broken: given(draw.blob_images(), lambda x, _: given(rarer.cells_and_boxes(x),
    lambda cells, _: Case((x, cells), changed(lambda model: nn.init.constant_(model.objectness.bias,
    -46.0 if broken else -4.6))(rarer.Detector()), lambda output, target: F.binary_cross_entropy(output[0], target),
    judge_of=lambda cells: lambda output: -F.binary_cross_entropy(output[0], cells).item()))))
OPEN("""pixels-dropped | MLP | 815 | Denoising by dropping 97 % of the pixels.
    | dropout-too-strong | 0 | lower-dropout""",
    lambda broken: given(draw.blob_images(64, classes=8), lambda x, y: Case((x.flatten(1), y),
    nn.Sequential(nn.Dropout(0.97 if broken else 0.1), *nets.mlp(256, 48, 8)), "cross_entropy")))
OPEN("""logits-dropped | CNN | 816 | Dropout after the last layer as well: most logits are zero.
    | dropout-too-strong activation-before-loss | out out.1 | lower-dropout""",
    lambda broken: Case(draw.blob_images(64, classes=8), nets.made("Net", lambda self, x: self.out(self.body(x)),
    body=nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ELU(), nn.Flatten()),
    out=nn.Sequential(nn.Linear(512, 8), nn.Dropout(0.9 if broken else 0.0))), "cross_entropy"))
OPEN("""normalizer-holds-units-off | CNN | 817 | constant_(bias, -5) met the bias of a BatchNorm.
    | dead-units bias-holds-units-off output-constant vanishing-gradient | features.{7,8} | change-activation
    initialise reset-bias""",
    lambda: Case(draw.blob_images(classes=6), nets.ConvNet(width=10, classes=6), "cross_entropy"),
    plant=filled("features.8.bias", -5.0))
OPEN("""leaky-relu-in-place | MLP | 821 | nn.LeakyReLU(True): the first argument is the slope, not inplace, and a slope
    of 1 is no activation. | missing-activation activation-unsuitable | {0..6} | add-activation change-activation""",
    lambda broken: given(draw.table(), lambda x, y: given((lambda: nn.LeakyReLU(True)) if broken else (lambda:
    nn.LeakyReLU(0.2)), lambda leaky: Case((x, y), nn.Sequential(nn.Linear(12, 32), leaky(), nn.Linear(32, 32), leaky(),
    nn.Linear(32, 32), leaky(), nn.Linear(32, 3)), "cross_entropy"))))
OPEN("""relu6-on-bytes | CNN | 826 | nn.ReLU6, from a network for phones, on pixels in 0..255.
    | saturated-units dead-units inputs-not-scaled | {0..3} | add-normalizer change-activation scale-inputs""",
    lambda broken: given(draw.blob_images(64, classes=8), lambda images, y: given(0.3 + 0.7 * draw.as_pixels(images),
    lambda pixels: Case((255 * pixels if broken else 6 * pixels - 3, y), nn.Sequential(nn.Conv2d(1, 12, 3, stride=2,
    padding=1), nn.ReLU6(), nn.Conv2d(12, 12, 3, stride=2, padding=1), nn.ReLU6(), nn.AdaptiveAvgPool2d(2),
    nn.Flatten(), nn.Linear(48, 8)), "cross_entropy"))))
OPEN("""clamped-between-layers | MLP | 1124 | nn.Hardtanh(-0.01, 0.01), a bound meant for gradients, as the activation.
    | saturated-units activation-unsuitable output-constant vanishing-gradient vanishing-signal | {0..4} |
    change-activation rescale-layer""",
    lambda broken: given(draw.regression_table(), lambda x, y: given((lambda: nn.Hardtanh(-0.01,
    0.01)) if broken else nn.Hardtanh, lambda act: Case((x, y), nn.Sequential(nn.Linear(8, 48), act(),
    nn.Linear(48, 48), act(), nn.Linear(48, 1)), "mse"))))
OPEN("""nine-in-ten-dropped-in-each-block | BERT | 853 | dropout=0.9 in every encoder layer. | dropout-too-strong |
    layers layers.0 layers.0.dropout layers.0.dropout1 layers.0.dropout2 layers.0.self_attn | lower-dropout""",
    lambda broken: Case(draw.sentences(96, length=6, vocabulary=14), rarer_sequences.Encoder(depth=1,
    dropout=0.9 if broken else 0.1, batch_first=True), "cross_entropy"))
OPEN("""wavenet-gates-shut | WaveNet | 868 | A bias of -9 on every gate. | saturated-units output-constant
    vanishing-gradient vanishing-signal | filters.{0..3} gates.{0..3} | initialise reset-bias""",
    lambda broken: Case(draw.waves(), over(lambda model: model.gates, lambda gate: nn.init.constant_(gate.bias,
    -9.0 if broken else 0.0))(rarer_sequences.WaveNet()), "cross_entropy"))
OPEN("""dropout-after-the-last-layer | MLP | 2006 | Dropout on the scores themselves.
    | dropout-too-strong activation-before-loss | 5 | lower-dropout""",
    lambda broken: given(draw.table(), lambda x, y: given(nets.mlp(12, 32, 32, 3), lambda layers: Case((x, y),
    nn.Sequential(*layers, nn.Dropout(0.5)) if broken else nn.Sequential(*layers), "cross_entropy"))))
OPEN("""seven-layers-of-sigmoids | MLP | 101 | A textbook network of sigmoids, made deeper. | activation-unsuitable
    saturated-units vanishing-gradient vanishing-signal | | add-normalizer add-skip change-activation initialise""",
    lambda broken: Case(draw.table(), nets.mlp(12, *[32] * 7, 3, activation=nn.Sigmoid if broken else nn.ReLU),
    "cross_entropy"))
OPEN("""bias-for-rare-events-in-a-hidden-layer | CNN | 301 | A bias for rare events (the -4.6 of RetinaNet's head) set
    in a hidden layer.
    | bias-holds-units-off dead-units | features.{5,6} | add-normalizer change-activation initialise reset-bias""",
    lambda: Case(draw.blob_images(), nets.ConvNet(norm=False), "cross_entropy"), plant=filled("features.5.bias", -6.0))
OPEN("""killed-by-a-high-rate | MLP | 302 | The first two steps were taken at a far too high learning rate.
    | bias-holds-units-off dead-units output-constant | {2..5} | change-activation clip-gradients initialise
    lower-learning-rate reset-bias restore-weights""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(nets.mlp(8, 32, 32, 32, 1),
    lambda model: given(torch.optim.SGD(model.parameters(), lr=0.05 if broken else 0.002),
    lambda optimizer: Case((x, 3 + y), train(model, x, 3 + y, F.mse_loss, steps=2, optimizer=optimizer), "mse")))))
OPEN("""killed-by-the-rate-of-another-optimizer | CNN | 303 | Adam at lr=0.1, from a recipe for SGD.
    | bias-holds-units-off dead-units output-constant | features.{0,1,2,3,5,6,7,8} | change-activation initialise
    lower-learning-rate reset-bias restore-weights""",
    lambda broken: given(draw.blob_images(), lambda x, y: given(nets.ConvNet(norm=False),
    lambda model: given(torch.optim.Adam(model.parameters(), lr=0.1 if broken else 1e-3),
    lambda optimizer: Case((x, y), train(model, x, y, F.cross_entropy, steps=20, optimizer=optimizer),
    "cross_entropy")))))
OPEN("""narrow-layer-almost-dead | MLP | 304 | A narrow layer most of whose units died early in training.
    | bias-holds-units-off dead-units | 2 3 | change-activation initialise lower-learning-rate reset-bias
    restore-weights""",
    lambda: Case(draw.table(), nets.mlp(12, 24, 6, 24, 3), "cross_entropy"), plant=lambda model: put(model[2].bias.data,
    s_[:5], -12.0))
OPEN("""negative-weights-on-pixels | MLP | 305 | Weights drawn without a sign where the inputs are not negative.
    | bias-holds-units-off dead-units | 0 1 | change-activation initialise reset-bias scale-inputs""",
    lambda: given(draw.blob_images(), lambda images, y: Case((draw.as_pixels(images).flatten(1), y),
    nets.mlp(256, 9, 32, 4), "cross_entropy")), plant=lambda model:
    model[0].weight.copy_(torch.cat([-model[0].weight[:8].abs(), model[0].weight[8:]])))
OPEN("""code-units-dead | autoencoder | 306 | A ReLU on a code of eight units; most of them died.
    | bias-holds-units-off dead-units | encoder.4 last_of_encoder | change-activation initialise lower-learning-rate
    remove-final-activation reset-bias restore-weights""",
    lambda: given(draw.blob_images()[0].flatten(1), lambda x: Case((x, x), RectifiedCode(), "mse")),
    plant=lambda model: put(model.encoder[4].bias.data, s_[:7], -15.0))
OPEN("""tanh-layers-saturated | MLP | 307 | A gain of 50 for tanh layers. | saturated-units exploding-signal
    layer-scale-stands-out | {2..5} | add-normalizer change-activation initialise rescale-layer""",
    lambda: Case(draw.regression_table(), nets.mlp(8, 32, 32, 32, 1, activation=nn.Tanh), "mse"),
    plant=scaled("2.weight 4.weight", 50))
OPEN("""tanh-units-saturated-by-data | MLP | 309 | Raw readings near 500, straight into tanh units.
    | saturated-units inputs-not-scaled | 0 1 | add-normalizer change-activation scale-inputs""",
    lambda broken: given(draw.table(), lambda x, y: Case((500 + 40 * x if broken else x, y),
    nets.mlp(12, 32, 32, 3, activation=nn.Tanh), "cross_entropy")))
OPEN("""four-linear-layers-in-a-row | MLP | 311 | A stack of nn.Linear without anything between.
    | missing-activation | {0..3} | add-activation""",
    lambda broken: given(draw.table(), lambda x, y: given(nets.mlp(12, 32, 32, 32, 3), lambda layers: Case((x, y),
    nn.Sequential(*layers[::2]) if broken else layers, "cross_entropy"))))
OPEN("""normalizer-but-no-activation | MLP | 313 | BatchNorm between the layers, but no activation.
    | missing-activation | {0..6} | add-activation""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(nn.Identity if broken else nn.ReLU,
    lambda act: Case((x, y), nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), act(), nn.Linear(32, 32),
    nn.BatchNorm1d(32), act(), nn.Linear(32, 1)), "mse"))))
OPEN("""keep-rate-as-dropout-rate | GPT | 314 | The rate to keep given where the rate to drop is wanted.
    | dropout-too-strong | drop | lower-dropout""",
    lambda broken: Case(draw.text(), DroppedGPT(0.95 if broken else 0.05), over_tokens))
OPEN("""dropout-slip-before-the-head | CNN | 315 | p=0.99, a slip for 0.1.
    | dropout-too-strong | drop | lower-dropout""",
    lambda broken: Case(draw.blob_images(), DroppedConvNet(0.99 if broken else 0.1), "cross_entropy"))
FIRST("""gates-saturated-by-raw-prices | LSTM | 116 | Raw prices of a stock (around 3000) fed to an LSTM.
    | saturated-units inputs-not-scaled | recurrent recurrent.weight_ih_l0 | add-normalizer scale-inputs""",
    lambda broken: given(draw.waves(48, steps=24, features=2), lambda x, y: Case((3000 + 300 * x if broken else x, y),
    nets.SequenceClassifier(nn.LSTM(2, 24, batch_first=True), 3), nn.CrossEntropyLoss())))
FIRST("""convolution-held-off-by-its-bias | CNN | 14 | DeepCrime's bias operators; a bias that carries a log prior into
    a hidden layer.
    | dead-units bias-holds-units-off output-constant | features.{5,6} | change-activation initialise reset-bias""",
    lambda: given(draw.blob_images(48), lambda x, y: Case((x, y), nets.ConvNet(norm=False),
    objective=lambda output: F.cross_entropy(output, y), judge_of=accuracy)), plant=filled("features.5.bias", -12.0))
FIRST("""five-of-six-units-dead | MLP | 16 | A narrow layer after a run that overshot: five of six units never fire
    again. | dead-units bias-holds-units-off | 2 3 | change-activation initialise reset-bias""",
    lambda: Case(draw.table(classes=4), nets.mlp(12, 16, 6, 4), nn.CrossEntropyLoss()),
    plant=each(lambda model: put(model[2].bias, s_[:5], -8.0), lambda model: put(model[2].weight, s_[5],
    model[2].weight[5].abs())))
FIRST("""generator-with-saturated-tanh | GAN generator | 20 | weights_init of the DCGAN tutorial with std 1.0 in place
    of 0.02 for the last layer. | saturated-units layer-scale-stands-out | layers.{6,7} | initialise rescale-layer""",
    lambda: given(torch.randn(32, 16), lambda noise: given(draw.blob_images(32),
    lambda images, _: given(2 * draw.as_pixels(images) - 1, lambda target: Case(noise, nets.Generator(),
    objective=lambda output: F.mse_loss(output, target))))), plant=drawn("layers.6.weight", 2.0))
FIRST("""linear-layers-without-activations | MLP | 72 | DeepFD, TheDeepChecker: hidden layers without activations
    compute one linear map. | missing-activation | {0..3} | add-activation""",
    lambda broken: given(draw.table(classes=3), lambda x, y: given(nets.mlp(12, 32, 32, 32, 3),
    lambda layers: Case((x, y), nn.Sequential(*layers[::2]) if broken else layers, nn.CrossEntropyLoss()))))
FIRST("""softmax-as-hidden-activation | MLP | 74 | Stack Overflow: softmax as the activation of hidden layers (UMLAUT).
    | activation-unsuitable saturated-units vanishing-gradient vanishing-signal | {0..5} | change-activation""",
    lambda broken: Case(draw.table(classes=3), nets.mlp(12, 64, 64, 64, 3,
    activation=(lambda: nn.Softmax(dim=1)) if broken else nn.ReLU), nn.CrossEntropyLoss()))
FIRST("""dropout-of-99-percent | MLP | 75 | The probability to keep (0.99) given as the probability to drop.
    | dropout-too-strong dead-units | 2 5 | lower-dropout""",
    lambda broken: given(draw.table(classes=3), lambda x, y: given(0.99 if broken else 0.01,
    lambda rate: given(nets.mlp(12, 64, 64, 3), lambda first, relu, second, _, last: Case((x, y),
    nn.Sequential(first, relu, nn.Dropout(rate), second, nn.ReLU(), nn.Dropout(rate), last), nn.CrossEntropyLoss())))))
SECOND("""update-gates-never-open | GRU | 126 | A bias of 12 on the update gates of torch's GRU keeps the state at zero
    (Keras has them the other way around). | saturated-units output-constant vanishing-gradient vanishing-signal |
    recurrent recurrent.bias_hh_l0 recurrent.bias_ih_l0 | forget-bias initialise reset-bias""",
    lambda: given(nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), lambda model: Case(draw.waves(), model,
    "cross_entropy")), plant=lambda model: nn.init.constant_(model.recurrent.bias_ih_l0[24:48], 12.0))
SECOND("""second-layer-held-off-by-its-bias | tabular | 51 | A prior for the last layer's bias (log of the odds) was set
    on a hidden layer. | dead-units bias-holds-units-off | 2 3 | change-activation initialise reset-bias""",
    lambda: given(nets.mlp(12, 48, 48, 48, 3), lambda model: Case(draw.table(), model, "cross_entropy")),
    plant=filled("2.bias", -9.0))
SECOND("""code-in-the-flat-part-of-tanh | autoencoder | 54 | AutoTrainer, "saturated activations": what enters the tanh
    of the code is in the hundreds. | saturated-units layer-scale-stands-out | encoder.2 squash | add-normalizer
    change-activation initialise rescale-layer""",
    lambda: given(draw.blob_images(classes=8)[0].flatten(1), lambda images: Case((images, images),
    nets.made("SquashedAutoencoder", lambda self, x: self.decoder(self.squash(self.encoder(x))),
    encoder=nets.mlp(256, 64, 8), squash=nn.Tanh(), decoder=nets.mlp(8, 64, 256)), "mse")),
    plant=scaled("encoder.2.weight", 300))
SECOND("""shift-of-a-batchnorm-kills-its-channels | segmentation | 57 | Shifts of -9 behind a normalizer: no pixel ever
    passes the rectifier. | dead-units bias-holds-units-off | middle middle.{1,2} | initialise reset-bias""",
    lambda: given(draw.blob_images(24), lambda images, _: Case((images, (F.avg_pool2d(images, 3, 1, 1) > 1.0).float()),
    nets.made("SmallSegmenter", lambda self, x: self.head(self.middle(self.down(x))), down=nn.Sequential(nn.Conv2d(1,
    12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU()), middle=nn.Sequential(nn.Conv2d(12, 12, 3, padding=2,
    dilation=2, bias=False), nn.BatchNorm2d(12), nn.ReLU()), head=nn.Conv2d(12, 1, 1)), nn.BCEWithLogitsLoss(),
    judge_of=overlap_with)), plant=filled("middle.1.bias", -9.0))
SECOND("""linear-layers-in-a-row | tabular | 61 | DeepCrime, "remove activation function": four linear layers with
    nothing between them. | missing-activation | {0..3} | add-activation""",
    lambda broken: given(list(nets.mlp(12, 48, 48, 48, 3)),
    lambda layers: given(nn.Sequential(*layers[::2]) if broken else nn.Sequential(*layers),
    lambda model: Case(draw.table(), model, "cross_entropy"))))
SECOND("""dropout-keeps-one-channel-in-twenty-five | CNN | 67 | DeepCrime, "change dropout rate": 0.96 was meant as the
    probability to keep. | dropout-too-strong | features.{3,7} | lower-dropout""",
    lambda broken: given(nets.ConvNet(), lambda model: given(list(model.features),
    lambda layers: given(0.96 if broken else 0.04, lambda rate: Case(draw.blob_images(),
    changed(lambda model: setattr(model, "features", nn.Sequential(*layers[:3], nn.Dropout2d(rate), *layers[3:6],
    nn.Dropout2d(rate), *layers[6:])))(model), "cross_entropy")))))
SECOND("""input-weights-saturate-all-gates | GRU | 18 | An initialiser with std of 1 times the width for the input
    weights of a GRU.
    | saturated-units layer-scale-stands-out | recurrent recurrent.weight_ih_l0 | initialise rescale-layer""",
    lambda: given(nets.SequenceClassifier(nn.GRU(3, 24, batch_first=True), 3), lambda model: Case(draw.waves(), model,
    "cross_entropy")), plant=scaled("recurrent.weight_ih_l0", 150))
THIRD("""leaky-slope-of-one | regression | 82 | A leaky rectifier with a slope of one is the identity.
    | missing-activation activation-unsuitable | {0..4} | add-activation change-activation""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(1.0 if broken else 0.01,
    lambda slope: Case((x, y), nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(slope), nn.Linear(32, 32),
    nn.LeakyReLU(slope), nn.Linear(32, 1)), "mse"))))
THIRD("""one-channel-before-the-pooling | CNN | 83 | A convolution to one channel, taken over from a segmenter, then the
    mean over places, then ten classes. | bottleneck-too-narrow | 2 3 4 7 | widen-layer""",
    lambda broken: given(draw.blob_images(80, classes=8), lambda x, y: given(1 if broken else 16,
    lambda width: Case((x, y), nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
    nn.Conv2d(16, width, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2 if not broken else 1), nn.Flatten(),
    nn.Identity(), nn.Linear(width * (4 if not broken else 1), 8)), "cross_entropy"))))
THIRD("""dropout-behind-a-segmenter | segmentation | 87 | Dropout is the last layer: logits are zeroed at random, in
    front of the loss. | dropout-misplaced dropout-too-strong | 1 | lower-dropout""",
    lambda broken: Case(rarer.blob_masks(), nn.Sequential(nets.UNet(), nn.Dropout(0.6) if broken else nn.Identity()),
    F.binary_cross_entropy_with_logits, judge_of=overlap_with))
THIRD("""rate-of-keeping-given-as-rate-of-dropping | GRU | 88 | Code from a framework that asks how much to keep: 0.97
    is kept there and dropped here. | dropout-too-strong dropout-misplaced | before behind | lower-dropout""",
    lambda broken: Case(draw.remembered_series(steps=12), DroppedSeries(0.97 if broken else 0.03), "cross_entropy"))
THIRD("""lstm-from-a-standard-normal | LSTM | 6 | A loop over `parameters()` that draws all of them from a standard
    normal distribution. | saturated-units exploding-gradient layer-scale-stands-out recurrent-weights-explode |
    recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0 | clip-gradients initialise rescale-layer""",
    lambda: Case(draw.waves(), nets.SequenceClassifier(nn.LSTM(3, 64, batch_first=True), 3), "cross_entropy"),
    plant=over(lambda model: model.recurrent.parameters(), lambda parameter: nn.init.normal_(parameter)))
THIRD("""prior-bias-in-all-layers-of-a-detector | detection | 18 | The bias of a rare-object prior, set in a loop that
    meets every layer instead of the last. | dead-units bias-holds-units-off no-gradient output-constant
    vanishing-signal | trunk trunk.{0,1,2,3,5,6} | initialise reset-bias""",
    lambda: Case(rarer.boxes(), rarer.DetectorOfThird(), "mse"), plant=over(lambda model: model.trunk,
    lambda module: nn.init.constant_(module.bias, -4.6), nn.Conv2d | nn.Linear))
THIRD("""negative-distances-through-a-rectifier | metric learning | 21 | A rectifier behind values that are never
    positive lets nothing through. | dead-units activation-before-loss loss-gradient-zero no-gradient output-constant
    output-range-too-small | last | change-activation remove-final-activation""",
    lambda broken: Case(draw.blob_images(), rarer.Prototypes(nn.ReLU() if broken else nn.Identity()), "cross_entropy"))
THIRD("""radial-units-too-narrow | regression | 22 | Gaussian units so narrow that no sample comes near a centre.
    | dead-units layer-scale-stands-out output-constant saturated-units vanishing-gradient vanishing-signal |
    centres head log_width | change-activation initialise rescale-layer scale-inputs""",
    lambda broken: Case(draw.regression_table(columns=4), rarer.RadialNet(0.05 if broken else 1.5), "mse"))
THIRD("""threshold-that-nothing-reaches | CNN | 24 | `nn.Threshold(20, 0)` was written for features in bytes;
    standardised ones never pass it. | dead-units activation-unsuitable no-gradient output-constant vanishing-signal | 0
    2 3 5 | add-normalizer change-activation initialise rescale-layer reset-bias""",
    lambda broken: Case(draw.blob_images(), nn.Sequential(nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(),
    nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.Threshold(20.0, 0.0) if broken else nn.Threshold(0.0, 0.0),
    nn.Flatten(), nn.Linear(256, 4)), "cross_entropy"))
THIRD("""hidden-sigmoids-with-the-bias-of-rare-labels | multi-label | 26 | The bias of the prior of rare labels, -9, was
    given to the hidden sigmoid layer.
    | saturated-units activation-unsuitable bias-holds-units-off layer-scale-stands-out vanishing-gradient | 2 3 4 |
    add-normalizer change-activation initialise rescale-layer reset-bias""",
    lambda: given(draw.table(160), lambda x, _: Case((x, torch.stack([x[:, 0] * x[:, 1] > 0, x[:, 2] > 0.2,
    x[:, 3] + x[:, 4] > 0, x[:, 5].abs() > 0.8], dim=1).float()), nn.Sequential(nn.Linear(12, 48), nn.ReLU(),
    nn.Linear(48, 48), nn.Sigmoid(), nn.Linear(48, 4)), nn.BCEWithLogitsLoss(), judge_of=binary_accuracy)),
    plant=filled("2.bias", -9.0))
