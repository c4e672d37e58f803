"""labctl: a lab for TensorFlow on two or more machines that says where the time went."""

__version__ = "0.1.0"
