"""OmniAID: model, training, export, torch-free scoring and reports."""
