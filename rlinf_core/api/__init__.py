"""The interfaces that plugins implement. Importing this package imports neither torch nor numpy."""

from rlinf_core.api.algorithm import (
    Advantages,
    Algorithm,
    LossTerms,
    PolicyOutputs,
    ScoredBatch,
    TrainBatch,
)
from rlinf_core.api.backend import (
    POLICY,
    DataShare,
    LoRAConfig,
    LossFunction,
    MetricSums,
    OptimizerConfig,
    StepStats,
    TrainBackend,
    Trainer,
    TrainerContext,
    WeightBucket,
)
from rlinf_core.api.capabilities import (
    AlgorithmNeeds,
    BackendCapabilities,
    ModelCapabilities,
    RolloutCapabilities,
    SimulatorCapabilities,
)
from rlinf_core.api.dataset import Dataset, Split
from rlinf_core.api.engine import Call, Engine, EngineNode, Host, HostSpec, StageCall, WorkerSpec
from rlinf_core.api.model import ActionSample, Collator, Decoder, Model, TextProcessor, TokenRows, Want
from rlinf_core.api.resizing import Block, Held, Resize, Transfer
from rlinf_core.api.reward import Reward, RewardItem, RewardResult
from rlinf_core.api.rollout import RolloutEngine
from rlinf_core.api.simulator import Observation, Simulator, Space, Transition
from rlinf_core.api.snapshot import Snapshot
from rlinf_core.api.spans import HostSpan, Span
from rlinf_core.api.tool import Tool
from rlinf_core.api.tracker import Tracker
from rlinf_core.api.weight_part import WeightPart

__all__ = [
    "POLICY",
    "ActionSample",
    "Advantages",
    "Algorithm",
    "AlgorithmNeeds",
    "BackendCapabilities",
    "Block",
    "Call",
    "Collator",
    "DataShare",
    "Dataset",
    "Decoder",
    "Engine",
    "EngineNode",
    "Held",
    "Host",
    "HostSpan",
    "HostSpec",
    "LoRAConfig",
    "LossFunction",
    "LossTerms",
    "MetricSums",
    "Model",
    "ModelCapabilities",
    "Observation",
    "OptimizerConfig",
    "PolicyOutputs",
    "Resize",
    "Reward",
    "RewardItem",
    "RewardResult",
    "RolloutCapabilities",
    "RolloutEngine",
    "ScoredBatch",
    "Simulator",
    "SimulatorCapabilities",
    "Snapshot",
    "Space",
    "Span",
    "Split",
    "StageCall",
    "StepStats",
    "TextProcessor",
    "TokenRows",
    "Tool",
    "Tracker",
    "TrainBackend",
    "TrainBatch",
    "Trainer",
    "TrainerContext",
    "Transfer",
    "Transition",
    "Want",
    "WeightBucket",
    "WeightPart",
    "WorkerSpec",
]
