"""Arrays -> arrays: standardization, masks for spectrograms, noise, images; of numpy, and of torch.

No module here uses HDF5 files or Ray. Random numbers are a function of the key of a row, so that they are the same in a
Ray task, in its retry and in a plain PyTorch Dataset.
"""
