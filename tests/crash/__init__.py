"""Real workers, really killed: what is left must be one consistent history."""
