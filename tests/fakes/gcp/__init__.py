"""A stand-in for the parts of Google's Compute API that the playbooks of `playbooks/cloud` call; see README.md."""
