"""The question's listing, task 1: it joins. A lab has a service for this; by hand: python server.py"""

import json
import os

import tensorflow as tf

config = json.loads(os.environ.get("TF_CONFIG", "{}"))
addresses = config.get("cluster", {}).get("local", ["10.132.0.2:2222", "10.132.0.3:2222"])
cluster = tf.train.ClusterSpec({"local": addresses})
server = tf.distribute.Server(cluster, job_name="local", task_index=1)
server.join()  # @machine2 ( task:1 ); ends by SIGTERM, not by Ctrl-C
