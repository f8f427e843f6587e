"""Import of datasets in other formats: each reader yields rows, and `write.py` makes a dataset folder of them."""
