"""From data to a trained net: the trainer, the predictor and the scikit-learn estimator."""
