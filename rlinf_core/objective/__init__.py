"""What most algorithm plugins share: options, terms of losses, rewards of decisions, rows that are trained.

The options stand here and import no torch; what works on tensors is imported from its module, such as
`rlinf_core.objective.policy`.
"""

from rlinf_core.objective.critic_options import CriticOptions
from rlinf_core.objective.kl_options import KLPlace, RewardKLOptions
from rlinf_core.objective.options import PolicyOptions

__all__ = ["CriticOptions", "KLPlace", "PolicyOptions", "RewardKLOptions"]
