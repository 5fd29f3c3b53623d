"""Speed on this machine: embedding and training, beside the limits and beside other programs.

`torchelmo bench` prints what is measured here. Nothing here prints or reads arguments.
"""
