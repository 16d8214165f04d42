"""Faults for scoring alone: inputs, targets."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import HELD_OUT, Case, given
from ...training import accuracy, binary_accuracy, contrastive_loss, evidence_loss, explained_variance, overlap_with
from . import rarer


@HELD_OUT
def years_and_citations_of_papers(broken: bool) -> Case:
    """GNN | 4005 | Attributes of nodes as a data base holds them: the year of a paper and how often it was cited.
    | inputs-not-scaled one-input-column-dominates | | add-normalizer scale-inputs"""
    x, edges, y = draw.communities()
    if broken:
        x[:, 6] = 2005 + 8 * x[:, 6]
        x[:, 7] = torch.exp(4 + 1.5 * x[:, 7])
    return Case((x, y), nets.GraphNet(edges), "cross_entropy", judge_of=accuracy)


@HELD_OUT
def counts_of_genes_to_be_rebuilt(broken: bool) -> Case:
    """autoencoder | 4009 | Raw counts of 60 genes, of which the frequent ones reach 10 000, as input and target of an
    autoencoder.
    | inputs-not-scaled one-input-column-dominates targets-wrong-scale | | scale-inputs scale-targets"""
    logs = torch.randn(96, 4) @ torch.randn(4, 60) / 2 + 0.3 * torch.randn(96, 60) + 3 * torch.rand(60)
    counts = torch.exp(logs + 1).round()
    x = counts if broken else rarer.standardise(torch.log1p(counts))
    wanted = rarer.standardise(torch.log1p(counts))

    def judge(output: Tensor) -> float:
        rebuilt = (torch.log1p(output.clamp(min=0)) - torch.log1p(counts).mean(0)) / torch.log1p(counts).std(0)
        return explained_variance(wanted)(rebuilt if broken else output)

    return Case((x, x), nets.mlp(60, 64, 8, 64, 60), "mse", judge=judge)


@HELD_OUT
def shares_of_words_in_long_documents(broken: bool) -> Case:
    """MLP | 4010 | Counts of words divided by the length of the document: 300 columns of about 0.003.
    | inputs-not-scaled vanishing-signal | | add-normalizer scale-inputs"""
    y = torch.arange(90) % 3
    rates = torch.ones(90, 300)
    for topic in range(3):
        rates[y == topic, 20 * topic : 20 * topic + 20] = 1.6
    counts = torch.poisson(5 * rates)
    x = counts / counts.sum(1, keepdim=True) if broken else rarer.standardise(counts)
    return Case((x, y), nets.mlp(300, 32, 32, 3), nn.CrossEntropyLoss())


@HELD_OUT
def ages_that_were_not_given(broken: bool) -> Case:
    """recommender | 4011 | Columns of users after a left join: who gave no age has NaN, and so has every weight after
    one step.
    | not-finite-data not-finite | | check-data clean-data"""

    class WithAge(nets.Recommender):
        """Reads the age and the time of the day beside user and item."""

        def __init__(self) -> None:
            super().__init__()
            self.tower = nets.mlp(18, 32, 16, 1)

        def forward(self, pairs: Tensor, columns: Tensor) -> Tensor:
            joined = torch.cat([self.users(pairs[:, 0]), self.items(pairs[:, 1]), columns], dim=1)
            return self.tower(joined).squeeze(1)

    pairs, rating = draw.ratings()
    columns = torch.randn(256, 2)
    columns[pairs[:, 0] % 9 == 4, 0] = float("nan") if broken else 0.0
    data = ({"pairs": pairs, "columns": columns}, rating)
    return Case(data, WithAge(), nn.MSELoss(), judge=explained_variance(rating))


@HELD_OUT
def noise_lost_in_images_of_bytes(broken: bool) -> Case:
    """diffusion | 4014 | Noise of size one is added to images of 0..255, so that the network has nothing to recognise
    it by.
    | inputs-not-scaled | | scale-inputs"""
    images, _ = draw.blob_images(48, size=8)
    images = 255 * draw.as_pixels(images) if broken else images
    time, noise = torch.randint(1000, (48,)).float(), torch.randn_like(images)
    level = (time / 1000)[:, None, None, None]
    data = ({"x": (1 - level).sqrt() * images + level.sqrt() * noise, "t": time}, noise)
    return Case(data, nets.Denoiser(), nn.MSELoss(), judge=explained_variance(noise))


@HELD_OUT
def histories_filled_up_with_film_zero(broken: bool) -> Case:
    """recommender | 4016 | Short histories are padded to 40 films with film 0, whose vector takes part in the mean.
    | padding-counted branch-dominates | | mask-padding"""

    # Multiplies the mean of the films that were seen with the film that is offered.
    def taste(self, history: Tensor, offered: Tensor) -> Tensor:
        count = len(history[0]) if broken else (history > 0).sum(1, keepdim=True)
        mean = self.films(history).sum(1) / count
        return (self.seen(mean) * self.offered(self.films(offered))).sum(1)

    films = torch.randn(60, 3)
    lengths = torch.randint(1, 4, (128,))
    history = torch.randint(1, 60, (128, 40)) * (torch.arange(40) < lengths[:, None])
    offered = torch.randint(1, 60, (128,))
    mean = (films[history] * (history > 0)[:, :, None]).sum(1) / lengths[:, None]
    y = rarer.standardise((mean * films[offered]).sum(1))
    data = ({"history": history, "offered": offered}, y)
    net = nets.made("Taste", taste)
    net.films = nn.Embedding(60, 8, padding_idx=None if broken else 0)
    net.seen, net.offered = nn.Linear(8, 16), nn.Linear(8, 16)
    return Case(data, net, nn.MSELoss(), judge=explained_variance(y))


@HELD_OUT
def complaints_read_to_the_end_of_the_row(broken: bool) -> Case:
    """GRU | 4017 | Texts padded to 90 words go into a GRU without pack_padded_sequence, and the state behind the
    padding is read.
    | padding-counted | | mask-padding read-last-step"""

    # Words, a GRU and a head on the last state.
    def reader(self, ids: Tensor) -> Tensor:
        states = self.recurrent(self.words(ids))[0]
        last = (ids > 0).sum(1) - 1
        return self.head(states[:, -1] if broken else states[torch.arange(len(ids)), last])

    ids, _, y = rarer.reviews(length=90, longest=12)
    net = nets.made("Reader", reader)
    net.words = nn.Embedding(40, 16, padding_idx=0)
    net.recurrent = nn.GRU(16, 24, batch_first=True)
    net.head = nn.Linear(24, 2)
    return Case((ids, y), net, nn.CrossEntropyLoss())


@HELD_OUT
def signatures_divided_by_their_file_size(broken: bool) -> Case:
    """siamese | 4019 | The divisor of the preprocessing is 65 535 for images of 8 bits: nothing is above 0.004.
    | inputs-not-scaled vanishing-signal | | rescale-layer scale-inputs"""
    pairs, same = draw.image_pairs()
    x = 255 * draw.as_pixels(pairs) / 65535 if broken else pairs
    data = (x, same)

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return ((F.pairwise_distance(*output) < 1) == (same > 0.5)).float().mean().item()

    return Case(data, nets.Siamese(), contrastive_loss, judge=judge)


def concordance(target: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: how many comparable pairs of patients are in the right order of risk (0.5: by chance)."""
    time, event = target.unbind(1)
    comparable = (time[:, None] < time[None, :]) & (event[:, None] > 0.5)

    def judge(risk: Tensor) -> float:
        higher = risk.flatten()[:, None] > risk.flatten()[None, :]
        return (higher & comparable).sum().item() / comparable.sum().item()

    return judge


@HELD_OUT
def patches_end_in_a_softmax(broken: bool) -> Case:
    """ViT | 4102 | A softmax at the end of a vision transformer, and nn.CrossEntropyLoss behind it (UMLAUT).
    | softmax-twice activation-before-loss | last | change-loss change-output-activation remove-final-activation"""

    class WithLast(nets.ViT):
        """Applies a last activation."""

        def __init__(self) -> None:
            super().__init__(depth=2)
            self.head = nn.Linear(32, 16)
            self.last = nn.Softmax(dim=1) if broken else nn.Identity()

        def forward(self, images: Tensor) -> Tensor:
            return self.last(super().forward(images))

    model = WithLast()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return Case(draw.blob_images(64, classes=16), model, nn.CrossEntropyLoss(), optimizer=optimizer)


@HELD_OUT
def nodes_end_in_a_softmax(broken: bool) -> Case:
    """GNN | 4103 | The last line of many examples is a softmax over the classes; this one is followed by
    F.cross_entropy.
    | softmax-twice activation-before-loss | | change-loss change-output-activation remove-final-activation"""

    class WithLast(nets.GraphNet):
        """Returns probabilities."""

        def forward(self, x: Tensor) -> Tensor:
            logits = super().forward(x)
            return F.softmax(logits, dim=1) if broken else logits

    x, edges, y = draw.communities(classes=6)
    return Case((x, y), WithLast(edges, classes=6), "cross_entropy", judge_of=accuracy)


def grade_loss(output: Tensor, grade: Tensor) -> Tensor:
    """Return the loss of an ordinal model: for each threshold, is the grade above it?"""
    return F.binary_cross_entropy_with_logits(output, (grade[:, None] > torch.arange(4)).float())


@HELD_OUT
def four_subscribers_leave_among_three_hundred(broken: bool) -> Case:
    """MLP | 4112 | Who cancels a subscription: 4 of 300 rows. The network answers "nobody" and is right in 98.7 % of
    them.
    | class-imbalance | | balance-classes"""
    score = torch.randn(600, 10)
    leaves = (score[:, 0] + score[:, 1] + 0.8 * torch.randn(600)) > 0.4
    rows = [leaves.nonzero()[:, 0], (~leaves).nonzero()[:, 0]]
    few = 4 if broken else 150
    x = score[torch.cat([rows[0][:few], rows[1][: 300 - few]])]
    y = (torch.arange(300) < few).long()
    fresh = torch.randn(400, 10)
    truth = (fresh[:, 0] + fresh[:, 1]) > 0.4
    order = torch.randperm(300)
    model = nets.mlp(10, 16, 2)

    def judge(_: Tensor) -> float:
        hits = model(fresh).argmax(1).bool() == truth
        return 0.5 * (hits[truth].float().mean() + hits[~truth].float().mean()).item()

    return Case((x[order], y[order]), model, nn.CrossEntropyLoss(), judge=judge)


@HELD_OUT
def pairs_ranked_with_zeros_and_ones(broken: bool) -> Case:
    """recommender | 4115 | margin_ranking_loss wants -1 and 1; where it is given 0 the score of the pair has no
    influence.
    | targets-out-of-range labels-wrong loss-does-not-fit | | change-loss fix-targets"""

    class Ranker(nets.Recommender):
        """Scores two items of one user."""

        def forward(self, triples: Tensor) -> Tensor:
            return torch.stack([super(Ranker, self).forward(triples[:, [0, item]]) for item in (1, 2)], dim=1)

    triples = torch.stack([torch.randint(high, (256,)) for high in (40, 30, 30)], dim=1)
    appeal = torch.randn(30)
    first = (appeal[triples[:, 1]] > appeal[triples[:, 2]]).float()
    return Case(
        (triples, (first if broken else 2 * first - 1)),
        Ranker(),
        lambda scores, target: F.margin_ranking_loss(scores[:, 0], scores[:, 1], target, margin=0.0),
        judge=lambda scores: ((scores[:, 0] > scores[:, 1]) == (first == 1)).float().mean().item(),
    )


@HELD_OUT
def numbers_of_four_classes_under_a_binary_loss(broken: bool) -> Case:
    """CNN | 4118 | BCEWithLogitsLoss for labels 0, 1, 2 and 3 cast to floats, because cross entropy complained about
    the type.
    | targets-out-of-range loss-does-not-fit | | change-loss fix-targets more-outputs"""
    x, label = draw.blob_images(48)
    outputs = 1 if broken else 4
    model = nn.Sequential(nets.ConvNet(norm=False, classes=outputs), nn.Flatten(0 if broken else 1))

    def judge(output: Tensor) -> float:
        guess = output.round().clamp(0, 3) if broken else output.argmax(1)
        return (guess == label).float().mean().item()

    loss = nn.BCEWithLogitsLoss() if broken else nn.CrossEntropyLoss()
    return Case((x, label.float() if broken else label), model, loss, judge=judge)


@HELD_OUT
def every_view_is_matched_to_the_first(broken: bool) -> Case:
    """contrastive | 4120 | InfoNCE with torch.zeros(n) for labels, as in MoCo, but without MoCo's column of positives.
    | labels-wrong labels-constant loss-does-not-fit | | change-loss check-labels fix-targets"""

    # Returns the similarities of all first views (rows) with all second views (columns).
    def views(self, pairs: Tensor) -> Tensor:
        first, second = (F.normalize(self.encoder(pairs[:, view]), dim=1) for view in (0, 1))
        return first @ second.T / 0.2

    base = torch.randn(48, 40)
    pairs = torch.stack([base + 0.7 * torch.randn(48, 40) for _ in range(2)], dim=1)
    wanted = torch.zeros(48, dtype=torch.long) if broken else torch.arange(48)
    judge = accuracy(torch.arange(48))
    net = nets.made("Views", views)
    net.encoder = nets.mlp(40, 64, 16)
    return Case((pairs, wanted), net, nn.CrossEntropyLoss(), judge=judge)


@HELD_OUT
def hazard_raised_to_a_power_twice(broken: bool) -> Case:
    """survival | 4122 | The network returns hazards through exp(), and the loss of Cox takes them for logarithms.
    | loss-does-not-fit activation-before-loss exploding-gradient exploding-signal | | change-loss
    change-output-activation remove-final-activation"""

    # Returns the hazard, or its logarithm.
    def hazard(self, x: Tensor) -> Tensor:
        risk = self.layers(4 * x)
        return torch.exp(risk) if broken else risk

    x, y = rarer.survival()
    net = nets.made("Hazard", hazard)
    net.layers = nets.mlp(6, 32, 32, 1)
    return Case((x, y), net, rarer.cox_loss, judge=concordance(y))


@HELD_OUT
def vocabulary_moved_to_the_front_by_view(broken: bool) -> Case:
    """GPT | 4124 | cross_entropy wants the classes second: view() gives the right shape and mixes words with places.
    | loss-does-not-fit normalizer-wrong-axis samples-mixed shapes-broadcast | | change-loss fix-axis match-shapes"""
    ids, following = draw.text()

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        count, length, words = logits.shape
        moved = logits.reshape(count, words, length) if broken else logits.transpose(1, 2)
        return F.cross_entropy(moved, target)

    return Case((ids, following), nets.GPT(), loss)


@HELD_OUT
def standardised_images_as_probabilities_of_pixels(broken: bool) -> Case:
    """VAE | 4126 | Images of mean 0 and deviation 1 as targets of a binary cross entropy, which is unbounded below for
    them.
    | targets-out-of-range loss-does-not-fit | | change-loss fix-targets scale-targets"""
    images, _ = draw.blob_images(64, classes=8)
    x = images.flatten(1)
    y = x if broken else (x > 0.5).float()
    seen = (x > 0.5).float()

    def judge(output: tuple[Tensor, Tensor, Tensor]) -> float:
        return -evidence_loss(output, seen).item()

    return Case((y, y), nets.VAE(), evidence_loss, judge=judge)


@HELD_OUT
def probabilities_of_masked_words_under_nll(broken: bool) -> Case:
    """BERT | 4130 | nll_loss takes logarithms of probabilities and is given probabilities: it is negative and hardly
    falls.
    | loss-does-not-fit activation-before-loss | | change-loss change-output-activation"""

    class Words(nets.SentenceEncoder):
        """Predicts the word at each place."""

        def __init__(self) -> None:
            super().__init__(depth=1)
            self.head = nn.Linear(32, 50)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
            logits = self.head(self.encoder(self.norm(x)))
            return logits.softmax(-1) if broken else logits.log_softmax(-1)

    ids, _ = draw.sentences(32)
    ids[:, 1::2] = ids[:, ::2]
    hidden = torch.where(torch.arange(16) % 4 == 1, torch.zeros_like(ids), ids)
    return Case((hidden, ids), Words(), lambda output, target: F.nll_loss(output.flatten(0, 1), target.flatten()))


# Rows of a table, packed.
# fmt: off
HELD_OUT("""tumours-as-they-were-measured | MLP | 4001 | The columns of a table of scikit-learn (areas of 2000 beside
    errors of 0.003) fed as they are (DeepFD).
    | inputs-not-scaled one-input-column-dominates | | add-normalizer scale-inputs""",
    lambda broken: given(rarer.hospital_table("breast_cancer"), lambda x, y: given(nets.mlp(30, 32, 16, 2),
    lambda model: Case((x if broken else rarer.standardise(x), y), model, nn.CrossEntropyLoss()))))
HELD_OUT("""counts-of-a-converter-into-an-lstm | LSTM | 4002 | Readings of an analog converter (0..4095, at rest 2048)
    taken for numbers of size one (PyTorch forum).
    | inputs-not-scaled output-constant saturated-units | | scale-inputs""",
    lambda broken: given(draw.waves(60), lambda x, y: Case((((2048 + 300 * x).round() if broken else x), y),
    nets.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3), nn.CrossEntropyLoss())))
HELD_OUT("""bytes-of-a-camera-into-a-vision-transformer | ViT | 4003 | ToTensor() replaced by torch.from_numpy(): the
    pixels stay in 0..255 and drown places and blocks. | inputs-not-scaled branch-dominates | | scale-inputs""",
    lambda broken: given(draw.blob_images(48), lambda images, y: Case((((255 * draw.as_pixels(images)).round() if broken
    else images), y), nets.ViT(), "cross_entropy")))
HELD_OUT("""hounsfield-units-into-a-segmenter | segmentation | 4004 | Computed tomography in Hounsfield units (air is
    -1000, bone 1000) without a window. | inputs-not-scaled | | add-normalizer scale-inputs""",
    lambda broken: given(rarer.shapes(), lambda images, mask: Case(((700 * images - 400 if broken else images), mask),
    rarer.segmenter(), nn.BCEWithLogitsLoss(), judge=overlap_with(mask), optimizer=partial(torch.optim.SGD, lr=0.02,
    momentum=0.9))))
HELD_OUT("""places-in-pixels-beside-angles-in-radians | reinforcement learning | 4006 | An agent that reads a place of
    0..640 pixels beside angles of a hundredth: nobody scaled the observations.
    | inputs-not-scaled one-input-column-dominates | | add-normalizer scale-inputs""",
    lambda broken: given(rarer.observations(), lambda x, values: Case(((x * torch.tensor([150.0, 20.0, 0.02,
    0.05]) + torch.tensor([320.0, 0.0, 0.0, 0.0]) if broken else x), values), nets.mlp(4, 64, 64, 3), nn.MSELoss())))
HELD_OUT("""flats-by-latitude-and-longitude | MLP | 4007 | Flats of one town, at 48.1 and 11.6 degrees: all rows look
    alike until the columns are centred.
    | inputs-not-scaled inputs-constant output-constant | | add-normalizer scale-inputs""",
    lambda broken: given(torch.randn(160, 2), lambda place: given(torch.sin(2 * place[:, :1]) + place[:, :1] * place[:,
    1:], lambda target: given(torch.tensor([48.137, 11.575]) + 0.02 * place if broken else place,
    lambda x: Case((x, rarer.standardise(target)), nets.mlp(2, 32, 32, 1), "mse")))))
HELD_OUT("""rows-standardised-in-place-of-columns | MLP | 4008 | mean(1) and std(1) where mean(0) and std(0) are meant:
    the income alone is left, the same in each row.
    | inputs-not-scaled one-input-column-dominates | | fix-axis scale-inputs""",
    lambda broken: given(draw.table(160, columns=8), lambda x, y: given(x * torch.tensor([10.0, 1.0, 5.0, 0.5, 2.0, 1.0,
    3.0, 1e4]) + torch.tensor([40.0, 2, 20, 1, 5, 3, 170, 5e4]), lambda x: Case((((x - x.mean(1,
    keepdim=True)) / x.std(1, keepdim=True) if broken else rarer.standardise(x)), y), nets.mlp(8, 32, 32, 3),
    nn.CrossEntropyLoss()))))
HELD_OUT("""photographs-cast-to-integers | CNN | 4012 | Images already divided by 255 are cast to integers by a
    transformation: all of them become black.
    | inputs-constant output-constant vanishing-signal | | check-data scale-inputs""",
    lambda broken: given(draw.blob_images(48), lambda images, y: given(0.99 * draw.as_pixels(images),
    lambda pixels: Case(((pixels.to(torch.uint8).float() if broken else (pixels - pixels.mean()) / pixels.std()), y),
    nets.ConvNet(norm=False), nn.CrossEntropyLoss()))))
HELD_OUT("""windows-that-all-begin-at-the-first-day | time series | 4013 | series[:24] in place of series[i : i + 24]:
    every sample of the batch is the same window. | inputs-constant output-constant | | check-data""",
    lambda broken: given(rarer.demand(), lambda x, y: Case(((x[:1].expand(64, -1, -1).clone() if broken else x), y),
    rarer.Forecaster(nn.GRU(1, 24, batch_first=True)), "mse")))
HELD_OUT("""bytes-on-both-sides-of-an-autoencoder | autoencoder | 4015 | Images of 0..255 as input and as target of a
    squared error (Stack Overflow: the loss starts at 10 000).
    | inputs-not-scaled targets-wrong-scale | | scale-inputs scale-targets""",
    lambda broken: given(draw.blob_images(64), lambda images, _: given((255 * draw.as_pixels(images) if broken else
    images).flatten(1), lambda x: Case((x, x), nets.Autoencoder(), "mse", optimizer=partial(torch.optim.SGD, lr=0.02,
    momentum=0.9)))))
HELD_OUT("""sigmoid-units-over-bytes | MLP | 4018 | Digits of 0..255 drive every sigmoid of the first layer into its
    flat part (DeepDiagnosis). | inputs-not-scaled saturated-units | | add-normalizer scale-inputs""",
    lambda broken: given(draw.blob_images(96, classes=8),
    lambda images, y: Case(((255 * draw.as_pixels(images) if broken else images).flatten(1), y),
    nets.mlp(256, 64, 8, activation=nn.Sigmoid), nn.CrossEntropyLoss())))
HELD_OUT("""blood-counts-without-their-reference | survival | 4020 | White cells per microlitre (7000) beside creatinine
    in milligrams (0.9) in a network of hazards.
    | inputs-not-scaled one-input-column-dominates | | add-normalizer scale-inputs""",
    lambda broken: given(rarer.survival(), lambda x, y: Case(((x * torch.tensor([0.3, 5.0, 0.1, 2000.0, 8.0,
    60.0]) + torch.tensor([0.9, 60.0, 4.0, 7000.0, 120.0, 250.0]) if broken else x), y), nets.mlp(6, 32, 32, 1),
    rarer.cox_loss, judge=concordance(y))))
HELD_OUT("""index-of-shares-at-its-level | RNN | 4021 | An index of shares at 15 000 points fed to a tanh network, for
    the standardised change that follows.
    | inputs-not-scaled output-constant saturated-units | | add-normalizer scale-inputs""",
    lambda broken: given(rarer.demand(), lambda x, y: Case(((15000 + 200 * x if broken else x), y),
    rarer.Forecaster(nn.RNN(1, 24, batch_first=True)), nn.MSELoss())))
HELD_OUT("""progression-of-a-disease-as-it-was-scored | MLP | 4101 | The targets of scikit-learn's diabetes table lie
    between 25 and 346; the outputs begin at 0. | targets-wrong-scale | | scale-targets""",
    lambda broken: given(rarer.hospital_table("diabetes"), lambda x, y: given(y.float()[:, None],
    lambda y: given(y if broken else rarer.standardise(y), lambda y: Case(model=nets.mlp(10, 32, 16, 1),
    data=(rarer.standardise(x), y), loss=nn.MSELoss())))))
HELD_OUT("""sigmoid-in-the-segmenter-and-in-its-loss | segmentation | 4104 | The network returns probabilities of pixels
    and the loss is BCEWithLogitsLoss (PyTorch forum).
    | softmax-twice activation-before-loss | 7 | change-loss remove-final-activation""",
    lambda broken: given(rarer.shapes(), lambda x, mask: given(nn.Sequential(*rarer.segmenter(),
    nn.Sigmoid() if broken else nn.Identity()), lambda model: given(overlap_with(mask), lambda judge: Case((x, mask),
    model, nn.BCEWithLogitsLoss(), judge=lambda output: judge(output - 0.5 if broken else output))))))
HELD_OUT("""thresholds-of-grades-through-two-sigmoids | ordinal | 4105 | An ordinal model returns probabilities of being
    above each threshold, and the loss applies a sigmoid again.
    | softmax-twice activation-before-loss | | change-loss remove-final-activation""",
    lambda broken: given(draw.table(160, classes=5), lambda x, grade: given(nets.mlp(12, 32, 32, 4),
    lambda layers: Case((x, grade), nn.Sequential(*layers, nn.Sigmoid()) if broken else layers, grade_loss,
    judge=lambda output: ((output > (0.5 if broken else 0)).sum(1) == grade).float().mean().item()))))
HELD_OUT("""values-of-actions-behind-a-rectifier | reinforcement learning | 4106 | A ReLU behind the last layer of a
    Q-network, whose returns are negative half of the time.
    | activation-before-loss dead-units output-range-too-small targets-out-of-range | 4 5 | remove-final-activation""",
    lambda broken: given(nets.mlp(4, 64, 64, 3), lambda layers: given(nn.Sequential(*layers,
    nn.ReLU()) if broken else layers, lambda model: Case(rarer.observations(), model, nn.SmoothL1Loss()))))
HELD_OUT("""forecast-behind-a-rectifier | time series | 4107 | Demand is never negative, so the forecast ends in a ReLU;
    but the targets were standardised. | activation-before-loss dead-units output-range-too-small targets-out-of-range |
    head last | remove-final-activation""",
    lambda broken: given(rarer.Forecaster(nn.LSTM(1, 24, batch_first=True), last=nn.ReLU() if broken else None),
    lambda model: Case(rarer.demand(), model, "mse")))
HELD_OUT("""percentages-behind-a-sigmoid | MLP | 4109 | Shares in percent (0..100) for a network that ends in a sigmoid.
    | targets-out-of-range activation-before-loss output-range-too-small targets-wrong-scale | 5 | fix-targets
    remove-final-activation scale-targets""",
    lambda broken: given(draw.regression_table(), lambda x, y: given(torch.sigmoid(1.5 * y),
    lambda share: Case((x, 100 * share if broken else share), nn.Sequential(*nets.mlp(8, 32, 32, 1), nn.Sigmoid()),
    "mse"))))
HELD_OUT("""forecasts-of-a-column-against-a-row-of-truths | time series | 4110 | Forecasts of shape (n, 1), truths of
    shape (n,): the loss compares each with each, and the warning is lost. | shapes-broadcast | | match-shapes""",
    lambda broken: given(rarer.demand(), lambda x, y: Case((x, (y.squeeze(1) if broken else y)),
    rarer.Forecaster(nn.GRU(1, 24, batch_first=True)), lambda output, target: (output - target).square().mean())))
HELD_OUT("""logarithm-of-times-as-a-row | survival | 4111 | A model of log times returns a column, and a handmade
    absolute error subtracts a row from it. | shapes-broadcast | | match-shapes""",
    lambda broken: given(rarer.survival(), lambda x, _: given(rarer.standardise(x[:, 0] + x[:, 1] * x[:,
    2] + 0.1 * torch.randn(128)), lambda y: Case((x, (y if broken else y[:, None])), nets.mlp(6, 32, 32, 1),
    lambda output, target: (output - target).abs().mean()))))
HELD_OUT("""labels-compared-with-a-word-that-never-occurs | BERT | 4113 | y = (column == "yes"), but the column says
    "Yes": the label of every sentence is 0. | labels-constant | | check-data check-labels fix-targets""",
    lambda broken: given(draw.sentences(64), lambda ids, truth: Case((torch.where((ids == 7) & (truth == 1)[:, None],
    torch.full_like(ids, 9), ids), torch.zeros_like(truth) if broken else truth), nets.SentenceEncoder(),
    nn.CrossEntropyLoss(), judge=accuracy(truth))))
HELD_OUT("""nobody-has-had-the-event | survival | 4114 | The column of events is that of censoring, cast after a filter
    of it: all are zero, and so is the loss.
    | loss-gradient-zero labels-constant labels-wrong | | change-loss check-data check-labels fix-targets""",
    lambda broken: given(rarer.survival(), lambda x, truth: Case((x, (truth * torch.tensor([1.0,
    0.0]) if broken else truth)), nets.mlp(6, 32, 32, 1), rarer.cox_loss, judge=concordance(truth))))
HELD_OUT("""soft-margin-with-zeros-and-ones | CNN | 4116 | SoftMarginLoss wants -1 and 1: what is labelled 0 gives a
    constant, and everything becomes positive.
    | targets-out-of-range labels-wrong loss-does-not-fit | | change-loss fix-targets""",
    lambda broken: given(draw.blob_images(48, classes=2), lambda x, label: Case((x,
    (label.float() if broken else 2.0 * label - 1)), nn.Sequential(nets.ConvNet(norm=False, classes=1), nn.Flatten(0)),
    nn.SoftMarginLoss(), judge=binary_accuracy(label))))
HELD_OUT("""logistic-loss-for-standardised-prices | MLP | 4117 | A loss of probabilities kept when the task became a
    regression (DeepCrime: change of the loss). | loss-does-not-fit targets-out-of-range | | change-loss fix-targets""",
    lambda broken: Case(draw.regression_table(), nets.mlp(8, 32, 32, 1),
    nn.BCEWithLogitsLoss() if broken else nn.MSELoss()))
HELD_OUT("""rewarded-actions-become-unlikely | reinforcement learning | 4119 | The sum of log probability times reward
    is minimised; the minus of the policy gradient is missing.
    | loss-does-not-fit optimizer-ascends | | change-loss minimise""",
    lambda broken: given(rarer.observations(), lambda state, returns: given(returns.argmax(1),
    lambda action: given(1 if broken else -1, lambda sign: Case((state, action), nets.mlp(4, 32, 32, 3),
    lambda logits, action: sign * logits.log_softmax(1).gather(1, action[:, None]).mean())))))
HELD_OUT("""depth-in-millimetres | U-Net | 4121 | Depth per pixel in millimetres (500 to 5000) for a network whose
    outputs begin near 0. | targets-wrong-scale | | scale-targets""",
    lambda broken: given(draw.blob_images(16), lambda images, _: given(F.avg_pool2d(images, 5, stride=1, padding=2),
    lambda depth: Case((images, (2500 + 700 * depth if broken else (depth - depth.mean()) / depth.std())),
    nets.UNet(width=4), nn.L1Loss()))))
HELD_OUT("""days-until-the-relapse | survival | 4123 | Times in days (about 900) for a squared error, without a
    logarithm. | targets-wrong-scale | | scale-targets""",
    lambda broken: given(rarer.survival(), lambda x, _: given(0.5 * rarer.standardise(x[:, 0] + x[:, 1] * x[:,
    2] + 0.1 * torch.randn(128)), lambda logs: given((900 * torch.exp(logs))[:, None], lambda days: Case((x,
    (days if broken else rarer.standardise(days.log()))), nets.mlp(6, 32, 32, 1), "mse")))))
HELD_OUT("""sigmoid-generator-for-images-from-minus-one | GAN | 4125 | The real images were scaled to -1..1, the
    generator ends in a sigmoid: it can never paint the background.
    | output-range-too-small activation-before-loss targets-out-of-range | last layers | change-activation
    change-output-activation fix-targets remove-final-activation scale-targets""",
    lambda broken: given(draw.blob_images(64, classes=4),
    lambda images, label: given(2 * draw.as_pixels(images).flatten(1) - 1,
    lambda real: Case((torch.cat([4 * F.one_hot(label, 4).float(), torch.randn(64, 8)], dim=1), real),
    nets.made("Painter", lambda self, noise: self.last(self.layers(noise)), layers=nets.mlp(12, 64, 64, 256),
    last=nn.Sigmoid() if broken else nn.Tanh()), nn.MSELoss()))))
HELD_OUT("""tanh-before-the-cross-entropy-of-ten-classes | CNN | 4127 | A tanh behind the last layer confines ten logits
    to -1..1: no class can get more than 45 %.
    | activation-before-loss output-range-too-small | 1 | remove-final-activation scale-outputs""",
    lambda broken: given(draw.blob_images(60, classes=10), lambda x, y: Case((x, y),
    nn.Sequential(nets.ConvNet(classes=10), nn.Tanh() if broken else nn.Identity()), nn.CrossEntropyLoss(),
    judge=lambda output: -F.cross_entropy(output, y).item())))
HELD_OUT("""returns-of-a-day-in-hundredths-of-a-percent | time series | 4128 | Daily returns of about 0.0003 as targets:
    the noise of a fresh network is a thousand times as large. | targets-wrong-scale | | scale-targets""",
    lambda broken: given(rarer.demand(), lambda x, y: Case((x, 3e-4 * y if broken else y),
    rarer.Forecaster(nn.GRU(1, 24, batch_first=True)), nn.MSELoss())))
HELD_OUT("""corners-of-boxes-in-pixels-of-the-photograph | detection | 4129 | Corners in pixels of the original
    photograph (up to 1900), for a head that begins at 0. | targets-wrong-scale activation-before-loss
    output-range-too-small targets-out-of-range | | fix-targets scale-targets""",
    lambda broken: given(rarer.shapes(32), lambda images, mask: given((mask[:, 0].amax(2).argmax(1).float(),
    mask[:, 0].amax(1).argmax(1).float()), lambda rows, columns: given(torch.stack([rows, columns, rows + 5,
    columns + 5], dim=1), lambda corner: Case((images, (120 * corner if broken else rarer.standardise(corner))),
    nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(),
    nn.Linear(128, 4)), nn.SmoothL1Loss())))))
HELD_OUT("""offsets-of-boxes-behind-a-rectifier | detection | 4319 | Offsets to anchors are negative as often as
    positive; the head of the boxes ends in a ReLU like all layers. | activation-before-loss dead-units
    output-range-too-small targets-out-of-range | 5 6 | change-activation remove-final-activation""",
    lambda broken: given(rarer.shapes(32), lambda images, mask: given((mask[:, 0].amax(2).argmax(1).float(),
    mask[:, 0].amax(1).argmax(1).float()), lambda rows, columns: Case((images, rarer.standardise(torch.stack([rows,
    columns, rows - columns, rows + columns], dim=1))), nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(),
    nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4), nn.ReLU() if broken else nn.Identity()),
    nn.SmoothL1Loss()))))
