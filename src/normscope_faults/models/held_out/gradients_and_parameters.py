"""Faults for scoring alone: gradients, parameters."""

import copy
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case
from ...plants import variant
from ...training import accuracy, binary_accuracy, evidence_loss, explained_variance, over_tokens, train
from . import rarer


@HELD_OUT
def features_of_the_actor_borrowed_from_the_critic(broken: bool) -> Case:
    """reinforcement learning | 4401 | The body is shared with a critic "that trains it" and therefore detached; but
    the critic detaches it as well.
    | no-gradient | body body.{0,2} | keep-gradient"""

    # Logits of the actions and a value, from one body.
    def actor_critic(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        hidden = hidden.detach() if broken else hidden
        return self.actor(hidden), self.critic(hidden)

    state, returns = rarer.observations()
    action, best = returns.argmax(1), returns.amax(1, keepdim=True)

    def loss(output: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(output[0], wanted[0]) + F.mse_loss(output[1], wanted[1])

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return (output[0].argmax(1) == action).float().mean().item()

    model = nets.made("ActorCritic", actor_critic)
    model.body = nn.Sequential(*nets.mlp(4, 32, 16), nn.ReLU())
    model.actor, model.critic = nn.Linear(16, 3), nn.Linear(16, 1)
    return Case((state, (action, best)), model, loss, judge=judge, optimizer=partial(torch.optim.Adam, lr=1e-2))


@HELD_OUT
def gradient_stopped_in_the_branch_of_the_student(broken: bool) -> Case:
    """contrastive | 4402 | BYOL stops the gradient of the teacher; here the student is detached, and its predictor
    alone learns.
    | no-gradient | predictor student student.{0,2} | keep-gradient"""

    # A student with a predictor, and a frozen teacher.
    def byol(self, views: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.student(views[:, 0])
        hidden = hidden.detach() if broken else hidden
        return F.normalize(self.predictor(hidden), dim=1), F.normalize(self.teacher(views[:, 1]), dim=1)

    base = torch.randn(96, 40)
    views = torch.stack([base + 0.3 * torch.randn_like(base) for _ in range(2)], dim=1)

    def distance(output: tuple[Tensor, Tensor]) -> Tensor:
        return (output[0] - output[1]).square().sum(1).mean()

    net = nets.made("Byol", byol)
    net.student = nets.mlp(40, 64, 16)
    net.teacher = nets.mlp(40, 64, 16).requires_grad_(False)
    net.predictor = nn.Linear(16, 16)
    return Case(views, net, objective=distance)


@HELD_OUT
def warmed_up_without_a_gradient(broken: bool) -> Case:
    """LSTM | 4403 | All steps but the last two run under no_grad "to save memory"; what decides stands at the
    beginning.
    | no-gradient | project recurrent recurrent.weight_hh_l0 recurrent.weight_ih_l0 | keep-gradient"""

    # Projects the series and reads the first steps with or without a graph.
    def reader(self, series: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not broken):
            _, state = self.recurrent(self.project(series[:, :-2]))
        return self.head(self.recurrent(self.project(series[:, -2:]), state)[0][:, -1])

    model = nets.made("Reader", reader)
    model.project = nn.Linear(8, 3)
    model.recurrent, model.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = draw.remembered_series(256, steps=16, features=8)
    return Case(data, model, nn.CrossEntropyLoss(), optimizer=optimizer)


@HELD_OUT
def learned_bins_by_rounding(broken: bool) -> Case:
    """MLP | 4405 | Columns are scaled by learned factors and rounded to bins: torch.round has no gradient.
    | no-gradient | encode | keep-gradient"""

    # Projects columns to a few numbers, puts those into bins, and reads the bins.
    def binned(self, x: Tensor) -> Tensor:
        level = 2 * self.encode(x)
        rounded = level.round() if broken else level + (level.round() - level).detach()
        return self.head(rounded / 2)

    x, y = draw.table(160)
    net = nets.made("Binned", binned)
    net.encode, net.head = nn.Linear(12, 4), nets.mlp(4, 32, 3)
    return Case((x, y), net, nn.CrossEntropyLoss())


@HELD_OUT
def loop_whose_result_is_overwritten(broken: bool) -> Case:
    """time series | 4407 | `for conv in convs: out = relu(conv(x))`: x is never replaced, so that the last convolution
    alone counts.
    | unused-parameter | convs convs.{0,1} | use-parameter"""

    # Dilated convolutions over tokens that see the past.
    def causal(self, ids: Tensor) -> Tensor:
        x = self.words(ids).transpose(1, 2)
        for index, conv in enumerate(self.convs):
            out = x + torch.relu(conv(F.pad(x, (2**index, 0))))
            x = x if broken else out
        return self.head(out.transpose(1, 2))

    net = nets.made("Causal", causal)
    net.words, net.head = nn.Embedding(40, 32), nn.Linear(32, 40)
    net.convs = nn.ModuleList(nn.Conv1d(32, 32, 2, dilation=2**i) for i in range(3))
    return Case(model=net, data=draw.text(), loss=over_tokens)


@HELD_OUT
def hour_of_the_noise_computed_and_left(broken: bool) -> Case:
    """diffusion | 4408 | The embedding of the time is computed in the first line of forward and then forgotten.
    | unused-parameter condition-switched-off | time time.{0,2} | restore-condition use-parameter"""

    # Predicts the noise without the time.
    def forward_timeless(self, x: Tensor, t: Tensor) -> Tensor:
        embedding = self.embed_time(t)
        x = self.first(x)
        for norm, conv in zip(self.norms, self.convs):
            x = x + conv(F.silu(norm(x) if broken else norm(x) + embedding))
        return self.last(x)

    torch.manual_seed(4408)
    x = torch.randn(64, 1, 8, 8)
    t = torch.randint(1000, (64,)).float()
    y = torch.where((t > 500)[:, None, None, None], x, -x)
    data = ({"x": x, "t": t}, y)
    return Case(
        data, variant("Timeless", nets.Denoiser(), forward=forward_timeless), nn.MSELoss(), judge=explained_variance(y)
    )


@HELD_OUT
def blocks_of_a_decoder_in_a_list(broken: bool) -> Case:
    """GPT | 4410 | self.blocks = [Block(...) for _ in range(depth)]: the optimizer sees embeddings and head alone.
    | unregistered-parameter | | register-parameter"""
    model = nets.GPT(vocabulary=40, width=16)
    if broken:
        blocks = list(model.blocks)
        del model.blocks
        model.blocks = blocks
    return Case(draw.text(), model, over_tokens)


@HELD_OUT
def prototypes_transposed_after_they_became_a_parameter(broken: bool) -> Case:
    """contrastive | 4411 | nn.Parameter(...).T is a plain tensor: the prototypes of the classes belong to nobody and
    never move.
    | unregistered-parameter | | register-parameter"""

    class Prototypes(nn.Module):
        """Cosines with one learned direction per class, for vectors from a fixed encoder."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(6))
            drawn = 0.1 * torch.randn(24, 6)
            self.prototypes = nn.Parameter(drawn).T if broken else nn.Parameter(drawn.T)

        def forward(self, x: Tensor) -> Tensor:
            return 8 * F.normalize(x, dim=1) @ F.normalize(self.prototypes, dim=1).T + self.bias

    y = torch.arange(96) % 6
    x = torch.randn(6, 24)[y] + 0.8 * torch.randn(96, 24)
    return Case((x, y), Prototypes(), nn.CrossEntropyLoss())


@HELD_OUT
def matrices_of_experts_in_a_python_list(broken: bool) -> Case:
    """mixture of experts | 4412 | A list of nn.Parameter in place of nn.ParameterList: the router learns to choose
    among random experts.
    | unregistered-parameter | | register-parameter"""

    class Mixture(nn.Module):
        """Four linear experts, weighed by a softmax."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)
            experts = [nn.Parameter(0.3 * torch.randn(8, 1)) for _ in range(4)]
            self.experts = experts if broken else nn.ParameterList(experts)

        def forward(self, x: Tensor) -> Tensor:
            answers = torch.cat([x @ expert for expert in self.experts], dim=1)
            return (self.router(x).softmax(1) * answers).sum(1, keepdim=True)

    return Case(model=Mixture(), data=draw.regression_table(), loss="mse")


@HELD_OUT
def backbone_of_a_detector_frozen_before_it_was_loaded(broken: bool) -> Case:
    """detection | 4413 | A backbone is frozen as in transfer learning, but the line that loads its weights was
    commented out.
    | frozen-layer | backbone backbone.{0,2,4} | unfreeze"""

    class Detector(nn.Module):
        """A convolutional backbone and a head for a box."""

        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Sequential(
                nn.Conv2d(1, 6, 3, 2, 1),
                nn.ReLU(),
                nn.Conv2d(6, 6, 3, 2, 1),
                nn.ReLU(),
                nn.Conv2d(6, 2, 3, 2, 1),
                nn.ReLU(),
            )
            self.backbone.requires_grad_(not broken)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.backbone(x).flatten(1))

    images, mask = rarer.shapes(48)
    corner = torch.stack([mask[:, 0].amax(2).argmax(1), mask[:, 0].amax(1).argmax(1)], dim=1).float()
    return Case(model=Detector(), data=(images, rarer.standardise(corner)), loss=nn.SmoothL1Loss())


@HELD_OUT
def discriminator_left_frozen_after_the_generator(broken: bool) -> Case:
    """GAN | 4414 | requires_grad_(False) for the step of the generator; behind it only the last layer was switched on
    again.
    | frozen-layer | 0 2 | unfreeze"""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 3, 2, 1), nn.LeakyReLU(0.2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1),
    )  # fmt: skip
    if broken:
        model.requires_grad_(False)
        model[-1].requires_grad_(True)
    real, _ = draw.blob_images(64)
    stripes = 0.5 * torch.where((torch.arange(16) % 4 < 2)[:, None], 1.0, -1.0).expand(16, 16)
    fake = real[torch.randperm(64)] + torch.where(torch.arange(64)[:, None, None, None] % 2 == 0, stripes, stripes.T)
    x, y = torch.cat([real, fake]), (torch.arange(128) < 64).float()[:, None]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    judge = binary_accuracy(y)
    return Case((x, y), model, nn.BCEWithLogitsLoss(), judge=judge, optimizer=optimizer)


@HELD_OUT
def linear_probe_of_a_transformer_from_scratch(broken: bool) -> Case:
    """ViT | 4415 | The script for linear probes was started without its checkpoint: a probe on random patches and
    blocks.
    | frozen-layer | blocks.{0,1} blocks.{0,1}.attention blocks.{0,1}.attention.out blocks.{0,1}.attention.qkv
    blocks.0.feed.{0,2} blocks.1.feed.{0,2} patches | unfreeze"""
    model = nets.ViT(depth=2)
    if broken:
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    x, y = draw.blob_images(48)
    return Case((x + 0.8 * torch.randn_like(x), y), model, "cross_entropy")


@HELD_OUT
def one_relation_applied_to_all_edges(broken: bool) -> Case:
    """GNN | 4416 | A copied line: the edges of the second kind go through the matrix of the first kind as well.
    | unused-parameter | relations relations.{0,1} | use-parameter"""

    # One matrix per kind of edge.
    def relational(self, x: Tensor) -> Tensor:
        total = self.own(x)
        for kind in range(2):
            message = self.relations[0 if broken else kind](x[edges[kind, 0]])
            total = total.index_add(0, edges[kind, 1], message)
        return self.head(torch.relu(total))

    edges = torch.randint(64, (2, 2, 160))
    x = torch.randn(64, 6)
    sums = [torch.zeros(64).index_add(0, edges[kind, 1], x[edges[kind, 0], 0]) for kind in range(2)]
    y = (sums[0] - sums[1] > 0).long()
    net = nets.made("Relational", relational)
    net.own = nn.Linear(6, 16)
    net.relations = nn.ModuleList(nn.Linear(6, 16, bias=False) for _ in range(2))
    net.head = nn.Linear(16, 2)
    return Case((x, y), net, "cross_entropy", judge_of=accuracy)


@HELD_OUT
def student_evaluated_like_its_teacher(broken: bool) -> Case:
    """knowledge distillation | 4417 | The with-block of no_grad around the teacher is one line too long; of the
    student the scale alone is left.
    | no-gradient | student student.{0,2,4} | keep-gradient"""

    # Returns the logits of the student and of the teacher.
    def distilled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(x)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not broken):
            logits = self.student(x)
        return self.scale * logits, wanted

    x, y = draw.table(160)
    teacher = nets.mlp(12, 64, 3)
    train(teacher, x, y, F.cross_entropy, steps=120)

    def divergence(output: tuple[Tensor, Tensor]) -> Tensor:
        return F.kl_div(output[0].log_softmax(1), output[1].softmax(1), reduction="batchmean")

    net = nets.made("Distilled", distilled)
    net.teacher = copy.deepcopy(teacher).requires_grad_(False)
    net.student = nets.mlp(12, 24, 16, 3)
    net.scale = nn.Parameter(torch.ones(3))
    return Case(x, net, objective=divergence)


@HELD_OUT
def optimizer_made_while_the_backbone_was_frozen(broken: bool) -> Case:
    """CNN | 4512 | The optimizer holds what required a gradient when it was made; the backbone was unfrozen after
    that.
    | not-in-optimizer | backbone backbone.{0,2} | add-to-optimizer"""
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 1, 3, 2, 1), nn.ReLU())
    model = nn.Sequential()
    model.add_module("backbone", backbone)
    model.add_module("flatten", nn.Flatten())
    model.add_module("head", nn.Linear(16, 8))
    backbone.requires_grad_(not broken)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    backbone.requires_grad_(True)
    x, y = draw.blob_images(64, classes=8)
    return Case(((x + 0.5 * torch.randn_like(x)), y), model, nn.CrossEntropyLoss(), optimizer=optimizer)


@HELD_OUT
def vectors_left_for_an_optimizer_of_sparse_gradients(broken: bool) -> Case:
    """recommender | 4513 | The embeddings were to get a SparseAdam of their own, which was never made.
    | not-in-optimizer | items users | add-to-optimizer"""
    model = nets.Recommender()
    model.tower = nets.mlp(16, 6, 1)
    held = model.tower.parameters() if broken else model.parameters()
    optimizer = torch.optim.Adam(held, lr=1e-2)
    return Case(draw.ratings(count=400), model, nn.MSELoss(), optimizer=optimizer)


@HELD_OUT
def decoder_missing_from_the_optimizer(broken: bool) -> Case:
    """VAE | 4514 | Adam(model.encoder.parameters()) and both heads of the code: the decoder keeps the weights it was
    drawn with.
    | not-in-optimizer | decoder decoder.{0,2} | add-to-optimizer"""
    images, _ = draw.blob_images(64, classes=8)
    x = (images > 0.5).float().flatten(1)
    model = nets.VAE()
    held = [p for name, p in model.named_parameters() if not (broken and name.startswith("decoder"))]

    def judge(output: tuple[Tensor, Tensor, Tensor]) -> float:
        return -evidence_loss(output, x).item()

    optimizer = torch.optim.Adam(held, lr=3e-3)
    return Case((x, x), model, evidence_loss, judge=judge, optimizer=optimizer)
