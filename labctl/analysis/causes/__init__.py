"""Why a run is slow or hangs: one small rule a cause, one family a module."""
