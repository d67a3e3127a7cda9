"""The command ``ringfly``. Commands import torch, pynq and numba only when they run."""
