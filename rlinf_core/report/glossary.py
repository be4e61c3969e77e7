"""What every metric means. NAME stands for a component, a part of a reward, or a number."""

from __future__ import annotations

import re
from functools import cache

MEANINGS = {
    "eval/accuracy": "mean score of held-out problems by the first reward: of 0 or 1, the share right",
    "eval/success": "share of held-out episodes that reached their goal",
    "eval/reward": "mean reward of held-out rows",
    "eval/response_length": "mean decisions of held-out rows: tokens of a response, actions of an episode",
    "eval/samples": "held-out rows",
    "eval/truncated": "share of held-out rows that a length or time limit cut",
    "eval/unscored": "held-out rows whose reward could not be computed",
    "eval/POLICY/NAME": "the same of a policy beside the run's own",
    "train/reward": "mean reward of all scored rows of the step, as it was scored",
    "train/reward_std": "standard deviation of these rewards",
    "train/reward_NAME": "mean of one part of the reward, before its weight",
    "train/greedy_reward": "mean reward of the greedy responses that others are compared with",
    "train/success": "share of episodes that reached their goal",
    "train/response_length": "mean trained decisions of a row: the sum of its mask",
    "train/response_length_max": "the longest row",
    "train/tool_calls": "calls of tools in a response, on average",
    "train/tool_errors": "share of the calls that came to nothing: not readable, wrong, failed or late",
    "train/truncated": "share of rows that a length or time limit cut",
    "train/samples": "rows that were generated",
    "train/trained_samples": "rows that were trained on, where an algorithm selects groups",
    "train/unscored": "rows without a reward, which are not trained on",
    "train/verdict_NAME": "answers that verifiers found right, wrong, unparsable, too slow or in error",
    "train/groups": "groups of rows that share a prompt or a start",
    "train/groups_of_one": "groups with a single scored row, whose advantage is 0",
    "train/zero_variance_groups": "share of groups with equal rewards, which have no gradient",
    "train/active_rows": "share of rows that were computed: those with a gradient",
    "train/rounds": "rounds of generation until the step was full",
    "train/drawn_groups": "groups that were generated in these rounds",
    "train/kept_share": "share of them that the algorithm kept",
    "train/advantage_NAME": "mean, deviation and range of the advantages of trained decisions",
    "train/policy_loss": "the policy's loss, as the algorithm aggregates it",
    "train/value_loss": "the critic's loss",
    "train/imitation_loss": "negative log-probability of demonstrated decisions",
    "train/ratio": "mean probability ratio of the policy to the old policy",
    "train/approx_kl": "estimate (k3) of the KL divergence of the old from the present policy",
    "train/clip_fraction": "share of trained decisions where the clip decided",
    "train/clip_fraction_NAME": "the same, at the low or the high bound alone",
    "train/dual_clip_fraction": "share where the second clip of negative advantages decided",
    "train/value_clip_fraction": "share where the value clip decided, judged before clipping",
    "train/kl": "KL divergence to the reference policy, by the estimator of the settings",
    "train/kl_coef": "its weight, where that adapts",
    "train/entropy": "mean entropy of the policy's decisions, in nats",
    "train/values": "mean of what the critic expected",
    "train/returns": "mean of what came",
    "train/explained_variance": "1 - var(returns - values) / var(returns): 1 = the critic knows, 0 = not",
    "train/grad_norm": "norm of the gradient before clipping, mean over the optimizer steps of a step",
    "train/critic_grad_norm": "the same of a critic of its own",
    "train/lr": "learning rate",
    "train/critic_lr": "learning rate of a critic of its own",
    "train/critic_active_rows": "share of rows that trained a critic of its own",
    "train/skipped_steps": "optimizer steps left out because a loss or a gradient was not finite",
    "train/critic_skipped_steps": "the same of a critic of its own",
    "train/logprob_mismatch": "mean difference of the trainer's and the rollout's log-probabilities",
    "train/logprob_mismatch_max": "the largest such difference",
    "train/mismatch_kl": "estimate of the KL divergence between them",
    "train/importance_weight": "mean weight that corrects for the rollout's policy",
    "train/staleness_mean": "steps by which the weights of trained decisions were behind, on average",
    "train/staleness_max": "the most of them",
    "train/stale_rows": "rows that were too old and not trained on",
    "train/POLICY/NAME": "the same of a policy beside the run's own",
    "time/step": "seconds of the whole step",
    "time/eval": "seconds of an evaluation",
    "time/sync": "seconds until those who act had the new weights",
    "time/predicted": "seconds that the plan promised for the step",
    "time/NAME": "seconds that a component worked, of its slowest rank",
    "time/NAME_mean": "the same, averaged over its ranks",
    "time/NAME_wait": "seconds that its ranks waited for others, on average",
    "util/NAME": "share of the step that a device worked",
    "util/tokens_per_s": "trained decisions a second of the step",
    "util/samples_per_s": "rows a second of the step",
    "util/env_steps_per_s": "actions that simulators executed a second of the rollout",
    "bubble_ratio": "share of all devices' time in which they were idle",
    "sync/mb": "megabytes that the new weights took on their way",
    "sync/changed_share": "share of weights that an update changed, in the receiver's dtype",
    "env/restarts": "processes of simulators that were started again",
    "env/lost_episodes": "episodes that ended with their process and were played again",
    "env/dropped_episodes": "episodes that were given up after that",
    "scale/pause_s": "seconds that changing the number of ranks held training up",
    "scale/moved_bytes": "bytes that changed their owner meanwhile",
    "faults/restarts": "workers that were started again",
    "faults/set_aside": "requests that were given up because workers died of them",
}
ABOUT = {
    "eval": "Held-out data",
    "train": "The rows of a step, and what training on them says",
    "time": "Time",
    "util": "Use of devices",
    "bubble_ratio": "",
    "sync": "New weights on their way to those who act",
    "env": "Simulators",
    "scale": "Changing the number of ranks",
    "faults": "Workers that died",
}


def meaning(name: str) -> str:
    """Of a metric; empty for one that is not known, such as a plugin's own."""
    group, policy, own = (*name.split("/", 2), "", "")[:3]
    if own and (known := meaning(f"{group}/{own}")):
        return f"{known}; of policy {policy}"
    return MEANINGS.get(name) or next((text for pattern, text in _patterns() if pattern.fullmatch(name)), "")


def table() -> str:
    """All of them as Markdown, by group."""
    parts = []
    for group, about in ABOUT.items():
        rows = [
            f"| `{name}` | {text} |" for name, text in MEANINGS.items() if name.partition("/")[0] == group
        ]
        heading = f"## {about} (`{group}/...`)\n\n" if about else ""
        parts.append(heading + "\n".join(["| metric | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """Those with a placeholder, the longest first."""
    named = sorted((name for name in MEANINGS if "NAME" in name), key=len, reverse=True)
    return [(re.compile(re.escape(name).replace("NAME", r"\w+")), MEANINGS[name]) for name in named]
