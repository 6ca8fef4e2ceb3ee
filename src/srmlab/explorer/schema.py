"""The words of the web interface: what a request may say and what an answer looks like.

Everything a client can send is bounded here, before any of it is looked at.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from srmlab.analysis.interventions import Intervention

MAX_PROMPT = 20_000  # characters
MAX_LIST = 256  # ablations, cuts or held features in one request
MAX_VALUE = 1e6  # of a held feature


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _bounded(given: Intervention) -> Intervention:
    """What the model itself cannot refuse: it has `check` for the rest."""
    for name in ("ablations", "cuts", "holds"):
        if len(getattr(given, name)) > MAX_LIST:
            raise ValueError(f"{name}: at most {MAX_LIST} in one request")
    for held in given.holds:
        if not abs(held.value) <= MAX_VALUE:
            raise ValueError(f"holds: {held.value} is not within ±{MAX_VALUE:g}")
    return given


Intervened = Annotated[Intervention, AfterValidator(_bounded)]


class Prompt(Strict):
    """Text, or token ids; exactly one of the two."""

    prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=4096)] | None = None

    @model_validator(mode="after")
    def _one_of_two(self):
        if (self.prompt is None) == (self.tokens is None):
            raise ValueError("give prompt or tokens, one of the two")
        return self


class Question(Prompt):
    """One about the prompt as these weights read it, changed or not."""

    intervention: Intervened = Intervention()
    checkpoint: Annotated[str, Field(max_length=200)] = ""


class TraceRequest(Question):
    cut: Annotated[bool, Field(description="read only as many tokens as fit")] = False


class InterveneRequest(Question):
    each: Annotated[bool, Field(description="also run every ablation alone")] = False


class PathsRequest(Question):
    token: Annotated[int, Field(ge=0, lt=4096)]
    target: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class AttentionRequest(Question):
    call: Annotated[int, Field(ge=0, lt=100_000, description="which of the model's calls of attention")]


class GenerateRequest(Question):
    count: Annotated[int, Field(ge=0, le=64)] = 1
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.8
    top_k: Annotated[int, Field(ge=1, le=1_000_000)] | None = 50
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    exit: Annotated[
        float | None,
        Field(gt=0, le=10, allow_inf_nan=False, description="tolerance of early exit; none computes all"),
    ] = None


class NoteRequest(Strict):
    label: Annotated[str, Field(max_length=200)] = ""
    pinned: bool = False


class SweepRequest(Prompt):
    mode: Literal["mean", "zero", "resample"] = "mean"
    checkpoint: Annotated[str, Field(max_length=200)] = ""


class AttentionCall(BaseModel):
    name: str
    level: int


class Model(BaseModel):
    """What the explorer is looking at."""

    name: str
    mark: str  # sent back as the header `Mark`, it gets answers of this very model only
    config: dict[str, Any]
    config_hash: str
    parameters: int
    shape: list[str]
    streams: int
    layers: int
    heads: int
    steps: int
    order: list[list[str]]
    drawing: str
    tokenizer: str
    max_tokens: int
    checkpoints: list[str]
    twin: bool
    runs: list[str]
    prompts: list[str]
    results: list[str]
    switches: list[tuple[int, int, int, int]]  # layer, head, target, source
    dictionary: str
    python: str
    generates: bool
    exits: bool
    level_name: str
    attention: list[AttentionCall]
    induction: bool


class Single(BaseModel):
    stream: int
    kl: list[float]


class Bar(BaseModel):
    """One token and its probability before and after."""

    id: int
    before: float
    after: float


class Bars(BaseModel):
    """At every token of the prompt: what may come next, likeliest before first and likeliest after first; KL
    in bits.
    """

    kl: list[float]
    top_before: list[list[Bar]]
    top_after: list[list[Bar]]
    vocabulary: dict[str, str]
    each: list[Single]


class Paths(BaseModel):
    """What one prediction owes to the edges between streams, in logits: srmlab.analysis.edge_attribution.
    Arrays row by row: edges and earlier [layer, head, target, source], nodes [point, stream],
    direct [stream].
    """

    target: int
    logit: float
    edges: list[float]
    earlier: list[float]
    nodes: list[float]
    direct: list[float]


class InductionScores(BaseModel):
    """Of every call and head: the mean weight on what came after the same token before, in random sequences
    read twice; `uniform` is that of a head that reads all earlier tokens alike."""

    score: list[list[float]]
    uniform: float
    sequences: int
    length: int


class Example(BaseModel):
    """Text around a place where a feature is strong, token by token."""

    strings: list[str]
    activation: list[float]


class Histogram(BaseModel):
    """Activations above 0 over evaluation text, in bins of equal width from 0 to `most`."""

    counts: list[int]
    most: float
    tokens: int


class FeatureFound(BaseModel):
    stream: int
    feature: int
    label: str
    pinned: bool
    raises: list[str]


class FeatureCard(FeatureFound):
    frequency: float
    lowers: list[str]
    examples: list[Example]
    histogram: Histogram | None


class SwitchFeature(BaseModel):
    """A feature, or (None) the mean of a stream's state, and the tokens it raises."""

    stream: int
    feature: int | None
    raises: list[str]


class DecidingFeature(SwitchFeature):
    opens: bool  # or closes


class SwitchPair(BaseModel):
    """A feature of the target with one of the source, and its share of the logit's difference between open
    and closed."""

    target: SwitchFeature
    source: SwitchFeature
    opens: bool  # or closes
    share: float


class Area(BaseModel):
    """How well something tells open from closed on other text: the area under the ROC curve."""

    name: str
    value: float
    error: float


class AreaByPairs(BaseModel):
    pairs: int
    auc: float


class OpenAt(BaseModel):
    weight: float
    before: str
    token: str
    after: str


class Switch(BaseModel):
    open: float
    pairs: list[SwitchPair]
    deciding: DecidingFeature
    auc: list[Area]
    by_pairs: list[AreaByPairs]
    gain: float  # of all pairs of features over the token alone
    surely: bool  # beyond the 95 % interval
    flipped: dict[str, float | None]
    examples: list[OpenAt]


class EdgeCard(BaseModel):
    """An edge between streams over the text of `srmlab analyze --only switches`."""

    edge: tuple[int, int, int, int]
    weight: float
    deviation: float
    bar: float  # the largest deviation of an untrained twin's edge
    strong: bool
    evidence: str
    switch: Switch | None


class Tokens(BaseModel):
    tokens: list[int]
    added: int
    strings: list[str]
    text: str
    mean_levels: float | None = None  # computed per token, with early exit


class Piece(BaseModel):
    """One stream ablated after one layer: KL in bits at every token."""

    layer: int
    stream: int
    kl: list[float]


class JobState(BaseModel):
    id: str
    status: Literal["running", "done", "stopped", "failed"]
    done: int
    total: int
    error: str
    pieces: list[Piece]


class Error(BaseModel):
    """Whatever went wrong, in one line."""

    error: str
