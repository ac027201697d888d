"""Training runs that never needed a cluster: simulators whose truth is known."""
