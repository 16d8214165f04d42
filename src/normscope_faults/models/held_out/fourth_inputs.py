"""Faults of the fourth part that lie in the data: scales, units, missing values, constant batches, padding."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...case import Case, Fault, fault
from .. import parts
from . import fourth_parts

FAULTS: list[Fault] = []


@fault(FAULTS, "MLP", causes="inputs-not-scaled one-input-column-dominates", remedies="scale-inputs add-normalizer")
def tumours_as_they_were_measured(planted: bool) -> Case:
    """The columns of a table of scikit-learn (areas of 2000 beside errors of 0.003) fed as they are (DeepFD)."""
    torch.manual_seed(4001)
    x, y = fourth_parts.hospital_table("breast_cancer")
    model = parts.mlp(30, 32, 16, 2)
    return Case(model=model, data=(x if planted else fourth_parts.standardise(x), y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "LSTM", causes="inputs-not-scaled saturated-units output-constant", remedies="scale-inputs")
def counts_of_a_converter_into_an_lstm(planted: bool) -> Case:
    """Readings of an analog converter (0..4095, at rest 2048) taken for numbers of size one (PyTorch forum)."""
    torch.manual_seed(4002)
    x, y = parts.waves(60)
    x = (2048 + 300 * x).round() if planted else x
    model = parts.SequenceClassifier(nn.LSTM(3, 24, batch_first=True), 3)
    return Case(model=model, data=(x, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "ViT", causes="inputs-not-scaled branch-dominates", remedies="scale-inputs")
def bytes_of_a_camera_into_a_vision_transformer(planted: bool) -> Case:
    """ToTensor() replaced by torch.from_numpy(): the pixels stay in 0..255 and drown places and blocks."""
    torch.manual_seed(4003)
    images, y = parts.blob_images(48)
    x = (255 * parts.as_pixels(images)).round() if planted else images
    return Case(model=parts.ViT(), data=(x, y), loss="cross_entropy")


@fault(FAULTS, "segmentation", causes="inputs-not-scaled", remedies="scale-inputs add-normalizer")
def hounsfield_units_into_a_segmenter(planted: bool) -> Case:
    """Computed tomography in Hounsfield units (air is -1000, bone 1000) without a window."""
    torch.manual_seed(4004)
    images, mask = fourth_parts.shapes()
    x = 700 * images - 400 if planted else images
    model = fourth_parts.segmenter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    judge = parts.overlap_with(mask)
    return Case(model=model, data=(x, mask), loss=nn.BCEWithLogitsLoss(), judge=judge, optimizer=optimizer)


@fault(FAULTS, "GNN", causes="inputs-not-scaled one-input-column-dominates", remedies="scale-inputs add-normalizer")
def years_and_citations_of_papers(planted: bool) -> Case:
    """Attributes of nodes as a data base holds them: the year of a paper and how often it was cited."""
    torch.manual_seed(4005)
    x, edges, y = parts.communities()
    if planted:
        x[:, 6] = 2005 + 8 * x[:, 6]
        x[:, 7] = torch.exp(4 + 1.5 * x[:, 7])
    return Case(model=parts.GraphNet(edges), data=(x, y), loss="cross_entropy", judge=parts.accuracy(y))


@fault(
    FAULTS,
    "reinforcement learning",
    causes="inputs-not-scaled one-input-column-dominates",
    remedies="scale-inputs add-normalizer",
)
def places_in_pixels_beside_angles_in_radians(planted: bool) -> Case:
    """An agent that reads a place of 0..640 pixels beside angles of a hundredth: nobody scaled the observations."""
    torch.manual_seed(4006)
    x, values = fourth_parts.observations()
    if planted:
        x = x * torch.tensor([150.0, 20.0, 0.02, 0.05]) + torch.tensor([320.0, 0.0, 0.0, 0.0])
    return Case(model=parts.mlp(4, 64, 64, 3), data=(x, values), loss=nn.MSELoss())


@fault(
    FAULTS, "MLP", causes="inputs-not-scaled inputs-constant output-constant", remedies="scale-inputs add-normalizer"
)
def flats_by_latitude_and_longitude(planted: bool) -> Case:
    """Flats of one town, at 48.1 and 11.6 degrees: all rows look alike until the columns are centred."""
    torch.manual_seed(4007)
    place = torch.randn(160, 2)
    target = torch.sin(2 * place[:, :1]) + place[:, :1] * place[:, 1:]
    x = torch.tensor([48.137, 11.575]) + 0.02 * place if planted else place
    y = fourth_parts.standardise(target)
    return Case(model=parts.mlp(2, 32, 32, 1), data=(x, y), loss="mse")


@fault(FAULTS, "MLP", causes="inputs-not-scaled one-input-column-dominates", remedies="scale-inputs fix-axis")
def rows_standardised_in_place_of_columns(planted: bool) -> Case:
    """mean(1) and std(1) where mean(0) and std(0) are meant: the income alone is left, the same in each row."""
    torch.manual_seed(4008)
    x, y = parts.table(160, columns=8)
    x = x * torch.tensor([10.0, 1.0, 5.0, 0.5, 2.0, 1.0, 3.0, 1e4]) + torch.tensor([40.0, 2, 20, 1, 5, 3, 170, 5e4])
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True) if planted else fourth_parts.standardise(x)
    return Case(model=parts.mlp(8, 32, 32, 3), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(
    FAULTS,
    "autoencoder",
    causes="inputs-not-scaled targets-wrong-scale one-input-column-dominates",
    remedies="scale-inputs scale-targets",
)
def counts_of_genes_to_be_rebuilt(planted: bool) -> Case:
    """Raw counts of 60 genes, of which the frequent ones reach 10 000, as input and target of an autoencoder."""
    torch.manual_seed(4009)
    logs = torch.randn(96, 4) @ torch.randn(4, 60) / 2 + 0.3 * torch.randn(96, 60) + 3 * torch.rand(60)
    counts = torch.exp(logs + 1).round()
    x = counts if planted else fourth_parts.standardise(torch.log1p(counts))
    wanted = fourth_parts.standardise(torch.log1p(counts))

    def judge(output: Tensor) -> float:
        rebuilt = (torch.log1p(output.clamp(min=0)) - torch.log1p(counts).mean(0)) / torch.log1p(counts).std(0)
        return parts.explained_variance(wanted)(rebuilt if planted else output)

    return Case(model=parts.mlp(60, 64, 8, 64, 60), data=(x, x), loss="mse", judge=judge)


@fault(FAULTS, "MLP", causes="inputs-not-scaled vanishing-signal", remedies="scale-inputs add-normalizer")
def shares_of_words_in_long_documents(planted: bool) -> Case:
    """Counts of words divided by the length of the document: 300 columns of about 0.003."""
    torch.manual_seed(4010)
    y = torch.arange(90) % 3
    rates = torch.ones(90, 300)
    for topic in range(3):
        rates[y == topic, 20 * topic : 20 * topic + 20] = 1.6
    counts = torch.poisson(5 * rates)
    x = counts / counts.sum(1, keepdim=True) if planted else fourth_parts.standardise(counts)
    return Case(model=parts.mlp(300, 32, 32, 3), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "recommender", causes="not-finite-data not-finite", remedies="clean-data check-data")
def ages_that_were_not_given(planted: bool) -> Case:
    """Columns of users after a left join: who gave no age has NaN, and so has every weight after one step."""
    torch.manual_seed(4011)

    class WithAge(parts.Recommender):
        """Reads the age and the time of the day beside user and item."""

        def __init__(self) -> None:
            super().__init__()
            self.tower = parts.mlp(18, 32, 16, 1)

        def forward(self, pairs: Tensor, columns: Tensor) -> Tensor:
            joined = torch.cat([self.users(pairs[:, 0]), self.items(pairs[:, 1]), columns], dim=1)
            return self.tower(joined).squeeze(1)

    pairs, rating = parts.ratings()
    columns = torch.randn(256, 2)
    columns[pairs[:, 0] % 9 == 4, 0] = float("nan") if planted else 0.0
    data = ({"pairs": pairs, "columns": columns}, rating)
    return Case(model=WithAge(), data=data, loss=nn.MSELoss(), judge=parts.explained_variance(rating))


@fault(FAULTS, "CNN", causes="inputs-constant output-constant vanishing-signal", remedies="check-data scale-inputs")
def photographs_cast_to_integers(planted: bool) -> Case:
    """Images already divided by 255 are cast to integers by a transformation: all of them become black."""
    torch.manual_seed(4012)
    images, y = parts.blob_images(48)
    pixels = 0.99 * parts.as_pixels(images)
    x = pixels.to(torch.uint8).float() if planted else (pixels - pixels.mean()) / pixels.std()
    return Case(model=parts.ConvNet(norm=False), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "time series", causes="inputs-constant output-constant", remedies="check-data")
def windows_that_all_begin_at_the_first_day(planted: bool) -> Case:
    """series[:24] in place of series[i : i + 24]: every sample of the batch is the same window."""
    torch.manual_seed(4013)
    x, y = fourth_parts.demand()
    x = x[:1].expand(64, -1, -1).clone() if planted else x
    model = fourth_parts.Forecaster(nn.GRU(1, 24, batch_first=True))
    return Case(model=model, data=(x, y), loss="mse")


@fault(FAULTS, "diffusion", causes="inputs-not-scaled", remedies="scale-inputs")
def noise_lost_in_images_of_bytes(planted: bool) -> Case:
    """Noise of size one is added to images of 0..255, so that the network has nothing to recognise it by."""
    torch.manual_seed(4014)
    images, _ = parts.blob_images(48, size=8)
    images = 255 * parts.as_pixels(images) if planted else images
    time, noise = torch.randint(1000, (48,)).float(), torch.randn_like(images)
    level = (time / 1000)[:, None, None, None]
    data = ({"x": (1 - level).sqrt() * images + level.sqrt() * noise, "t": time}, noise)
    return Case(model=parts.Denoiser(), data=data, loss=nn.MSELoss(), judge=parts.explained_variance(noise))


@fault(FAULTS, "autoencoder", causes="inputs-not-scaled targets-wrong-scale", remedies="scale-inputs scale-targets")
def bytes_on_both_sides_of_an_autoencoder(planted: bool) -> Case:
    """Images of 0..255 as input and as target of a squared error (Stack Overflow: the loss starts at 10 000)."""
    torch.manual_seed(4015)
    images, _ = parts.blob_images(64)
    x = (255 * parts.as_pixels(images) if planted else images).flatten(1)
    model = parts.Autoencoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Case(model=model, data=(x, x), loss="mse", optimizer=optimizer)


@fault(FAULTS, "recommender", causes="padding-counted branch-dominates", remedies="mask-padding")
def histories_filled_up_with_film_zero(planted: bool) -> Case:
    """Short histories are padded to 40 films with film 0, whose vector takes part in the mean."""
    torch.manual_seed(4016)
    films = torch.randn(60, 3)
    lengths = torch.randint(1, 4, (128,))
    history = torch.randint(1, 60, (128, 40)) * (torch.arange(40) < lengths[:, None])
    offered = torch.randint(1, 60, (128,))
    mean = (films[history] * (history > 0)[:, :, None]).sum(1) / lengths[:, None]
    y = fourth_parts.standardise((mean * films[offered]).sum(1))

    class Taste(nn.Module):
        """Multiplies the mean of the films that were seen with the film that is offered."""

        def __init__(self) -> None:
            super().__init__()
            self.films = nn.Embedding(60, 8, padding_idx=None if planted else 0)
            self.seen, self.offered = nn.Linear(8, 16), nn.Linear(8, 16)

        def forward(self, history: Tensor, offered: Tensor) -> Tensor:
            count = len(history[0]) if planted else (history > 0).sum(1, keepdim=True)
            mean = self.films(history).sum(1) / count
            return (self.seen(mean) * self.offered(self.films(offered))).sum(1)

    data = ({"history": history, "offered": offered}, y)
    return Case(model=Taste(), data=data, loss=nn.MSELoss(), judge=parts.explained_variance(y))


@fault(FAULTS, "GRU", causes="padding-counted", remedies="mask-padding read-last-step")
def complaints_read_to_the_end_of_the_row(planted: bool) -> Case:
    """Texts padded to 90 words go into a GRU without pack_padded_sequence, and the state behind the padding is read."""
    torch.manual_seed(4017)
    ids, _, y = fourth_parts.reviews(length=90, longest=12)

    class Reader(nn.Module):
        """Words, a GRU and a head on the last state."""

        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(40, 16, padding_idx=0)
            self.recurrent = nn.GRU(16, 24, batch_first=True)
            self.head = nn.Linear(24, 2)

        def forward(self, ids: Tensor) -> Tensor:
            states = self.recurrent(self.words(ids))[0]
            last = (ids > 0).sum(1) - 1
            return self.head(states[:, -1] if planted else states[torch.arange(len(ids)), last])

    return Case(model=Reader(), data=(ids, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "MLP", causes="inputs-not-scaled saturated-units", remedies="scale-inputs add-normalizer")
def sigmoid_units_over_bytes(planted: bool) -> Case:
    """Digits of 0..255 drive every sigmoid of the first layer into its flat part (DeepDiagnosis)."""
    torch.manual_seed(4018)
    images, y = parts.blob_images(96, classes=8)
    x = (255 * parts.as_pixels(images) if planted else images).flatten(1)
    return Case(model=parts.mlp(256, 64, 8, activation=nn.Sigmoid), data=(x, y), loss=nn.CrossEntropyLoss())


@fault(FAULTS, "siamese", causes="inputs-not-scaled vanishing-signal", remedies="scale-inputs rescale-layer")
def signatures_divided_by_their_file_size(planted: bool) -> Case:
    """The divisor of the preprocessing is 65 535 for images of 8 bits: nothing is above 0.004."""
    torch.manual_seed(4019)
    pairs, same = parts.image_pairs()
    x = 255 * parts.as_pixels(pairs) / 65535 if planted else pairs
    data = (x, same)

    def judge(output: tuple[Tensor, Tensor]) -> float:
        return ((F.pairwise_distance(*output) < 1) == (same > 0.5)).float().mean().item()

    return Case(model=parts.Siamese(), data=data, loss=parts.contrastive_loss, judge=judge)


@fault(
    FAULTS, "survival", causes="inputs-not-scaled one-input-column-dominates", remedies="scale-inputs add-normalizer"
)
def blood_counts_without_their_reference(planted: bool) -> Case:
    """White cells per microlitre (7000) beside creatinine in milligrams (0.9) in a network of hazards."""
    torch.manual_seed(4020)
    x, y = fourth_parts.survival()
    if planted:
        x = x * torch.tensor([0.3, 5.0, 0.1, 2000.0, 8.0, 60.0]) + torch.tensor([0.9, 60.0, 4.0, 7000.0, 120.0, 250.0])
    model = parts.mlp(6, 32, 32, 1)
    return Case(model=model, data=(x, y), loss=fourth_parts.cox_loss, judge=fourth_parts.concordance(y))


@fault(
    FAULTS, "RNN", causes="inputs-not-scaled saturated-units output-constant", remedies="scale-inputs add-normalizer"
)
def index_of_shares_at_its_level(planted: bool) -> Case:
    """An index of shares at 15 000 points fed to a tanh network, for the standardised change that follows."""
    torch.manual_seed(4021)
    x, y = fourth_parts.demand()
    x = 15000 + 200 * x if planted else x
    model = fourth_parts.Forecaster(nn.RNN(1, 24, batch_first=True))
    return Case(model=model, data=(x, y), loss=nn.MSELoss())
