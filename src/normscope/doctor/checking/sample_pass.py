from ..facts.samples import SampleFacts as SampleFacts
from ..facts.samples import compare_samples as compare_samples
