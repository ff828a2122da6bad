"""What a model's outputs say of candidate sets: shares, verdicts, annotators, findings."""
