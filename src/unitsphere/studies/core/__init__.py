"""What all studies stand on: spec, plan, execute, results."""
