"""The peers' side of `ppo_vs_peers.py`: PPO of Stable-Baselines3, and in one file as CleanRL has it, on a job
file; runs in the peers' environment. Axes: T steps, N environments, B rows of a mini-batch.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

Job = dict[str, Any]  # Any: JSON values


def environments(job: Job) -> list[Callable[[], Any]]:
    """What makes each environment; its information tells the return of an episode that has ended.
    Stable-Baselines3 clips actions itself."""

    def maker(n: int) -> Callable[[], Any]:
        def make() -> Any:
            env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(job["id"]))
            env.reset(seed=job["seed"] * 1000 + n)
            return gymnasium.wrappers.ClipAction(env) if job["peer"] == "cleanrl" else env

        return make

    return [maker(n) for n in range(job["envs"])]


def stable_baselines(job: Job) -> dict[str, list[float]]:
    """Seconds of each iteration, and mean return of the episodes that ended in it."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    class Watch(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.began: list[float] = []
            self.returns: list[list[float]] = []

        def _on_rollout_start(self) -> None:
            self.began.append(time.perf_counter())
            self.returns.append([])

        def _on_step(self) -> bool:
            self.returns[-1] += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            return True

    made = (SubprocVecEnv if job["processes"] else DummyVecEnv)(environments(job))
    model = PPO(
        "MlpPolicy",
        made,
        n_steps=job["steps"] // job["envs"],
        batch_size=job["steps"] // job["mini_batches"],
        n_epochs=job["epochs"],
        learning_rate=job["lr"],
        gamma=job["gamma"],
        ent_coef=job["entropy_coef"],
        max_grad_norm=job["grad_clip"],
        policy_kwargs={"net_arch": [64, 64], "log_std_init": job["log_std"]},
        device="cpu",
        seed=job["seed"],
    )
    watch = Watch()
    model.learn(job["steps"] * job["iterations"], callback=watch)
    made.close()
    return {"seconds": np.diff([*watch.began, time.perf_counter()]).tolist(), "returns": means(watch.returns)}


def perceptron(sizes: list[int], last: float) -> nn.Sequential:
    """Two hidden layers."""
    layers: list[nn.Module] = []
    for i, (before, after) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(before, after)
        nn.init.orthogonal_(linear.weight, last if i == len(sizes) - 2 else 2**0.5)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Agent(nn.Module):
    """Policy and values, apart."""

    def __init__(self, states: int, actions: int, log_std: float) -> None:
        super().__init__()
        self.actor = perceptron([states, 64, 64, actions], 0.01)
        self.critic = perceptron([states, 64, 64, 1], 1.0)
        self.log_std = nn.Parameter(torch.full((actions,), log_std))

    def act(self, states: torch.Tensor, actions: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Actions, their log-probabilities, the entropy and the values."""
        normal = Normal(self.actor(states), self.log_std.exp().expand(len(states), -1))
        chosen = normal.sample() if actions is None else actions
        logprobs, entropy = normal.log_prob(chosen).sum(1), normal.entropy().sum(1)
        return chosen, logprobs, entropy, self.critic(states)[:, 0]


def single_file(job: Job) -> dict[str, list[float]]:
    """As `stable_baselines`."""
    torch.manual_seed(job["seed"])
    vector = gymnasium.vector.AsyncVectorEnv if job["processes"] else gymnasium.vector.SyncVectorEnv
    envs = vector(environments(job), autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.shape[0], job["log_std"])
    adam = torch.optim.Adam(agent.parameters(), lr=job["lr"], eps=1e-5)
    shown, _ = envs.reset(seed=job["seed"])
    seconds, returns = [], []
    for _ in range(job["iterations"]):
        began = time.perf_counter()
        shown, rows, ended = rollout(job, envs, agent, shown)
        update(job, agent, adam, rows)
        seconds.append(time.perf_counter() - began)
        returns.append(ended)
    envs.close()
    return {"seconds": seconds, "returns": means(returns)}


@torch.no_grad()
def rollout(job: Job, envs: Any, agent: Agent, shown: Any) -> tuple[Any, list[torch.Tensor], list[float]]:
    """States, actions, log-probabilities, advantages and returns of each step, flat."""
    steps, count = job["steps"] // job["envs"], job["envs"]
    states = torch.zeros(steps, count, envs.single_observation_space.shape[0])
    actions = torch.zeros(steps, count, envs.single_action_space.shape[0])
    logprobs, rewards, values, ends, last = (torch.zeros(steps, count) for _ in range(5))
    ended: list[float] = []
    for t in range(steps):
        states[t] = torch.as_tensor(shown, dtype=torch.float32)
        actions[t], logprobs[t], _, values[t] = agent.act(states[t])
        shown, reward, terminated, truncated, info = envs.step(actions[t].numpy())
        rewards[t] = torch.as_tensor(reward)
        ends[t] = torch.as_tensor(terminated | truncated)
        if truncated.any():
            final = np.stack([info["final_obs"][n] for n in np.flatnonzero(truncated)])
            last[t, truncated] = agent.critic(torch.as_tensor(final, dtype=torch.float32))[:, 0]
        if "final_info" in info:
            found = info["final_info"]["episode"]
            ended += found["r"][info["_final_info"]].tolist()
    following = agent.critic(torch.as_tensor(shown, dtype=torch.float32))[:, 0]
    advantages, running = torch.zeros(steps, count), torch.zeros(count)
    for t in reversed(range(steps)):
        after = following if t == steps - 1 else values[t + 1]
        after = after * (1 - ends[t]) + last[t]
        running = (
            rewards[t] + job["gamma"] * after - values[t] + job["gamma"] * 0.95 * (1 - ends[t]) * running
        )
        advantages[t] = running
    rows = [states, actions, logprobs, advantages, advantages + values]
    return shown, [each.flatten(0, 1) for each in rows], ended


def update(job: Job, agent: Agent, adam: torch.optim.Adam, rows: list[torch.Tensor]) -> None:
    """All epochs."""
    for _ in range(job["epochs"]):
        for part in torch.randperm(job["steps"]).split(job["steps"] // job["mini_batches"]):
            states, actions, old, advantages, returns = (each[part] for each in rows)
            _, logprobs, entropy, values = agent.act(states, actions)
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            ratio = (logprobs - old).exp()
            gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            values_loss = 0.5 * (values - returns).square().mean()
            loss = -gain.mean() + 0.5 * values_loss - job["entropy_coef"] * entropy.mean()
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(agent.parameters(), job["grad_clip"])
            adam.step()


def means(returns: list[list[float]]) -> list[float]:
    """Of each iteration."""
    return [float(np.mean(each)) if each else float("nan") for each in returns]


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(asked["threads"])
    found = (stable_baselines if asked["peer"] == "sb3" else single_file)(asked)
    Path(sys.argv[2]).write_text(json.dumps(found))
