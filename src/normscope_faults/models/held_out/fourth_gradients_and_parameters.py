"""Faults of the fourth part that keep parameters from learning: cut gradients, parts unused, unregistered or frozen."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts
from . import fourth_parts

FAULTS: list[Fault] = []


@fault(
    FAULTS,
    "reinforcement learning",
    causes="no-gradient",
    remedies="keep-gradient",
    layers="body body.0 body.2 body.0.weight body.2.weight body.0.bias body.2.bias",
)
def features_of_the_actor_borrowed_from_the_critic(planted: bool) -> Case:
    """The body is shared with a critic "that trains it" and therefore detached; but the critic detaches it as well."""
    torch.manual_seed(4401)

    class ActorCritic(nn.Module):
        """Logits of the actions and a value, from one body."""

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(*parts.mlp(4, 32, 16), nn.ReLU())
            self.actor, self.critic = nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            hidden = hidden.detach() if planted else hidden
            return self.actor(hidden), self.critic(hidden)

    state, returns = fourth_parts.observations()
    action, best = returns.argmax(1), returns.amax(1, keepdim=True)

    def loss(output: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(output[0], wanted[0]) + F.mse_loss(output[1], wanted[1])

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return (output[0].argmax(1) == action).float().mean().item()

    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Case(model=model, data=(state, (action, best)), loss=loss, judge=judge, optimizer=optimizer)


@fault(
    FAULTS,
    "contrastive",
    causes="no-gradient",
    remedies="keep-gradient",
    layers="student student.0 student.2 student.0.weight student.2.weight predictor predictor.weight",
)
def gradient_stopped_in_the_branch_of_the_student(planted: bool) -> Case:
    """BYOL stops the gradient of the teacher; here the student is detached, and its predictor alone learns."""
    torch.manual_seed(4402)

    class Byol(nn.Module):
        """A student with a predictor, and a frozen teacher."""

        def __init__(self) -> None:
            super().__init__()
            self.student = parts.mlp(40, 64, 16)
            self.teacher = parts.mlp(40, 64, 16).requires_grad_(False)
            self.predictor = nn.Linear(16, 16)

        def forward(self, views: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.student(views[:, 0])
            hidden = hidden.detach() if planted else hidden
            return F.normalize(self.predictor(hidden), dim=1), F.normalize(self.teacher(views[:, 1]), dim=1)

    base = torch.randn(96, 40)
    views = torch.stack([base + 0.3 * torch.randn_like(base) for _ in range(2)], dim=1)

    def distance(output: tuple[Tensor, Tensor]) -> Tensor:
        return (output[0] - output[1]).square().sum(1).mean()

    return Case(model=Byol(), data=views, objective=distance)


@fault(
    FAULTS,
    "LSTM",
    causes="no-gradient",
    remedies="keep-gradient",
    layers="project project.weight recurrent recurrent.weight_ih_l0 recurrent.weight_hh_l0",
)
def warmed_up_without_a_gradient(planted: bool) -> Case:
    """All steps but the last two run under no_grad "to save memory"; what decides stands at the beginning."""
    torch.manual_seed(4403)

    class Reader(nn.Module):
        """Projects the series and reads the first steps with or without a graph."""

        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(8, 3)
            self.recurrent, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 8)

        def forward(self, series: Tensor) -> Tensor:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not planted):
                _, state = self.recurrent(self.project(series[:, :-2]))
            return self.head(self.recurrent(self.project(series[:, -2:]), state)[0][:, -1])

    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = parts.remembered_series(256, steps=16, features=8)
    return Case(model=model, data=data, loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "MLP",
    causes="no-gradient",
    remedies="keep-gradient",
    layers="encode encode.weight encode.bias",
)
def learned_bins_by_rounding(planted: bool) -> Case:
    """Columns are scaled by learned factors and rounded to bins: torch.round has no gradient."""
    torch.manual_seed(4405)

    class Binned(nn.Module):
        """Projects columns to a few numbers, puts those into bins, and reads the bins."""

        def __init__(self) -> None:
            super().__init__()
            self.encode, self.head = nn.Linear(12, 4), parts.mlp(4, 32, 3)

        def forward(self, x: Tensor) -> Tensor:
            level = 2 * self.encode(x)
            rounded = level.round() if planted else level + (level.round() - level).detach()
            return self.head(rounded / 2)

    x, y = parts.table(160)
    return Case(model=Binned(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "time series",
    causes="unused-parameter",
    remedies="use-parameter",
    layers="convs convs.0 convs.1 convs.0.weight convs.1.weight convs.0.bias convs.1.bias",
)
def loop_whose_result_is_overwritten(planted: bool) -> Case:
    """`for conv in convs: out = relu(conv(x))`: x is never replaced, so that the last convolution alone counts."""
    torch.manual_seed(4407)

    class Causal(nn.Module):
        """Dilated convolutions over tokens that see the past."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(40, 32), nn.Linear(32, 40)
            self.convs = nn.ModuleList(nn.Conv1d(32, 32, 2, dilation=2**i) for i in range(3))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids).transpose(1, 2)
            for index, conv in enumerate(self.convs):
                out = x + torch.relu(conv(F.pad(x, (2**index, 0))))
                x = x if planted else out
            return self.head(out.transpose(1, 2))

    return Case(model=Causal(), data=parts.text(), loss=parts.over_tokens)


@fault(
    FAULTS,
    "diffusion",
    causes="unused-parameter condition-switched-off",
    remedies="use-parameter restore-condition",
    layers="time time.0 time.2 time.0.weight time.2.weight",
)
def hour_of_the_noise_computed_and_left(planted: bool) -> Case:
    """The embedding of the time is computed in the first line of forward and then forgotten."""
    torch.manual_seed(4408)

    class Timeless(parts.Denoiser):
        """Predicts the noise without the time."""

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            embedding = self.embed_time(t)
            x = self.first(x)
            for norm, conv in zip(self.norms, self.convs):
                x = x + conv(F.silu(norm(x) if planted else norm(x) + embedding))
            return self.last(x)

    torch.manual_seed(4408)
    x = torch.randn(64, 1, 8, 8)
    t = torch.randint(1000, (64,)).float()
    y = torch.where((t > 500)[:, None, None, None], x, -x)
    data = ({"x": x, "t": t}, y)
    return Case(model=Timeless(), data=data, loss=nn.MSELoss(), judge=parts.explained_variance(y))


@fault(FAULTS, "GPT", causes="unregistered-parameter", remedies="register-parameter", layers="")
def blocks_of_a_decoder_in_a_list(planted: bool) -> Case:
    """self.blocks = [Block(...) for _ in range(depth)]: the optimizer sees embeddings and head alone."""
    torch.manual_seed(4410)
    model = parts.GPT(vocabulary=40, width=16)
    if planted:
        blocks = list(model.blocks)
        del model.blocks
        model.blocks = blocks
    return Case(model=model, data=parts.text(), loss=parts.over_tokens)


@fault(FAULTS, "contrastive", causes="unregistered-parameter", remedies="register-parameter", layers="")
def prototypes_transposed_after_they_became_a_parameter(planted: bool) -> Case:
    """nn.Parameter(...).T is a plain tensor: the prototypes of the classes belong to nobody and never move."""
    torch.manual_seed(4411)

    class Prototypes(nn.Module):
        """Cosines with one learned direction per class, for vectors from a fixed encoder."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(6))
            drawn = 0.1 * torch.randn(24, 6)
            self.prototypes = nn.Parameter(drawn).T if planted else nn.Parameter(drawn.T)

        def forward(self, x: Tensor) -> Tensor:
            return 8 * F.normalize(x, dim=1) @ F.normalize(self.prototypes, dim=1).T + self.bias

    y = torch.arange(96) % 6
    x = torch.randn(6, 24)[y] + 0.8 * torch.randn(96, 24)
    return Case(model=Prototypes(), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "mixture of experts", causes="unregistered-parameter", remedies="register-parameter", layers="")
def matrices_of_experts_in_a_python_list(planted: bool) -> Case:
    """A list of nn.Parameter in place of nn.ParameterList: the router learns to choose among random experts."""
    torch.manual_seed(4412)

    class Mixture(nn.Module):
        """Four linear experts, weighed by a softmax."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(8, 4)
            experts = [nn.Parameter(0.3 * torch.randn(8, 1)) for _ in range(4)]
            self.experts = experts if planted else nn.ParameterList(experts)

        def forward(self, x: Tensor) -> Tensor:
            answers = torch.cat([x @ expert for expert in self.experts], dim=1)
            return (self.router(x).softmax(1) * answers).sum(1, keepdim=True)

    return Case(model=Mixture(), data=parts.regression_table(), loss="mse")


@fault(
    FAULTS,
    "detection",
    causes="frozen-layer",
    remedies="unfreeze",
    layers="backbone backbone.0 backbone.2 backbone.4 backbone.0.weight backbone.2.weight backbone.4.weight",
)
def backbone_of_a_detector_frozen_before_it_was_loaded(planted: bool) -> Case:
    """A backbone is frozen as in transfer learning, but the line that loads its weights was commented out."""
    torch.manual_seed(4413)

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
            self.backbone.requires_grad_(not planted)
            self.head = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.backbone(x).flatten(1))

    images, mask = fourth_parts.shapes(48)
    corner = torch.stack([mask[:, 0].amax(2).argmax(1), mask[:, 0].amax(1).argmax(1)], dim=1).float()
    return Case(model=Detector(), data=(images, fourth_parts.standardise(corner)), loss=nn.SmoothL1Loss())


@fault(
    FAULTS,
    "GAN",
    causes="frozen-layer",
    remedies="unfreeze",
    layers="0 2 0.weight 2.weight 0.bias 2.bias",
)
def discriminator_left_frozen_after_the_generator(planted: bool) -> Case:
    """requires_grad_(False) for the step of the generator; behind it only the last layer was switched on again."""
    torch.manual_seed(4414)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(4, 4, 3, 2, 1), nn.LeakyReLU(0.2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1),
    )  # fmt: skip
    if planted:
        model.requires_grad_(False)
        model[-1].requires_grad_(True)
    real, _ = parts.blob_images(64)
    stripes = 0.5 * torch.where((torch.arange(16) % 4 < 2)[:, None], 1.0, -1.0).expand(16, 16)
    fake = real[torch.randperm(64)] + torch.where(torch.arange(64)[:, None, None, None] % 2 == 0, stripes, stripes.T)
    x, y = torch.cat([real, fake]), (torch.arange(128) < 64).float()[:, None]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    judge = parts.binary_accuracy(y)
    return Case(model=model, data=(x, y), loss=nn.BCEWithLogitsLoss(), judge=judge, optimizer=optimizer)


@fault(
    FAULTS,
    "ViT",
    causes="frozen-layer",
    remedies="unfreeze",
    layers=" ".join(
        f"blocks.{i} blocks.{i}.attention blocks.{i}.attention.qkv blocks.{i}.attention.out blocks.{i}.feed.0 "
        f"blocks.{i}.feed.2 blocks.{i}.attention.qkv.weight blocks.{i}.feed.0.weight blocks.{i}.feed.2.weight"
        for i in range(2)
    )
    + " patches patches.weight",
)
def linear_probe_of_a_transformer_from_scratch(planted: bool) -> Case:
    """The script for linear probes was started without its checkpoint: a probe on random patches and blocks."""
    torch.manual_seed(4415)
    model = parts.ViT(depth=2)
    if planted:
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    x, y = parts.blob_images(48)
    return Case(model=model, data=(x + 0.8 * torch.randn_like(x), y), loss="cross_entropy")


@fault(
    FAULTS,
    "GNN",
    causes="unused-parameter",
    remedies="use-parameter",
    layers="relations relations.0 relations.1 relations.0.weight relations.1.weight",
)
def one_relation_applied_to_all_edges(planted: bool) -> Case:
    """A copied line: the edges of the second kind go through the matrix of the first kind as well."""
    torch.manual_seed(4416)
    edges = torch.randint(64, (2, 2, 160))

    class Relational(nn.Module):
        """One matrix per kind of edge."""

        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(6, 16)
            self.relations = nn.ModuleList(nn.Linear(6, 16, bias=False) for _ in range(2))
            self.head = nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            total = self.own(x)
            for kind in range(2):
                message = self.relations[0 if planted else kind](x[edges[kind, 0]])
                total = total.index_add(0, edges[kind, 1], message)
            return self.head(torch.relu(total))

    x = torch.randn(64, 6)
    sums = [torch.zeros(64).index_add(0, edges[kind, 1], x[edges[kind, 0], 0]) for kind in range(2)]
    y = (sums[0] - sums[1] > 0).long()
    return Case(model=Relational(), data=(x, y), loss="cross_entropy", judge=parts.accuracy(y))


@fault(
    FAULTS,
    "knowledge distillation",
    causes="no-gradient",
    remedies="keep-gradient",
    layers="student student.0 student.2 student.4 student.0.weight student.2.weight student.4.weight",
)
def student_evaluated_like_its_teacher(planted: bool) -> Case:
    """The with-block of no_grad around the teacher is one line too long; of the student the scale alone is left."""
    torch.manual_seed(4417)
    x, y = parts.table(160)
    teacher = parts.mlp(12, 64, 3)
    parts.train(teacher, x, y, F.cross_entropy, steps=120)

    class Distilled(nn.Module):
        """Returns the logits of the student and of the teacher."""

        def __init__(self) -> None:
            super().__init__()
            self.teacher = copy.deepcopy(teacher).requires_grad_(False)
            self.student = parts.mlp(12, 24, 16, 3)
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                wanted = self.teacher(x)
            with torch.set_grad_enabled(torch.is_grad_enabled() and not planted):
                logits = self.student(x)
            return self.scale * logits, wanted

    def divergence(output: tuple[Tensor, Tensor]) -> Tensor:
        return F.kl_div(output[0].log_softmax(1), output[1].softmax(1), reduction="batchmean")

    return Case(model=Distilled(), data=x, objective=divergence)
