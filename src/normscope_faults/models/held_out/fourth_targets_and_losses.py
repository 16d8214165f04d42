"""Faults of the fourth part in targets, last activations and losses."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts
from . import fourth_parts

FAULTS: list[Fault] = []


@fault(FAULTS, "MLP", causes="targets-wrong-scale", remedies="scale-targets")
def progression_of_a_disease_as_it_was_scored(planted: bool) -> Case:
    """The targets of scikit-learn's diabetes table lie between 25 and 346; the outputs begin at 0."""
    torch.manual_seed(4101)
    x, y = fourth_parts.hospital_table("diabetes")
    y = y.float()[:, None]
    y = y if planted else fourth_parts.standardise(y)
    return Case(model=parts.mlp(10, 32, 16, 1), data=(fourth_parts.standardise(x), y), loss=nn.MSELoss())


@fault(
    FAULTS,
    "ViT",
    causes="softmax-twice activation-before-loss",
    layers="last",
    remedies="remove-final-activation change-loss change-output-activation",
)
def patches_end_in_a_softmax(planted: bool) -> Case:
    """A softmax at the end of a vision transformer, and nn.CrossEntropyLoss behind it (UMLAUT)."""
    torch.manual_seed(4102)

    class WithLast(parts.ViT):
        """Applies a last activation."""

        def __init__(self) -> None:
            super().__init__(depth=2)
            self.head = nn.Linear(32, 16)
            self.last = nn.Softmax(dim=1) if planted else nn.Identity()

        def forward(self, images: Tensor) -> Tensor:
            return self.last(super().forward(images))

    model = WithLast()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(model=model, data=parts.blob_images(64, classes=16), loss=nn.CrossEntropyLoss(), optimizer=optimizer)


@fault(
    FAULTS,
    "GNN",
    causes="softmax-twice activation-before-loss",
    remedies="remove-final-activation change-loss change-output-activation",
)
def nodes_end_in_a_softmax(planted: bool) -> Case:
    """The last line of many examples is a softmax over the classes; this one is followed by F.cross_entropy."""
    torch.manual_seed(4103)

    class WithLast(parts.GraphNet):
        """Returns probabilities."""

        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            return F.softmax(logits, dim=1) if planted else logits

    x, edges, y = parts.communities(classes=6)
    return Case(model=WithLast(edges, classes=6), data=(x, y), loss="cross_entropy", judge=parts.accuracy(y))


@fault(
    FAULTS,
    "segmentation",
    causes="softmax-twice activation-before-loss",
    layers="7",
    remedies="remove-final-activation change-loss",
)
def sigmoid_in_the_segmenter_and_in_its_loss(planted: bool) -> Case:
    """The network returns probabilities of pixels and the loss is BCEWithLogitsLoss (PyTorch forum)."""
    torch.manual_seed(4104)
    x, mask = fourth_parts.shapes()
    model = nn.Sequential(*fourth_parts.segmenter(), nn.Sigmoid() if planted else nn.Identity())
    judge = parts.overlap_with(mask)
    return Case(
        model=model,
        data=(x, mask),
        loss=nn.BCEWithLogitsLoss(),
        judge=lambda output: judge(output - 0.5 if planted else output),
    )


def grade_loss(output: Tensor, grade: Tensor) -> Tensor:
    """Return the loss of an ordinal model: for each threshold, is the grade above it?"""
    return F.binary_cross_entropy_with_logits(output, (grade[:, None] > torch.arange(4)).float())


@fault(
    FAULTS,
    "ordinal",
    causes="softmax-twice activation-before-loss",
    remedies="remove-final-activation change-loss",
)
def thresholds_of_grades_through_two_sigmoids(planted: bool) -> Case:
    """An ordinal model returns probabilities of being above each threshold, and the loss applies a sigmoid again."""
    torch.manual_seed(4105)
    x, grade = parts.table(160, classes=5)
    layers = parts.mlp(12, 32, 32, 4)
    model = nn.Sequential(*layers, nn.Sigmoid()) if planted else layers

    def judge(output: Tensor) -> float:
        return ((output > (0.5 if planted else 0)).sum(1) == grade).float().mean().item()

    return Case(model=model, data=(x, grade), loss=grade_loss, judge=judge)


@fault(
    FAULTS,
    "reinforcement learning",
    causes="activation-before-loss output-range-too-small targets-out-of-range dead-units",
    layers="5 4",
    remedies="remove-final-activation",
)
def values_of_actions_behind_a_rectifier(planted: bool) -> Case:
    """A ReLU behind the last layer of a Q-network, whose returns are negative half of the time."""
    torch.manual_seed(4106)
    layers = parts.mlp(4, 64, 64, 3)
    model = nn.Sequential(*layers, nn.ReLU()) if planted else layers
    return Case(model=model, data=fourth_parts.observations(), loss=nn.SmoothL1Loss())


@fault(
    FAULTS,
    "time series",
    causes="activation-before-loss output-range-too-small targets-out-of-range dead-units",
    layers="last head",
    remedies="remove-final-activation",
)
def forecast_behind_a_rectifier(planted: bool) -> Case:
    """Demand is never negative, so the forecast ends in a ReLU; but the targets were standardised."""
    torch.manual_seed(4107)
    model = fourth_parts.Forecaster(nn.LSTM(1, 24, batch_first=True), last=nn.ReLU() if planted else None)
    return Case(model=model, data=fourth_parts.demand(), loss="mse")


@fault(
    FAULTS,
    "GRU",
    causes="output-constant loss-gradient-zero activation-before-loss normalizer-wrong-axis saturated-units",
    layers="last head",
    remedies="remove-final-activation change-output-activation more-outputs change-loss fix-axis",
)
def softmax_over_the_only_score_of_a_review(planted: bool) -> Case:
    """nn.Softmax(dim=1) over one score gives 1 for each review (Stack Overflow: the loss never changes)."""
    torch.manual_seed(4108)

    class Mood(nn.Module):
        """Words, a GRU, one score."""

        def __init__(self) -> None:
            super().__init__()
            self.words, self.recurrent = nn.Embedding(50, 16), nn.GRU(16, 24, batch_first=True)
            self.head, self.last = nn.Linear(24, 1), nn.Softmax(dim=1) if planted else nn.Sigmoid()

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(self.head(self.recurrent(self.words(ids))[0].amax(1)))

    ids, y = parts.sentences(64, length=8)
    ids = torch.where((ids == 7) & (y == 1)[:, None], torch.full_like(ids, 9), ids)
    return Case(
        model=Mood(), data=(ids, y.float()[:, None]), loss=nn.BCELoss(), judge=parts.binary_accuracy(y, threshold=0.5)
    )


@fault(
    FAULTS,
    "MLP",
    causes="targets-out-of-range output-range-too-small activation-before-loss targets-wrong-scale",
    layers="5",
    remedies="fix-targets scale-targets remove-final-activation",
)
def percentages_behind_a_sigmoid(planted: bool) -> Case:
    """Shares in percent (0..100) for a network that ends in a sigmoid."""
    torch.manual_seed(4109)
    x, y = parts.regression_table()
    share = torch.sigmoid(1.5 * y)
    model = nn.Sequential(*parts.mlp(8, 32, 32, 1), nn.Sigmoid())
    return Case(model=model, data=(x, 100 * share if planted else share), loss="mse")


@fault(FAULTS, "time series", causes="shapes-broadcast", remedies="match-shapes")
def forecasts_of_a_column_against_a_row_of_truths(planted: bool) -> Case:
    """Forecasts of shape (n, 1), truths of shape (n,): the loss compares each with each, and the warning is lost."""
    torch.manual_seed(4110)
    x, y = fourth_parts.demand()
    model = fourth_parts.Forecaster(nn.GRU(1, 24, batch_first=True))
    wanted = y.squeeze(1) if planted else y
    return Case(model=model, data=(x, wanted), loss=lambda output, target: (output - target).square().mean())


@fault(FAULTS, "survival", causes="shapes-broadcast", remedies="match-shapes")
def logarithm_of_times_as_a_row(planted: bool) -> Case:
    """A model of log times returns a column, and a handmade absolute error subtracts a row from it."""
    torch.manual_seed(4111)
    x, _ = fourth_parts.survival()
    y = fourth_parts.standardise(x[:, 0] + x[:, 1] * x[:, 2] + 0.1 * torch.randn(128))
    y = y if planted else y[:, None]
    return Case(model=parts.mlp(6, 32, 32, 1), data=(x, y), loss=lambda output, target: (output - target).abs().mean())


@fault(FAULTS, "MLP", causes="class-imbalance", remedies="balance-classes")
def four_subscribers_leave_among_three_hundred(planted: bool) -> Case:
    """Who cancels a subscription: 4 of 300 rows. The network answers "nobody" and is right in 98.7 % of them."""
    torch.manual_seed(4112)
    score = torch.randn(600, 10)
    leaves = (score[:, 0] + score[:, 1] + 0.8 * torch.randn(600)) > 0.4
    rows = [leaves.nonzero()[:, 0], (~leaves).nonzero()[:, 0]]
    few = 4 if planted else 150
    x = score[torch.cat([rows[0][:few], rows[1][: 300 - few]])]
    y = (torch.arange(300) < few).long()
    fresh = torch.randn(400, 10)
    truth = (fresh[:, 0] + fresh[:, 1]) > 0.4
    order = torch.randperm(300)
    model = parts.mlp(10, 16, 2)

    def judge(_: Tensor) -> float:
        hits = model(fresh).argmax(1).bool() == truth
        return 0.5 * (hits[truth].float().mean() + hits[~truth].float().mean()).item()

    return Case(model=model, data=(x[order], y[order]), loss=nn.CrossEntropyLoss(), judge=judge)


@fault(FAULTS, "BERT", causes="labels-constant", remedies="check-labels fix-targets check-data")
def labels_compared_with_a_word_that_never_occurs(planted: bool) -> Case:
    """y = (column == "yes"), but the column says "Yes": the label of every sentence is 0."""
    torch.manual_seed(4113)
    ids, truth = parts.sentences(64)
    ids = torch.where((ids == 7) & (truth == 1)[:, None], torch.full_like(ids, 9), ids)
    model = parts.SentenceEncoder()
    data = (ids, torch.zeros_like(truth) if planted else truth)
    return Case(model=model, data=data, loss=nn.CrossEntropyLoss(), judge=parts.accuracy(truth))


@fault(
    FAULTS,
    "survival",
    causes="loss-gradient-zero labels-constant labels-wrong",
    remedies="check-labels fix-targets check-data change-loss",
)
def nobody_has_had_the_event(planted: bool) -> Case:
    """The column of events is that of censoring, cast after a filter of it: all are zero, and so is the loss."""
    torch.manual_seed(4114)
    x, truth = fourth_parts.survival()
    y = truth * torch.tensor([1.0, 0.0]) if planted else truth

    model = parts.mlp(6, 32, 32, 1)
    return Case(model=model, data=(x, y), loss=fourth_parts.cox_loss, judge=fourth_parts.concordance(truth))


@fault(
    FAULTS,
    "recommender",
    causes="targets-out-of-range loss-does-not-fit labels-wrong",
    remedies="fix-targets change-loss",
)
def pairs_ranked_with_zeros_and_ones(planted: bool) -> Case:
    """margin_ranking_loss wants -1 and 1; where it is given 0 the score of the pair has no influence."""
    torch.manual_seed(4115)

    class Ranker(parts.Recommender):
        """Scores two items of one user."""

        def forward(self, triples: Tensor) -> Tensor:
            return torch.stack([super(Ranker, self).forward(triples[:, [0, item]]) for item in (1, 2)], dim=1)

    triples = torch.stack([torch.randint(high, (256,)) for high in (40, 30, 30)], dim=1)
    appeal = torch.randn(30)
    first = (appeal[triples[:, 1]] > appeal[triples[:, 2]]).float()
    y = first if planted else 2 * first - 1
    return Case(
        model=Ranker(),
        data=(triples, y),
        loss=lambda scores, target: F.margin_ranking_loss(scores[:, 0], scores[:, 1], target, margin=0.0),
        judge=lambda scores: ((scores[:, 0] > scores[:, 1]) == (first == 1)).float().mean().item(),
    )


@fault(FAULTS, "CNN", causes="targets-out-of-range loss-does-not-fit labels-wrong", remedies="fix-targets change-loss")
def soft_margin_with_zeros_and_ones(planted: bool) -> Case:
    """SoftMarginLoss wants -1 and 1: what is labelled 0 gives a constant, and everything becomes positive."""
    torch.manual_seed(4116)
    x, label = parts.blob_images(48, classes=2)
    y = label.float() if planted else 2.0 * label - 1
    model = nn.Sequential(parts.ConvNet(norm=False, classes=1), nn.Flatten(0))
    return Case(model=model, data=(x, y), loss=nn.SoftMarginLoss(), judge=parts.binary_accuracy(label))


@fault(FAULTS, "MLP", causes="loss-does-not-fit targets-out-of-range", remedies="change-loss fix-targets")
def logistic_loss_for_standardised_prices(planted: bool) -> Case:
    """A loss of probabilities kept when the task became a regression (DeepCrime: change of the loss)."""
    torch.manual_seed(4117)
    x, y = parts.regression_table()
    loss = nn.BCEWithLogitsLoss() if planted else nn.MSELoss()
    return Case(model=parts.mlp(8, 32, 32, 1), data=(x, y), loss=loss)


@fault(FAULTS, "CNN", causes="targets-out-of-range loss-does-not-fit", remedies="more-outputs change-loss fix-targets")
def numbers_of_four_classes_under_a_binary_loss(planted: bool) -> Case:
    """BCEWithLogitsLoss for labels 0, 1, 2 and 3 cast to floats, because cross entropy complained about the type."""
    torch.manual_seed(4118)
    x, label = parts.blob_images(48)
    outputs = 1 if planted else 4
    model = nn.Sequential(parts.ConvNet(norm=False, classes=outputs), nn.Flatten(0 if planted else 1))

    def judge(output: Tensor) -> float:
        guess = output.round().clamp(0, 3) if planted else output.argmax(1)
        return (guess == label).float().mean().item()

    loss = nn.BCEWithLogitsLoss() if planted else nn.CrossEntropyLoss()
    return Case(model=model, data=(x, label.float() if planted else label), loss=loss, judge=judge)


@fault(
    FAULTS,
    "reinforcement learning",
    causes="loss-does-not-fit optimizer-ascends",
    remedies="minimise change-loss",
)
def rewarded_actions_become_unlikely(planted: bool) -> Case:
    """The sum of log probability times reward is minimised; the minus of the policy gradient is missing."""
    torch.manual_seed(4119)
    state, returns = fourth_parts.observations()
    action = returns.argmax(1)
    sign = 1 if planted else -1

    def loss(logits: Tensor, action: Tensor) -> Tensor:
        return sign * logits.log_softmax(1).gather(1, action[:, None]).mean()

    return Case(model=parts.mlp(4, 32, 32, 3), data=(state, action), loss=loss)


@fault(
    FAULTS,
    "contrastive",
    causes="labels-wrong loss-does-not-fit labels-constant",
    remedies="change-loss fix-targets check-labels",
)
def every_view_is_matched_to_the_first(planted: bool) -> Case:
    """InfoNCE with torch.zeros(n) for labels, as in MoCo, but without MoCo's column of positives."""
    torch.manual_seed(4120)

    class Views(nn.Module):
        """Returns the similarities of all first views (rows) with all second views (columns)."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = parts.mlp(40, 64, 16)

        def forward(self, pairs: Tensor) -> Tensor:
            first, second = (F.normalize(self.encoder(pairs[:, view]), dim=1) for view in (0, 1))
            return first @ second.T / 0.2

    base = torch.randn(48, 40)
    pairs = torch.stack([base + 0.7 * torch.randn(48, 40) for _ in range(2)], dim=1)
    wanted = torch.zeros(48, dtype=torch.long) if planted else torch.arange(48)
    judge = parts.accuracy(torch.arange(48))
    return Case(model=Views(), data=(pairs, wanted), loss=nn.CrossEntropyLoss(), judge=judge)


@fault(FAULTS, "U-Net", causes="targets-wrong-scale", remedies="scale-targets")
def depth_in_millimetres(planted: bool) -> Case:
    """Depth per pixel in millimetres (500 to 5000) for a network whose outputs begin near 0."""
    torch.manual_seed(4121)
    images, _ = parts.blob_images(16)
    depth = F.avg_pool2d(images, 5, stride=1, padding=2)
    y = 2500 + 700 * depth if planted else (depth - depth.mean()) / depth.std()
    return Case(model=parts.UNet(width=4), data=(images, y), loss=nn.L1Loss())


@fault(
    FAULTS,
    "survival",
    causes="loss-does-not-fit activation-before-loss exploding-signal exploding-gradient",
    remedies="remove-final-activation change-loss change-output-activation",
)
def hazard_raised_to_a_power_twice(planted: bool) -> Case:
    """The network returns hazards through exp(), and the loss of Cox takes them for logarithms."""
    torch.manual_seed(4122)

    class Hazard(nn.Module):
        """Returns the hazard, or its logarithm."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = parts.mlp(6, 32, 32, 1)

        def forward(self, x: Tensor) -> Tensor:
            risk = self.layers(4 * x)
            return torch.exp(risk) if planted else risk

    x, y = fourth_parts.survival()
    return Case(model=Hazard(), data=(x, y), loss=fourth_parts.cox_loss, judge=fourth_parts.concordance(y))


@fault(FAULTS, "survival", causes="targets-wrong-scale", remedies="scale-targets")
def days_until_the_relapse(planted: bool) -> Case:
    """Times in days (about 900) for a squared error, without a logarithm."""
    torch.manual_seed(4123)
    x, _ = fourth_parts.survival()
    logs = 0.5 * fourth_parts.standardise(x[:, 0] + x[:, 1] * x[:, 2] + 0.1 * torch.randn(128))
    days = (900 * torch.exp(logs))[:, None]
    y = days if planted else fourth_parts.standardise(days.log())
    return Case(model=parts.mlp(6, 32, 32, 1), data=(x, y), loss="mse")


@fault(
    FAULTS,
    "GPT",
    causes="loss-does-not-fit normalizer-wrong-axis shapes-broadcast samples-mixed",
    remedies="fix-axis match-shapes change-loss",
)
def vocabulary_moved_to_the_front_by_view(planted: bool) -> Case:
    """cross_entropy wants the classes second: view() gives the right shape and mixes words with places."""
    torch.manual_seed(4124)
    ids, following = parts.text()

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        count, length, words = logits.shape
        moved = logits.reshape(count, words, length) if planted else logits.transpose(1, 2)
        return F.cross_entropy(moved, target)

    return Case(model=parts.GPT(), data=(ids, following), loss=loss)


@fault(
    FAULTS,
    "GAN",
    causes="output-range-too-small activation-before-loss targets-out-of-range",
    layers="last layers",
    remedies="change-output-activation remove-final-activation fix-targets scale-targets change-activation",
)
def sigmoid_generator_for_images_from_minus_one(planted: bool) -> Case:
    """The real images were scaled to -1..1, the generator ends in a sigmoid: it can never paint the background."""
    torch.manual_seed(4125)

    class Painter(nn.Module):
        """Paints an image from a label and noise."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = parts.mlp(12, 64, 64, 256)
            self.last = nn.Sigmoid() if planted else nn.Tanh()

        def forward(self, noise: Tensor) -> Tensor:
            return self.last(self.layers(noise))

    images, label = parts.blob_images(64, classes=4)
    real = 2 * parts.as_pixels(images).flatten(1) - 1
    noise = torch.cat([4 * F.one_hot(label, 4).float(), torch.randn(64, 8)], dim=1)
    return Case(model=Painter(), data=(noise, real), loss=nn.MSELoss())


@fault(FAULTS, "VAE", causes="targets-out-of-range loss-does-not-fit", remedies="fix-targets scale-targets change-loss")
def standardised_images_as_probabilities_of_pixels(planted: bool) -> Case:
    """Images of mean 0 and deviation 1 as targets of a binary cross entropy, which is unbounded below for them."""
    torch.manual_seed(4126)
    images, _ = parts.blob_images(64, classes=8)
    x = images.flatten(1)
    y = x if planted else (x > 0.5).float()
    seen = (x > 0.5).float()

    def judge(output: tuple[Tensor, Tensor, Tensor]) -> float:
        return -parts.evidence_loss(output, seen).item()

    return Case(model=parts.VAE(), data=(y, y), loss=parts.evidence_loss, judge=judge)


@fault(
    FAULTS,
    "CNN",
    causes="activation-before-loss output-range-too-small",
    layers="1",
    remedies="remove-final-activation scale-outputs",
)
def tanh_before_the_cross_entropy_of_ten_classes(planted: bool) -> Case:
    """A tanh behind the last layer confines ten logits to -1..1: no class can get more than 45 %."""
    torch.manual_seed(4127)
    x, y = parts.blob_images(60, classes=10)
    model = nn.Sequential(parts.ConvNet(classes=10), nn.Tanh() if planted else nn.Identity())

    def judge(output: Tensor) -> float:
        return -F.cross_entropy(output, y).item()

    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), judge=judge)


@fault(FAULTS, "time series", causes="targets-wrong-scale", remedies="scale-targets")
def returns_of_a_day_in_hundredths_of_a_percent(planted: bool) -> Case:
    """Daily returns of about 0.0003 as targets: the noise of a fresh network is a thousand times as large."""
    torch.manual_seed(4128)
    x, y = fourth_parts.demand()
    model = fourth_parts.Forecaster(nn.GRU(1, 24, batch_first=True))
    return Case(model=model, data=(x, 3e-4 * y if planted else y), loss=nn.MSELoss())


@fault(
    FAULTS,
    "detection",
    causes="targets-wrong-scale targets-out-of-range output-range-too-small activation-before-loss",
    remedies="scale-targets fix-targets",
)
def corners_of_boxes_in_pixels_of_the_photograph(planted: bool) -> Case:
    """Corners in pixels of the original photograph (up to 1900), for a head that begins at 0."""
    torch.manual_seed(4129)
    images, mask = fourth_parts.shapes(32)
    rows, columns = mask[:, 0].amax(2).argmax(1).float(), mask[:, 0].amax(1).argmax(1).float()
    corner = torch.stack([rows, columns, rows + 5, columns + 5], dim=1)
    y = 120 * corner if planted else fourth_parts.standardise(corner)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)
    )
    return Case(model=model, data=(images, y), loss=nn.SmoothL1Loss())


@fault(
    FAULTS,
    "BERT",
    causes="loss-does-not-fit activation-before-loss",
    remedies="change-output-activation change-loss",
)
def probabilities_of_masked_words_under_nll(planted: bool) -> Case:
    """nll_loss takes logarithms of probabilities and is given probabilities: it is negative and hardly falls."""
    torch.manual_seed(4130)

    class Words(parts.SentenceEncoder):
        """Predicts the word at each place."""

        def __init__(self) -> None:
            super().__init__(depth=1)
            self.head = nn.Linear(32, 50)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
            logits = self.head(self.encoder(self.norm(x)))
            return logits.softmax(-1) if planted else logits.log_softmax(-1)

    ids, _ = parts.sentences(32)
    ids[:, 1::2] = ids[:, ::2]
    hidden = torch.where(torch.arange(16) % 4 == 1, torch.zeros_like(ids), ids)
    return Case(
        model=Words(),
        data=(hidden, ids),
        loss=lambda output, target: F.nll_loss(output.flatten(0, 1), target.flatten()),
    )
