"""Rollout engines that run in another process, of this Python environment or of one of their own.

How to write an isolated engine. A plugin's `RolloutSpec` has an `isolation`, and its `target` is a subclass
of `rlinf_core.isolated_rollout.engine.IsolatedEngine` in place of a `RolloutEngine`:

```python
class MyEngine(IsolatedEngine):
    def __init__(self, config, setup): ...      # build it from `setup.folder`, which holds no weights
    def hello(self): ...                        # how many responses at once, and the dtype of its weights
    def add(self, jobs, sampling, stream): ...  # token ids in; the library's import stays in this file
    def step(self): ...                         # one step of all jobs: what has ended, as `Progress`
    def abort(self, numbers): ...               # end these; what they have drawn so far
    def load(self, bucket): ...                 # install `bucket.tensors()`, views of shared memory
    def finish_update(self): ...                # drop caches; digests of what is installed now
    def sleep(self): ...  def wake(self): ...  def memory_bytes(self): ...  def close(self): ...
```

Everything else is done for it: `proxy.py` is the `RolloutEngine` in the worker's process. It starts the other
one (`serve.py`) and hands it requests as they come, keeps count of what was drawn with which weight version,
checks texts that end a response, interrupts and continues responses around an update, compares digests after
it, and names a process that dies, hangs or raises, with what it had printed. Calls come one at a time, in
order: no step is made between the first bucket of an update and `finish_update`.

The process imports the standard library, numpy, torch, `rlinf_core.api`, `.errors`, `.types`, `.isolation`,
`.comm.places`, this room's `engine`, `buckets`, `protocol` and `serve`, and the plugin; so this file must
import nothing.
"""
