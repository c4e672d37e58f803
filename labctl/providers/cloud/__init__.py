"""Labs of machines in a cloud, made and removed by the playbooks of `playbooks/cloud`."""
