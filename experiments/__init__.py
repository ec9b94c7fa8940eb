"""Programs behind the figures: `python -m experiments.FOLDER.NAME`, from the root."""
