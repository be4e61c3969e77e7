"""Ray's object store on the job of the channel benchmark; prints one list: milliseconds, then GB/s a size."""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import ray

TENSORS = 40


@ray.remote
class Consumer:
    """Looks at what it is given."""

    def take(self, item: object) -> object:
        """A number comes back as it is, of an array both ends are read."""
        if isinstance(item, np.ndarray):
            return int(item[0]) + int(item[-1])
        return item


def main() -> None:
    """Command line: how many small items, then sizes in bytes."""
    small, *sizes = map(int, sys.argv[1:])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2 * 2**30)
    consumer = Consumer.remote()
    ray.get(consumer.take.remote(0))
    times = []
    for number in range(small):
        began = time.perf_counter()
        ray.get(consumer.take.remote(number))
        times.append((time.perf_counter() - began) / 2)
    figures = [round(1e3 * statistics.median(times), 4)]
    for size in sizes:
        array = np.ones(size, np.uint8)
        ray.get([consumer.take.remote(ray.put(array)) for _ in range(4)])
        began = time.perf_counter()
        ray.get([consumer.take.remote(ray.put(array)) for _ in range(TENSORS)])
        figures.append(round(TENSORS * size / (time.perf_counter() - began) / 1e9, 4))
    ray.shutdown()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
