from dataclasses import dataclass
@dataclass
class Prediction:
    name: str
    members: tuple
    @classmethod
    def of(cls, name, members, settings, notes, seed): return cls(name, members)
