"""Data-parallel training in one `tf.function` over a connected cluster: eager TensorFlow 2, no session.

    labctl run examples/tf_function/train.py -- --steps 100

Each worker task k >= 1 keeps its shard of the samples and forms its gradient; task 0 averages and updates.
"""

import argparse
import json
import os
import time

import numpy as np
import tensorflow as tf

FEATURES, SAMPLES = 20, 2000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="gradient steps (100)")
    steps = parser.parse_args().steps

    addresses = json.loads(os.environ["TF_CONFIG"])["cluster"]["local"]
    cluster = tf.train.ClusterSpec({"local": addresses})
    tf.config.set_soft_device_placement(False)
    tf.config.experimental_connect_to_cluster(cluster, job_name="local", task_index=0)
    workers = range(1, len(addresses))

    random = np.random.default_rng(0)
    truth = random.standard_normal(FEATURES).astype("float32")
    with tf.device("/job:local/task:0/cpu:0"):
        weights = tf.Variable(tf.zeros([FEATURES]))
    shards = {}
    for task in workers:
        samples = random.standard_normal((SAMPLES, FEATURES)).astype("float32")
        with tf.device(f"/job:local/task:{task}/cpu:0"):
            shards[task] = (
                tf.Variable(samples),
                tf.Variable((samples @ truth > 0).astype("float32")),
            )

    @tf.function
    def step():
        gradients = []
        for task in workers:
            with tf.device(f"/job:local/task:{task}/cpu:0"):
                x, y = shards[task]
                missed = tf.sigmoid(tf.linalg.matvec(x, weights)) - y
                gradients.append(tf.linalg.matvec(x, missed, transpose_a=True) / SAMPLES)
        with tf.device("/job:local/task:0/cpu:0"):
            weights.assign_sub(5.0 * tf.add_n(gradients) / len(gradients))

    begin = time.perf_counter()
    step()
    first = time.perf_counter()
    for _ in range(steps - 1):
        step()
    end = time.perf_counter()

    test = random.standard_normal((SAMPLES, FEATURES)).astype("float32")
    accuracy = np.mean((test @ weights.numpy() > 0) == (test @ truth > 0))
    print(f"{len(shards)} workers with {SAMPLES} samples each, {steps} steps")
    print(
        f"first step {1e3 * (first - begin):.1f} ms, later ones {1e3 * (end - first) / max(1, steps - 1):.2f} ms"
    )
    print(f"accuracy on unseen samples {accuracy:.3f}")
    assert accuracy > 0.95, accuracy


if __name__ == "__main__":
    main()
